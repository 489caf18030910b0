"""Megatron RL's ``SequencePacker`` (``megatron.rl.sequence_packing_utils``, read at commit d98e8a64).

    import ravel.adapters.megatron_rl; ravel.adapters.megatron_rl.install()

Differences: bins are filled by best fit instead of next fit, so there are fewer of them; a trajectory that is longer than a
bin is an error that names it, where Megatron writes past the row's end. The longest sequence of a bin is still the first.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from .._lib import host_array
from .._plan import plan
from ._switch import Refused, put

__all__ = ["PackingInfo", "SequencePacker", "get_packing_actual_tokens", "get_packing_avg_seq_length", "get_packing_compute_tokens",
           "get_packing_efficiency", "install", "throughput_line"]

_THEIRS = "megatron.rl.sequence_packing_utils"


@dataclasses.dataclass
class PackingInfo:
    """Where every sequence went, under Megatron's names. Inside Megatron its own class of this name is used."""

    bin_seq_indices: list[list[int]]
    seq_starts: dict[int, list[int]]
    seq_lengths: list[int]
    seq_to_bin_idx: list[int | None]
    packing_algo: str


def _real_lengths(tokens: np.ndarray, pad_token: int) -> np.ndarray:
    """Up to the last token that is no padding; 0 for a row of padding."""
    filled = tokens != pad_token
    return np.where(filled.any(1), tokens.shape[1] - np.argmax(filled[:, ::-1], 1), 0)


class SequencePacker:
    """``packer.pack_sequences(trajs, generation_masks)``: padded rows to bins of ``bin_size`` tokens. Every slot is a multiple
    of ``seq_length_multiple``."""

    def __init__(self, bin_size: int, pad_token: int, max_sequences_per_bin: int = 16, seq_length_multiple: int = 1):
        if seq_length_multiple < 1 or bin_size % seq_length_multiple:
            raise Refused(f"bin_size {bin_size} is not divisible by seq_length_multiple {seq_length_multiple}")
        self.bin_size, self.pad_token = bin_size, pad_token
        self.max_sequences_per_bin, self.seq_length_multiple = max_sequences_per_bin, seq_length_multiple
        self.last_avg_seqs_per_bin = 0.0

    def _bins(self, lengths: np.ndarray) -> list[list[int]]:
        """Longest first inside a bin; equal lengths in the order they came. Rows of padding take one slot."""
        long = np.flatnonzero(lengths > self.bin_size)
        if long.size:
            raise Refused(f"trajectory {int(long[0])} has {int(lengths[long[0]])} tokens; a bin holds {self.bin_size}")
        done = plan(np.maximum(lengths, 1), budget=self.bin_size, align=self.seq_length_multiple, cost="tokens",
                    max_samples=self.max_sequences_per_bin, method="bfd")
        bins = [sorted(part.tolist(), key=lambda i: (-lengths[i], i)) for part in done.bins if part.size]
        return sorted(bins, key=lambda part: (-lengths[part[0]], part[0]))

    def pack_sequences(self, trajs: Any, generation_masks: Any = None) -> tuple[Any, Any, Any, Any]:
        """Packed tokens, position ids and loss mask ([bins, bin_size] each, on the device of ``trajs``), and where every
        sequence went."""
        import torch

        lengths = _real_lengths(host_array(trajs.detach().cpu(), "trajs"), self.pad_token)
        bins = self._bins(lengths)
        multiple = self.seq_length_multiple
        starts: dict[int, list[int]] = {}
        for b, part in enumerate(bins):
            slots = -(-lengths[part] // multiple) * multiple
            starts[b] = [0, *np.cumsum(slots).tolist()]
        order = np.concatenate([np.asarray(part, np.int64) for part in bins])
        begins = np.concatenate([b * self.bin_size + np.asarray(starts[b][:-1], np.int64) for b in range(len(bins))])
        own = lengths[order]
        inside = np.arange(int(own.sum())) - np.repeat(np.cumsum(own) - own, own)
        to = torch.from_numpy(np.repeat(begins, own) + inside).to(trajs.device)
        row = torch.from_numpy(np.repeat(order, own)).to(trajs.device)
        at = torch.from_numpy(inside).to(trajs.device)
        shape = (len(bins), self.bin_size)
        packed = torch.full(shape, self.pad_token, dtype=trajs.dtype, device=trajs.device)
        positions = torch.zeros(shape, dtype=torch.long, device=trajs.device)
        mask = torch.zeros(shape, dtype=torch.float, device=trajs.device)
        packed.view(-1)[to] = trajs[row, at]
        positions.view(-1)[to] = at
        mask.view(-1)[to] = 1.0 if generation_masks is None else _stacked(generation_masks)[row, at].float()
        self.last_avg_seqs_per_bin = len(order) / len(bins)
        return packed, positions, mask, self._info(bins, starts, lengths)

    def _info(self, bins: list[list[int]], starts: dict[int, list[int]], lengths: np.ndarray) -> Any:
        bin_of: list[int | None] = [None] * lengths.size
        for b, part in enumerate(bins):
            for i in part:
                bin_of[i] = b
        make = getattr(sys.modules.get(_THEIRS), "PackingInfo", PackingInfo)
        return make(bin_seq_indices=bins, seq_starts=starts, seq_lengths=lengths.tolist(), seq_to_bin_idx=bin_of,
                    packing_algo="fifo")


def _stacked(masks: Any) -> Any:
    if hasattr(masks, "shape"):
        return masks
    import torch

    return torch.stack(list(masks))


# ---- Megatron's figures of a packing (pull request 3877): of any context with packing_info and packed_trajs ----------------


def get_packing_actual_tokens(packing_context: Any) -> int:
    """Tokens of the sequences in this rank's bins."""
    info = packing_context.packing_info
    return sum(info.seq_lengths[i] for part in info.bin_seq_indices for i in part)


def get_packing_compute_tokens(packing_context: Any) -> int:
    """This rank's bins at their full size."""
    bins, size = packing_context.packed_trajs.shape
    return int(bins * size)


def get_packing_efficiency(packing_context: Any, ranks: int | None = None) -> float:
    """Tokens of all ranks over all bins at their full size. ``ranks`` are data-parallel; None asks Megatron."""
    if ranks is None:
        ranks = int(sys.modules["megatron.core.mpu"].get_data_parallel_world_size())
    room = get_packing_compute_tokens(packing_context) * ranks
    return sum(packing_context.packing_info.seq_lengths) / room if room else 0.0


def get_packing_avg_seq_length(packing_context: Any) -> float:
    """Over the sequences of all ranks."""
    lengths = packing_context.packing_info.seq_lengths
    return sum(lengths) / len(lengths) if lengths else 0.0


def throughput_line(packing_context: Any, seconds: float, ranks: int, gpus: int) -> str:
    """The end of Megatron's log line. Tokens of all ranks are counted, where Megatron multiplies those of one rank."""
    compute = get_packing_compute_tokens(packing_context) * ranks / seconds
    actual = sum(packing_context.packing_info.seq_lengths) / seconds
    return (f" compute_toks/s: {compute:.0f} | compute_toks/s/gpu: {compute / gpus:.0f} | actual_toks/s: {actual:.0f} |"
            f" actual_toks/s/gpu: {actual / gpus:.0f} | packing_eff: {get_packing_efficiency(packing_context, ranks):.1%} |"
            f" avg_seq_len: {get_packing_avg_seq_length(packing_context):.1f} |")


def install(module: Any = _THEIRS) -> list[str]:
    """Replaces Megatron's class by this one. Returns the names that were replaced."""
    return put(module, {"SequencePacker": SequencePacker})
