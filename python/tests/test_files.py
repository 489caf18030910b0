"""Shapes, lengths from files, mock data sets, and a plan's pictures and files."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel


def test_shapes():
    assert "qwen3-0.6b" in ravel.shapes()
    shape = ravel.shape("qwen3-0.6b")
    assert (shape.layers, shape.hidden) == (28, 1024) and 0.55e9 < shape.parameters < 0.65e9
    small = ravel.shape(shape, layers=2)
    assert small.layers == 2 and small != shape and ravel.shape("qwen3-0.6b") == shape
    assert ravel.plan([5, 6], budget=16, cost=shape).digest == ravel.plan([5, 6], budget=16, cost="qwen3-0.6b").digest
    assert ravel.plan([5, 6], budget=16, cost=shape.cost).digest == ravel.plan([5, 6], budget=16, cost="qwen3-0.6b").digest
    with pytest.raises(ravel.ArgumentError, match="qwen3-0.6b"):
        ravel.shape("qwen3-0.6")
    with pytest.raises(TypeError, match="has no width"):
        ravel.shape("qwen3-0.6b", width=3)


def test_shape_of_a_config(tmp_path):
    config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ravel.shape(config) == ravel.shape(tmp_path) == ravel.shape(tmp_path / "config.json")
    assert ravel.plan([5], budget=8, cost=tmp_path / "config.json").stats["samples"] == 1


def test_lengths_from_files(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,response\n3,4\n5,6\n")
    np.save(tmp_path / "a.npy", np.array([7, 11], np.int32))
    (tmp_path / "a.jsonl").write_text('{"u": {"n": 7}}\n{"u": {"n": 11}}\n')
    csv = ravel.read_lengths(tmp_path / "a.csv")
    assert csv.prompts.tolist() == [3, 5] and csv.lengths.tolist() == [7, 11] and len(csv) == 2
    assert ravel.read_lengths(tmp_path / "a.npy").lengths.tolist() == [7, 11]
    assert ravel.read_lengths(tmp_path / "a.jsonl", field="u.n", limit=1).lengths.tolist() == [7]
    assert ravel.plan(**csv.input(), budget=16).stats["actual_tokens"] == 18
    (tmp_path / "b.csv").write_text("length\nten\n")
    with pytest.raises(ravel.DataError, match="b.csv:2"):
        ravel.read_lengths(tmp_path / "b.csv")


def test_mocks_are_the_same_everywhere():
    mock = ravel.mock(type="lognormal", max_seq_len=1000, mean_seq_len=300, count=50, seed=7, prompt_share=0.3)
    lengths = mock.lengths()
    assert len(mock) == 50 and list(mock) == lengths.lengths.tolist() == list(ravel.mock(
        {"type": "lognormal", "max_seq_len": 1000, "mean_seq_len": 300, "count": 50, "seed": 7, "prompt_share": 0.3}))
    assert mock.tokens(3, 100).size == mock.length(3) and 0 <= mock.tokens(3, 100).min() and mock.tokens(3, 100).max() < 100
    assert mock.prompt(3) == lengths.prompts[3]
    with pytest.raises(ravel.Error, match="did you mean"):
        ravel.mock(typo="lognormal", max_seq_len=10)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 4))
def test_files_of_a_plan_say_what_the_plan_says(lengths, dp):
    plan = ravel.plan(lengths, budget=512, dp=dp)
    plan.check()
    text = json.loads(plan.to_json())
    assert text["digest"].endswith(plan.digest) and text["stats"]["samples"] == len(lengths)
    bins = [b["samples"] if isinstance(b, dict) else b for b in text["bins"]]
    assert bins == [b.tolist() for b in plan.bins]
    assert len(plan.to_csv().splitlines()) == len(plan.bins) + 1
    assert ET.fromstring(plan.to_svg()).tag.endswith("svg")


def test_pages_and_notebooks():
    plan = ravel.plan([10, 20, 30], budget=64)
    page = plan.to_html("a <b> & c")
    assert page.lstrip().lower().startswith("<!doctype html") and "a &lt;b&gt; &amp; c" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "<svg" in plan._repr_html_()
    assert plan._repr_svg_() == plan.to_svg() and "3 samples" in repr(plan)


def test_the_planners_plans_have_pictures_too():
    planner = ravel.Planner(budget=100, fill=0.5)
    planner.push([60, 70], ids=[7, 8])
    planner.push([20])
    plan = planner.flush()
    assert sorted(plan.lengths.tolist()) == [20, 60, 70]
    assert sorted(zip(plan.ids.tolist(), plan.lengths.tolist()))[-2:] == [(7, 60), (8, 70)]
    plan.check()
    assert "<svg" in plan.to_svg() and json.loads(plan.to_json())["stats"]["samples"] == 3
