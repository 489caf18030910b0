"""Metrics: values against plain arithmetic, phases, ranks, sinks, FLOPs, wrong input."""

import json
import time
import urllib.request

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import ravel
from ravel.metrics import Metrics, Row

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.lists(st.floats(-100, 100), min_size=1, max_size=10))
def test_an_update_is_plain_arithmetic(lengths, dp, losses):
    plan = ravel.plan(lengths, budget=4096, dp=dp, align=8)
    with Metrics() as m:
        m.begin()
        for rank in range(dp):
            m.add_plan(plan, rank, loss=5)
        for loss in losses:
            m.add("train/loss", loss)
        values = m.update(1)
    assert values["tokens/actual"] == sum(lengths) and values["batch/samples"] == len(lengths)
    assert values["tokens/padded"] == sum(-(-n // 8) * 8 for n in lengths) and values["tokens/loss"] == 5 * dp
    assert values["tokens/capacity"] == len(plan) * dp * 4096
    assert values["batch/bins"] + values["batch/fillers"] == len(plan.bins)
    assert values["throughput/max_seq_length"] == max(lengths)
    assert values["train/loss"] == pytest.approx(sum(losses), abs=1e-6)
    assert values["throughput/packing_efficiency"] == pytest.approx(sum(lengths) / values["tokens/capacity"])


@pytest.mark.parametrize("sync, figure", [("micro-step", "idle_micro_step"), ("update", "idle_update"),
                                          ("pipeline", "idle_update")])
def test_the_idle_share_of_a_plan_is_of_what_its_ranks_wait_for(sync, figure):
    plan = ravel.plan([100, 3000, 20, 50, 900, 1000, 7], budget=4096, dp=3, sync=sync)
    m = Metrics()
    m.add_plan(plan, 0)
    assert m.update(1)["plan/idle_share"] == plan.stats[figure]


def test_phases_nest_and_survive_exceptions():
    m = Metrics()
    m.begin()
    with m.phase("rollout"):
        with pytest.raises(ZeroDivisionError):
            with m.phase("reward"):
                time.sleep(0.01)
                1 / 0
    m.phase_add("checkpoint", 2.5)
    values = m.update(1)
    assert values["time/rollout_mean_sec"] >= values["time/reward_mean_sec"] >= 0.01
    assert values["time/checkpoint_mean_sec"] == 2.5
    with pytest.raises(ValueError, match="there are"):
        with m.phase("forwards"):
            pass


def test_ranks_are_reduced_through_a_communicator():
    lengths = [[5, 6], [7], [8, 9, 10]]

    def work(comm):
        m = Metrics(comm=comm, rl=True, extra=["my/gauge", Row("my/count", "counter", "sum", "things", "mine")])
        m.begin()
        m.add_batch(lengths[comm.rank], capacity=32)
        m.add("my/gauge", comm.rank, weight=comm.rank + 1)
        m.add("my/count", 2**53 + 1)
        m.add_rollouts(rewards=[float(comm.rank)] * 2, groups=[1, 1], responses=[3, 4], truncated=[True, False])
        m.add_tokens(logprobs=np.zeros(3, np.float32), old=np.zeros(3, np.float32), generator=np.zeros(3, np.float32))
        return m.update(4), m.rank(1), m["my/count"]

    results = ravel.comm.threads(3, work, timeout=30)
    values = results[0][0]
    drop = {name for name in values if name.startswith(("time", "memory", "throughput", "balance", "feed", "run/elapsed", "run/tokens", "rollout"))}
    assert len({json.dumps({k: v for k, v in r[0].items() if k not in drop}) for r in results}) == 1
    assert values["tokens/actual"] == 45 and values["throughput/max_seq_length"] == 10
    assert values["my/gauge"] == pytest.approx((0 + 2 + 6) / 6) and results[2][2] == 3 * (2**53 + 1)
    assert values["reward/mean"] == 1 and values["reward/zero_variance_group_share"] == 1
    assert values["response/truncated_share"] == 0.5 and values["token_mult_prob_error"] == 1
    assert results[0][1]["padded"] == 7


def test_anything_that_is_not_zero_is_a_truncated_response():
    m = Metrics(rl=True)
    m.add_rollouts(rewards=[0.0] * 4, truncated=[256, 0, 1, True])
    assert m.update(1)["response/truncated_share"] == 0.75


def test_a_reducer_that_raises_comes_out_as_itself():
    def all_reduce(values, op):
        raise BrokenPipeError(f"no {op} today")

    m = Metrics(reducer=(0, 2, all_reduce))
    with pytest.raises(BrokenPipeError, match="no sum today"):
        m.update(1)


def test_sinks_and_run_folders(tmp_path):
    m = Metrics(sinks=[f"jsonl:{tmp_path}/m.jsonl", f"csv:{tmp_path}/m.csv", "http:0"])
    m.run(tmp_path / "run", {"lr": 1e-3})
    m.sink(f"prometheus:{tmp_path}/m.prom", every=2)
    for step in (1, 2):
        m.begin()
        m.add_batch([4, 5], capacity=16)
        m.add("train/loss", 1.5)
        m.update(step)
    text = urllib.request.urlopen(f"http://127.0.0.1:{m.http_port}/metrics", timeout=60).read().decode()
    assert "train_loss" in text and "1.5000" in m.line and m.sinks_failed == 0
    state = m.state_dict()
    m.close()
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[1]["train/loss"] == 1.5
    assert json.loads((tmp_path / "run" / "config.json").read_text())["lr"] == 1e-3
    assert (tmp_path / "m.prom").exists() and len((tmp_path / "m.csv").read_text().splitlines()) == 3
    again = Metrics()
    again.load_state_dict(json.loads(json.dumps(state)))
    again.begin()
    again.add_batch([1], capacity=8)
    assert again.update(3)["run/consumed_samples"] == 5
    with pytest.raises(ravel.ArgumentError):
        again.sink("wandb:x")


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.sampled_from(["none", "attention", "full"]))
def test_flops_are_the_formula(lengths, recompute):
    shape = ravel.shape("qwen3-0.6b")
    done = ravel.metrics.flops(shape, lengths, recompute=recompute)
    tokens, pairs = sum(lengths), sum(n * (n + 1) // 2 for n in lengths)
    d, k = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = tokens * shape.hidden * (2 * d + 2 * k + 3 * shape.ffn) + 2 * d * pairs
    forward = 2 * (shape.layers * layer + tokens * shape.hidden * shape.vocab)
    again = {"none": 0, "attention": 2 * shape.layers * 2 * d * pairs, "full": 2 * shape.layers * layer}[recompute]
    assert done == (forward, 2 * forward, again, 3 * forward, 3 * forward + again)
    beside = ravel.metrics.flops(shape, lengths, recompute=recompute, adapter=1000)
    below = tokens * shape.hidden * (d + 2 * k)
    assert beside.forward == forward + 2000 * tokens
    assert beside.backward == 2 * (forward // 2 - below) + 2 * shape.layers * 2 * d * pairs + 4000 * tokens


def test_mfu_needs_a_known_gpu():
    assert ravel.metrics.gpu_peak("h100") > 9e14 and ravel.metrics.gpu_peak("a toaster") is None
    m = Metrics(shape="qwen3-0.6b", gpu="h100")
    m.begin()
    m.add_batch([100], capacity=128)
    time.sleep(0.001)
    values = m.update(1)
    assert values["throughput/mfu"] > 0 and m.flops == ravel.metrics.flops("qwen3-0.6b", [100])


def test_every_value_can_go_to_wandb():
    m = Metrics(shape="qwen3-0.6b", rl=True)
    m.begin()
    m.add_batch([10, 20], capacity=32)
    values = m.update(1)
    assert values and all(isinstance(v, (int, float)) for v in values.values())
    json.dumps(values)
    assert set(values) <= {row.name for row in m.rows} and {row.name for row in ravel.metrics.rows()} <= {r.name for r in m.rows}


@pytest.mark.parametrize("act, error, says", [
    (lambda m: m.add("train/los", 1), KeyError, "did you mean 'train/loss'"),
    (lambda m: m.add("throughput/mfu", 1), ValueError, "worked out"),
    (lambda m: m.add_batch([1.5], capacity=1), TypeError, "integers"),
    (lambda m: m.add_rollouts(rewards=[1.0], responses=[1, 2]), ValueError, "entries"),
    (lambda m: Metrics(gpus=1), ravel.ArgumentError, "did you mean"),
    (lambda m: Metrics(extra=[Row("x", "clock")]), ValueError, "must be one of"),
    (lambda m: Metrics(shape="qwen3-0.6c"), ravel.ArgumentError, "qwen3-0.6b"),
    (lambda m: ravel.metrics.flops("qwen3-0.6b", [0]), ValueError, "1 or more"),
    (lambda m: m.add_batch([3, -1], capacity=8), ValueError, "a length is -1"),
    (lambda m: m.update("one"), TypeError, "integer"),
    (lambda m: m.add("train/loss", "much"), ValueError, "much"),
    (lambda m: m.sink("josnl:x"), ravel.ArgumentError, 'did you mean "jsonl"'),
    (lambda m: (m.close(), m.values()), ValueError, "closed"),
])
def test_bad_input_is_an_exception_with_a_sentence(act, error, says):
    with pytest.raises(error, match=says):
        act(Metrics())


def test_a_refit_report_is_counted_as_in_c():
    import ctypes as C

    from ravel import _abi
    from ravel._lib import lib
    report = _abi.ravel_refit_report(size=C.sizeof(_abi.ravel_refit_report), bytes_needed=1000, bytes_moved=1010, seconds=2,
                                     overlap=0.75, gb_per_second=0.5)
    report.phase_most[:] = [0.5, 0.25, 1, 1.5, 0.125, 0.375, 0.0625]
    m = Metrics()
    lib.ravel_refit_count(C.byref(report), m._pointer)
    counted = {name: value for name, value in m.update(1).items() if name.startswith("refit/")}
    assert counted == ravel.RefitReport(report).metrics() and counted["refit/load_sec"] == 0.5
    m.add_all(ravel.RefitReport(report).metrics())
    assert m.update(2)["refit/bytes_moved"] == 1010
