"""Side by side with the peers' own packages, where they are installed: `pip install transformers trl datasets tensordict`."""

import collections
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from peers import engine

from ravel.adapters import huggingface, trl as ours, trl_rollouts, verl


def rows(seed, count=60, longest=40):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1000, n).tolist() for n in rng.integers(1, longest, count)]


@pytest.mark.parametrize("keywords", [{}, {"return_flash_attn_kwargs": True, "return_seq_idx": True},
                                      {"separator_id": -5, "position_ids_start": 2}, {"return_position_ids": False}])
def test_collator_gives_what_theirs_gives(keywords):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: not compared with its collator")
    features = [{"input_ids": row} for row in rows(0)]
    theirs = transformers.DataCollatorWithFlattening(**keywords)
    mine = huggingface.PackingCollator(**{"return_flash_attn_kwargs": False, **keywords})
    for tensors in ("pt", "np"):
        want, got = theirs(features, return_tensors=tensors), mine(features, return_tensors=tensors)
        assert set(want) == set(got)
        for name in want:
            assert type(want[name]) is type(got[name]), name
            assert np.array_equal(np.asarray(want[name]), np.asarray(got[name])), name
            assert getattr(want[name], "dtype", None) == getattr(got[name], "dtype", None), name


@pytest.mark.parametrize("longest", [5, 33, 90])  # few lengths: many ties
@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packed_rows_are_theirs(strategy, longest):
    trl = pytest.importorskip("trl", reason="trl is not installed: not compared with its packing")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    ids = rows(3, count=200, longest=longest)
    data = datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})
    for given in (data, data.to_iterable_dataset()):
        want, got = list(trl.pack_dataset(given, 32, strategy)), list(ours.pack_dataset(given, 32, strategy))
        assert want == got and len(got) > 10
        assert all(len(r["input_ids"]) <= 32 for r in got)


def test_tensordicts_are_cut_and_come_back():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed: verl's batches were not tried")
    lengths = np.random.default_rng(1).integers(1, 33, 50)
    mask = torch.arange(32)[None] < torch.from_numpy(lengths)[:, None]
    batch = tensordict.TensorDict({"attention_mask": mask.long(), "row": torch.arange(50)}, batch_size=50)
    parts, indices = verl.rearrange_micro_batches(batch, max_token_len=128, num_batches_divided_by=2)
    assert len(parts) % 2 == 0 and all(int(p["attention_mask"].sum()) <= 128 for p in parts)
    assert verl.restore_dynamic_batch(torch.cat([p["row"] for p in parts]), indices).tolist() == list(range(50))


VERL_RANK = """
import sys
sys.path[:0] = [sys.argv[3]]
import numpy as np, pytest, tensordict, torch, torch.distributed as dist
import peers
from ravel.adapters import verl as ours

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with pytest.MonkeyPatch.context() as patch:
    theirs = peers.verl(patch)
    outcomes = {"both": 0, "ours alone": 0, "neither": 0}
    for case in range(60):
        rng = np.random.default_rng(case)
        group, divisor, least, budget = (int(rng.choice(of)) for of in ((1, 1, 2), (1, 1, 2), (0, 3, 10), (32, 64, 128)))
        counts = rng.integers(1, 12, 2) * group
        longest = int(rng.choice([8, 32, 33]))
        lengths = [rng.integers(1, longest + 1, n) for n in counts][rank]
        mask = (torch.arange(32)[None] < torch.from_numpy(lengths)[:, None]).long()
        batch = tensordict.TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=len(lengths))
        arguments = dict(max_token_len=budget, dp_group=dist.group.WORLD, num_batches_divided_by=divisor, min_num_micro_batch=least,
                         force_group_size=group)
        said = []
        for module in (theirs, ours):
            try:
                parts, indices = module.rearrange_micro_batches(batch, **arguments)
                assert sorted(sum(indices, [])) == list(range(len(lengths))) and all(indices)
                assert all(sum(int(lengths[i]) for i in part) <= budget for part in indices)
                said.append(len(indices))
            except (ValueError, AssertionError) as refused:
                said.append(refused)
        kinds = torch.tensor([isinstance(s, Exception) for s in said] + [0 if isinstance(s, Exception) else s for s in said])
        other = kinds.clone()
        dist.all_reduce(other, op=dist.ReduceOp.SUM)
        assert torch.equal(other, kinds * 2), (case, said)  # the same on both ranks: nobody is left in a collective
        if isinstance(said[0], Exception):
            outcomes["ours alone" if not isinstance(said[1], Exception) else "neither"] += 1
        else:
            assert not isinstance(said[1], Exception) and said[1] <= said[0], (case, said)
            outcomes["both"] += 1
    assert outcomes["both"] > 20 and outcomes["neither"] > 5, outcomes
    print("fine", outcomes)
"""


def test_verl_and_ours_refuse_the_same_batches_on_all_ranks(tmp_path):
    """Two ranks over gloo, verl's function and ours in turn: where verl gives micro-batches ours does, no more of them."""
    pytest.importorskip("tensordict", reason="tensordict is not installed: not compared with verl")
    engine("verl/utils/seqlen_balancing.py")
    ranks = [subprocess.Popen([sys.executable, "-c", VERL_RANK, str(r), str(tmp_path / "meet"), str(pathlib.Path(__file__).parent)],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(2)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 and "fine" in text for rank, text in zip(ranks, said)), "\n".join(said)


def test_trl_rollouts_come_in_rows_that_its_collator_takes():
    torch = pytest.importorskip("torch", reason="torch is not installed: not compared with TRL's batcher")
    pytest.importorskip("trl", reason="trl is not installed: not compared with its batcher")
    from trl.experimental.async_grpo import async_grpo_trainer as trainer

    theirs = trainer.TokenBudgetBatcher
    places = trl_rollouts.install()
    assert "trl.experimental.async_grpo.async_grpo_trainer.TokenBudgetBatcher" in places
    rng, samples = np.random.default_rng(4), []
    for group in range(24):
        prompt = rng.integers(0, 90, int(rng.integers(4, 60))).tolist()
        for _ in range(8):
            n = int(min(200, rng.lognormal(3.5, 0.9) + 1))
            ids = prompt + rng.integers(0, 90, n).tolist()
            mask = [0] * len(prompt) + [1] * n
            samples.append({"input_ids": torch.tensor(ids), "completion_mask": torch.tensor(mask), "group_id": group,
                            "old_log_probs": torch.zeros(len(ids)), "advantage": 1.0, "metrics": {}})
    fills = {}
    for batcher in (theirs, trainer.TokenBudgetBatcher):
        metrics = collections.defaultdict(list)
        batches = list(batcher(samples, 4, 1024, metrics))  # as AsyncGRPOTrainer makes it
        collate = trainer.DataCollatorForRollout(pad_token_id=0, num_processes=4, metrics=metrics, token_budget=1024)
        for rows in batches:
            assert len(rows) == 4 and all(row.samples and len(row.tokens) <= 1024 and row.trained <= 1024 for row in rows)
            assert collate([rows])["input_ids"].shape[0] == 4
        loads = np.array([[row.load for row in rows] for rows in batches])
        fills[batcher] = len(batches), sum(len(row.samples) for rows in batches for row in rows), loads.max(1).sum() * 4 / loads.sum()
    assert fills[trainer.TokenBudgetBatcher][1] >= fills[theirs][1]  # TRL's keeps the last micro-batch until it is full
    assert fills[trainer.TokenBudgetBatcher][2] < fills[theirs][2], fills  # slowest row over mean
    trainer.TokenBudgetBatcher = theirs
