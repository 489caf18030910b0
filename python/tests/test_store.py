"""What a store takes (padded rows, nested tensors, bfloat16), memory that is used again, and how batches show themselves."""

import numpy as np
import pytest

import ravel


def test_padded_rows():
    ids = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]])
    store = ravel.Ragged([3, 1, 2], tokens=ids, labels=ravel.Field("labels", ids, "next", pad=-100))
    assert store.fields["tokens"].data.tolist() == [1, 2, 3, 4, 5, 6] == store.fields["labels"].data.tolist()
    batch = ravel.pack(store, [2, 0])
    assert batch.tokens.tolist() == [5, 6, 1, 2, 3] and batch.labels.tolist() == [6, -100, 2, 3, -100]
    left = np.array([[0, 1, 2], [3, 4, 5]])
    store = ravel.Ragged.from_padded([[0, 1, 1], [1, 1, 1]], tokens=left, logps=left * 0.5)
    assert store.lengths.tolist() == [2, 3] and store.fields["tokens"].data.tolist() == [1, 2, 3, 4, 5]
    wide = ravel.Ragged([2, 1], choices=np.arange(6).reshape(3, 2))  # [elements, width], as ever
    assert wide.fields["choices"].width == 2


@pytest.mark.parametrize("make, says", [
    (lambda: ravel.Ragged([3, 1], tokens=np.zeros((5, 4))), r"shape \(5, 4\); with 2 samples of 4 tokens it must be \[4\]"),
    (lambda: ravel.Ragged([3, 9], tokens=np.zeros((2, 4))), "rows of 4 columns; sample 1 has 9 tokens"),
    (lambda: ravel.Ragged([3], tokens=np.zeros(4)), "tokens has 4 elements; kind 'token' needs 3"),
    (lambda: ravel.Ragged([3], tokens=np.zeros((1, 2, 3))), "3 dimensions"),
    (lambda: ravel.Ragged.from_padded([[1, 1]], tokens=np.zeros((2, 2))), r"tokens has shape \(2, 2\); attention_mask has \(1, 2\)"),
    (lambda: ravel.Ragged.from_padded([1, 1], tokens=np.zeros(2)), "must be .samples, columns."),
    (lambda: ravel.Ragged(tokens=np.zeros(3)), "give lengths")])
def test_wrong_shapes_are_said(make, says):
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_batches_and_stores_show_themselves():
    store = ravel.Ragged([3, 4], tokens=np.arange(7, dtype=np.int32))
    assert repr(store) == "<ravel.Ragged: 2 samples, 7 tokens, fields tokens>"
    text = repr(ravel.pack(store, [0, 1], align=4))
    assert "2 samples, 7 tokens, 2 sequences in 8 positions" in text and "tokens [8] int32" in text
    rows = ravel.pad(store, [0, 1])
    assert "2 rows x 4 columns" in repr(rows) and {"tokens", "attention_mask", "rows", "torch"} <= set(dir(rows))


def test_memory_is_used_again():
    store = ravel.Ragged(np.arange(1, 21), tokens=np.arange(210))
    large = ravel.pack(store, np.arange(20), segments=True)
    memory = large["tokens"].ctypes.data
    kept = large.tokens.copy()
    small = ravel.pack(store, [3, 5], segments=True, out=large)
    assert small["tokens"].ctypes.data == memory and small.tokens.tolist() == [*range(6, 10), *range(15, 21)]
    again = ravel.pack(store, np.arange(20), segments=True, out=small)
    assert again["tokens"].ctypes.data == memory and again.tokens.tolist() == kept.tolist()
    fresh = ravel.pack(store, np.arange(20), out=ravel.pack(store, [0]))
    assert fresh.tokens.tolist() == kept.tolist()  # too small: new memory
    rows = ravel.pad(store, [1, 2], out=ravel.pad(store, [18, 19]))
    assert rows.tokens.tolist() == [[1, 2, 0], [3, 4, 5]]


def test_torch_tensors_of_every_kind():
    torch = pytest.importorskip("torch", reason="torch is not installed: bfloat16 and nested tensors were not tried")
    rows = [torch.arange(n) for n in (3, 1, 4)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    store = ravel.Ragged(tokens=nested)
    assert store.lengths.tolist() == [3, 1, 4] and ravel.pack(store, [2]).tokens.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="rows have other lengths"):
        ravel.Ragged([3, 2, 4], tokens=nested)
    strided = torch.nested.nested_tensor(rows)
    with pytest.raises(TypeError, match="layout torch.jagged"):
        ravel.Ragged(tokens=strided)
    logps = torch.randn(8, dtype=torch.bfloat16)
    store.add("logps", logps)
    batch = ravel.pack(store, [2, 0, 1], align=4)
    out = batch.torch()
    assert out["logps"].dtype == torch.bfloat16 and "logps [12] bf16" in repr(batch)
    assert torch.equal(out["logps"][:4], logps[4:8]) and torch.equal(out["logps"][4:7], logps[:3])
    back = ravel.scatter(store, batch, out["logps"])
    assert torch.equal(torch.from_numpy(back).view(torch.bfloat16), logps)
    padded = torch.zeros(3, 4, dtype=torch.bfloat16)
    padded[:, 0] = 1
    store.add("padded", padded)
    assert ravel.pack(store, [1]).torch()["padded"].tolist() == [1.0]
    half = ravel.Ragged.from_padded(torch.tensor([[0, 1, 1], [1, 1, 1]]), x=torch.ones(2, 3, dtype=torch.bfloat16))
    assert ravel.pack(half, [0, 1]).torch()["x"].dtype == torch.bfloat16
    if torch.cuda.is_available():
        pinned = ravel.pack(store, [0, 1, 2], pin=True)
        assert pinned.torch()["tokens"].is_pinned() and pinned.torch("cuda")["tokens"].tolist() == store.fields["tokens"].data.tolist()
