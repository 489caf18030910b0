"""Drop-ins for the seams of UniRL and of Megatron's RL metrics: the recorded contract, and beside checkouts (make test-peers) their code."""

import ast
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from peers import checkout

from ravel.adapters import megatron_rl, unirl


class Track:
    """Of UniRL's RolloutTrack: batch_size, segment.lengths, conditions["prompt"].attention_mask and select."""

    def __init__(self, responses, prompts=None, order=None):
        self.responses, self.prompts, self.order = responses, prompts, order
        self.batch_size, self.segment = len(responses), types.SimpleNamespace(lengths=np.asarray(responses))
        mask = None if prompts is None else np.arange(max(prompts)) < np.asarray(prompts)[:, None]
        self.conditions = {} if prompts is None else {"prompt": types.SimpleNamespace(attention_mask=mask)}

    def select(self, order):
        return Track([self.responses[i] for i in order], None if self.prompts is None else [self.prompts[i] for i in order], order)


def size(model, prompts, responses, part):
    p, r = [prompts[i] for i in part] if prompts else [0] * len(part), [responses[i] for i in part]
    return sum(p) + sum(r) if model == "sum" else (max(p) + max(r)) * len(part)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=4, max_size=48), st.booleans(), st.sampled_from([1, 2, 4]),
       st.sampled_from(["sum", "dense"]))
def test_unirl_micro_batches_keep_the_budget_and_the_updates(samples, with_prompts, updates, model):
    samples = samples[:len(samples) // updates * updates]
    prompts, responses = [p for p, _ in samples] if with_prompts else None, [r for _, r in samples]
    track, ranges = unirl.TokenBudgetPlanner(token_budget=200, cost_model=model).arrange(
        Track(responses, prompts), num_updates=updates, micro_batch_size=1)
    each = len(samples) // updates
    assert len(ranges) == updates and sorted(track.order) == list(range(len(samples)))
    for number, update in enumerate(ranges):
        block = range(number * each, (number + 1) * each)
        assert [i for a, b in update for i in range(a, b)] == list(block) and sorted(track.order[i] for i in block) == list(block)
        assert all(b > a and size(model, track.prompts, track.responses, range(a, b)) <= 200 for a, b in update)


def test_unirl_budget_null_counts_and_what_is_refused():
    null = unirl.TokenBudgetPlanner(token_budget=None)
    track = Track([5] * 8)
    assert null.arrange(track, num_updates=2, micro_batch_size=3) == (track, [[(0, 3), (3, 4)], [(4, 7), (7, 8)]])
    null.validate(types.SimpleNamespace(loss_agg_mode="token-mean"))
    tokens = unirl.TokenBudgetPlanner(token_budget=100)
    for mode in ("seq-mean-token-sum-norm", "seq-mean-token-mean"):
        tokens.validate(types.SimpleNamespace(loss_agg_mode=mode))
    for wrong in (types.SimpleNamespace(loss_agg_mode="token-mean"), types.SimpleNamespace()):
        with pytest.raises(ValueError, match="seq-mean"):
            tokens.validate(wrong)
    with pytest.raises(ValueError, match="evenly divide"):
        tokens.arrange(track, num_updates=3, micro_batch_size=1)
    long = Track([50, 999, 60])
    with pytest.raises(ValueError, match="999"):
        tokens.arrange(long, num_updates=1, micro_batch_size=1)
    alone, ranges = unirl.TokenBudgetPlanner(token_budget=100, oversize="alone").arrange(long, num_updates=1, micro_batch_size=1)
    assert [1] in [[alone.order[i] for i in range(a, b)] for a, b in ranges[0]]
    for keywords in ({"token_budget": 0}, {"token_budget": 5, "cost_model": "cubic"}, {"token_budget": 5, "oversize": "drop"}):
        with pytest.raises(ValueError):
            unirl.TokenBudgetPlanner(**keywords)


def functions(file, *names, **scope):
    """Some functions of a file, without what the file imports."""
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in tree.body:
        node.returns = None
        for argument in node.args.args + node.args.kwonlyargs:
            argument.annotation = None
    exec(compile(tree, str(file), "exec"), scope)
    return [scope[name] for name in names]


def test_unirl_needs_more_micro_batches_than_ours():
    from typing import List

    packed, padded = functions(checkout("UniRL", "unirl/train/stack.py"), "_pack_micros_sum", "_pack_micros_2d", List=List)
    rng, count = np.random.default_rng(1), {"sum": [0, 0], "dense": [0, 0]}
    for _ in range(20):
        prompts, responses = rng.integers(10, 400, 64).tolist(), rng.integers(10, 2000, 64).tolist()
        lengths = [p + r for p, r in zip(prompts, responses)]
        count["sum"][0] += len(packed(indices=range(64), lengths=lengths, token_budget=10240))
        count["dense"][0] += len(padded(indices=range(64), prompt_lens=prompts, resp_lens=responses, token_budget=10240))
        for model in count:
            track = Track(responses, prompts)
            count[model][1] += len(unirl.TokenBudgetPlanner(token_budget=10240, cost_model=model).arrange(
                track, num_updates=1, micro_batch_size=1)[1][0])
    assert all(ours <= theirs for theirs, ours in count.values()), count


# ---- Megatron's RL metrics --------------------------------------------------------------------------------------------


def context():
    """The example of Megatron's own test: sequences of 5, 3, 10 and 4 tokens in two bins of 16."""
    info = megatron_rl.PackingInfo([[0, 1], [2, 3]], {0: [0, 5], 1: [0, 10]}, [5, 3, 10, 4], [0, 0, 1, 1], "fifo")
    return types.SimpleNamespace(packing_info=info, packed_trajs=np.zeros((2, 16)))


def test_megatron_rl_figures():
    ctx = context()
    assert megatron_rl.get_packing_actual_tokens(ctx) == 22 and megatron_rl.get_packing_compute_tokens(ctx) == 32
    assert megatron_rl.get_packing_avg_seq_length(ctx) == 5.5
    assert megatron_rl.get_packing_efficiency(ctx, ranks=4) == 22 / 128
    line = megatron_rl.throughput_line(ctx, seconds=2.0, ranks=1, gpus=2)
    assert line == (" compute_toks/s: 16 | compute_toks/s/gpu: 8 | actual_toks/s: 11 | actual_toks/s/gpu: 6 | packing_eff: 68.8% |"
                    " avg_seq_len: 5.5 |")


def test_megatron_rl_figures_are_those_of_megatron(monkeypatch):
    names = ["get_packing_actual_tokens", "get_packing_compute_tokens", "get_packing_efficiency", "get_packing_avg_seq_length"]
    mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: 4)
    theirs = functions(checkout("Megatron-LM", "megatron/rl/sequence_packing_utils.py"), *names, mpu=mpu)
    monkeypatch.setitem(sys.modules, "megatron.core.mpu", mpu)
    assert [f(context()) for f in theirs] == [getattr(megatron_rl, name)(context()) for name in names]
