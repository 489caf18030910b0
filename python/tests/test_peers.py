"""Side by side with the peers' own packages, where they are installed: `pip install transformers trl datasets tensordict`."""

import numpy as np
import pytest

from ravel.adapters import huggingface, trl as ours, verl


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


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packed_rows_are_as_many_as_theirs(strategy):
    trl = pytest.importorskip("trl", reason="trl is not installed: not compared with its packing")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    ids = rows(3, longest=33 if strategy == "bfd" else 90)
    data = datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})
    for given in (data, data.to_iterable_dataset()):
        want, got = list(trl.pack_dataset(given, 32, strategy)), list(ours.pack_dataset(given, 32, strategy))
        assert set(want[0]) == set(got[0])
        if strategy == "wrapped":
            assert want == got
        else:
            assert len(got) == len(want)
            assert sorted(n for r in want for n in r["seq_lengths"]) == sorted(n for r in got for n in r["seq_lengths"])
        assert all(r["input_ids"] == r["labels"] and len(r["input_ids"]) <= 32 for r in got)


def test_tensordicts_are_cut_and_come_back():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed: verl's batches were not tried")
    lengths = np.random.default_rng(1).integers(1, 33, 50)
    mask = torch.arange(32)[None] < torch.from_numpy(lengths)[:, None]
    batch = tensordict.TensorDict({"attention_mask": mask.long(), "row": torch.arange(50)}, batch_size=50)
    parts, indices = verl.rearrange_micro_batches(batch, max_token_len=128, num_batches_divided_by=2)
    assert len(parts) % 2 == 0 and all(int(p["attention_mask"].sum()) <= 128 for p in parts)
    assert verl.restore_dynamic_batch(torch.cat([p["row"] for p in parts]), indices).tolist() == list(range(50))
