"""Drop-ins for the seams of UniRL and of Megatron's RL metrics: the recorded contract, and beside checkouts (make test-peers) their code."""

import ast
import contextlib
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from peers import checkout, load

from ravel.adapters import megatron_rl, nemo_rl_refit, unirl, vllm


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
    for loss in ({"loss_agg_mode": "seq-mean-token-sum-norm"}, {"loss_agg_mode": "seq-mean-token-mean"}, {"loss_weighting": "token"}):
        tokens.validate(types.SimpleNamespace(**loss))
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


def test_unirl_ranks_have_as_many_micro_batches(monkeypatch):
    """What the ranks agree on is computed by hand: each is asked alone first, then all with the largest numbers."""
    rng = np.random.default_rng(7)
    tracks = [Track(rng.integers(1, most, 24).tolist()) for most in (60, 100, 140)]
    planner, told = unirl.TokenBudgetPlanner(token_budget=200, cost_model="sum"), []
    monkeypatch.setattr(unirl, "_largest", lambda values, group: told.append(values) or values)
    alone = [len(planner.arrange(track, num_updates=1, micro_batch_size=1)[1][0]) for track in tracks]
    assert len(set(alone)) > 1
    most = [max(column) for column in zip(*told)]
    monkeypatch.setattr(unirl, "_largest", lambda values, group: most)
    for track in tracks:
        done, (update,) = planner.arrange(track, num_updates=1, micro_batch_size=1)
        assert len(update) == max(alone) and sorted(done.order) == list(range(24))
        assert all(b > a and sum(done.responses[a:b]) <= 200 for a, b in update)
    most[2] = 1 - max(alone)  # a rank with fewer samples than that: an error on all of them
    for track in tracks:
        with pytest.raises(ValueError, match="raise token_budget"):
            planner.arrange(track, num_updates=1, micro_batch_size=1)


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


def test_unirl_needs_more_micro_batches_than_ours(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed: not compared with UniRL's planner")
    file, up = checkout("UniRL", "unirl/train/stack/planner/packed.py"), "unirl__train__stack__planner"
    stubs = {"unirl__algorithms__base": {"StageAlgorithm": object}, "unirl__types__sample": {"Part": object},
             up + "__count": {"_count_plan": None},
             up + "__types": {"Plan": list, "UpdatePlan": list, "_positive_int": lambda name, value: int(value),
                              "_update_ranges": lambda total_size, num_updates: [(0, total_size)]}}
    theirs = load(monkeypatch, "unirl.train.stack.planner.packed", file, **stubs).TokenBudgetPlanner
    rng, count = np.random.default_rng(1), {"sum": [], "dense": []}
    for _ in range(20):
        prompts, responses = rng.integers(10, 400, 64), rng.integers(10, 2000, 64)
        for model, found in count.items():
            track = Track(responses, prompts)
            ours = unirl.TokenBudgetPlanner(token_budget=10240, cost_model=model).arrange(track, num_updates=1, micro_batch_size=1)
            track.segment.lengths = torch.from_numpy(responses)
            track.conditions["prompt"].attention_mask = torch.from_numpy(track.conditions["prompt"].attention_mask)
            their = theirs(token_budget=10240, cost_model=model).arrange(track, num_updates=1, micro_batch_size=1)
            assert sorted(ours[0].order) == sorted(their[0].order) == list(range(64))
            found.append((len(their[1][0]), len(ours[1][0])))
    for found in count.values():
        assert all(ours <= their for their, ours in found), count
    for loss in (dict(loss_agg_mode="seq-mean-token-mean"), dict(loss_agg_mode="token-mean"), dict(loss_weighting="token")):
        said = []
        for planner in (theirs, unirl.TokenBudgetPlanner):
            try:
                said.append(planner(token_budget=100).validate(types.SimpleNamespace(**loss)))
            except ValueError:
                said.append(ValueError)
        assert said[0] is said[1], loss


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


# ---- NeMo-RL's packed broadcast: what tests/unit/utils/test_packed_tensor.py asks (7ea279ab), in host memory ------------------


class Sent:
    """A group that keeps what is broadcast, or gives out what was."""

    device = "cpu"

    def __init__(self, given=None):
        self.given, self.sent = given, []

    def broadcast(self, tensor, src):
        if self.given is not None:
            tensor.copy_(self.given[len(self.sent)])
        self.sent.append(tensor.clone())


def weights(torch):
    made = {"a": torch.randn(10, 20), "bias": torch.randn(10), "b": torch.randn(20, 30), "half": torch.randn(30, 40).half(),
            "scalar": torch.tensor(42.0, dtype=torch.bfloat16), "odd": torch.arange(3, dtype=torch.uint8),
            "transposed": torch.randn(4, 5).T, "none": torch.empty(0, 3)}
    return made, {name: (list(t.shape), t.dtype) for name, t in made.items()}


def theirs_without_a_gpu(monkeypatch, torch):
    """NeMo-RL's module, whose "cuda" is the host."""
    class Stream:
        def synchronize(self):
            pass

    class Torch:
        cuda = types.SimpleNamespace(Stream=Stream, stream=lambda stream: contextlib.nullcontext(), current_device=lambda: "cpu")

        def __getattr__(self, name):
            return getattr(torch, name)

        def empty(self, *shape, device=None, **keywords):
            return torch.empty(*shape, **keywords)

    module = load(monkeypatch, "nemo_rl.utils.packed_tensor", checkout("RL", "nemo_rl/utils/packed_tensor.py"))
    module.torch, module.get_target_packed_tensor_size = Torch(), lambda: 2000
    return module


def refit(produce, consume, made, announced):
    out, got = Sent(), {}
    produce(iter(made.items()), out, 0, lambda item: item[1])
    consume(iter(announced.items()), Sent(out.sent), 0, got.update)
    assert list(got) == list(made)
    for name, tensor in made.items():
        assert got[name].shape == tensor.shape and got[name].dtype == tensor.dtype and (got[name] == tensor).all(), name
    return out.sent


def test_packed_broadcast_keeps_nemos_contract(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed: NeMo-RL's broadcast was not tried")
    made, announced = weights(torch)
    home = types.ModuleType("nemo_rl.utils.packed_tensor")
    home.get_target_packed_tensor_size, home.get_num_buffers = (lambda: 2000), lambda: 2  # as the tests of NeMo-RL patch it
    monkeypatch.setitem(sys.modules, home.__name__, home)
    for _ in range(2):  # buffers live from refit to refit
        sent = refit(nemo_rl_refit.packed_broadcast_producer, nemo_rl_refit.packed_broadcast_consumer, made, announced)
        assert [t.numel() for t in sent] == [800 + 40 + 2400, 2400, 2 + 3 + 80] and all(t.dtype == torch.uint8 for t in sent)
    group = Sent()
    nemo_rl_refit.packed_broadcast_producer(iter([torch.ones(1000, 1000)]), group, 0, lambda t: t, buffer_size_bytes=100, num_buffers=1)
    assert [t.numel() for t in group.sent] == [4_000_000]  # a tensor is never cut there
    group = Sent()
    nemo_rl_refit.packed_broadcast_producer(iter([torch.ones(10, 10)] * 20), group, 0, lambda t: t)
    assert len(group.sent) > 1 and sum(t.numel() for t in group.sent) == 20 * 400
    nemo_rl_refit.packed_broadcast_producer(iter(()), group, 0, lambda t: t)
    with pytest.raises(TypeError, match="must give a tensor"):
        nemo_rl_refit.packed_broadcast_producer(iter([1]), group, 0, lambda t: t)


def test_packed_broadcast_is_nemos_byte_for_byte(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed: NeMo-RL's broadcast was not tried")
    theirs, (made, announced) = theirs_without_a_gpu(monkeypatch, torch), weights(torch)
    ours = nemo_rl_refit.packed_broadcast_producer, nemo_rl_refit.packed_broadcast_consumer
    both = theirs.packed_broadcast_producer, theirs.packed_broadcast_consumer
    sent = [refit(produce, consume, made, announced) for produce in (ours[0], both[0]) for consume in (ours[1], both[1])]
    assert all(len(s) == len(sent[0]) and all(torch.equal(x, y) for x, y in zip(s, sent[0])) for s in sent)
    assert len(nemo_rl_refit.install(theirs)) == 2 and theirs.packed_broadcast_producer is ours[0]


def test_packed_broadcast_is_chosen_by_a_line_or_a_variable(monkeypatch, caplog):
    def producer(iterator, group, src, post_iter_func):
        pass

    def consumer(iterator, group, src, post_unpack_func):
        pass

    def newer(iterator, group, src, post_unpack_func, *, return_iterator=False):
        pass

    home = types.ModuleType("nemo_rl.utils.packed_tensor")
    home.packed_broadcast_producer, home.packed_broadcast_consumer = producer, newer
    worker = types.ModuleType("nemo_rl.models.worker")
    worker.packed_broadcast_consumer = consumer
    for module in (types.ModuleType("nemo_rl"), types.ModuleType("nemo_rl.utils"), home, worker):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(AttributeError, match="takes return_iterator, which the adapter does not know"):
        nemo_rl_refit.install()
    monkeypatch.setenv("RAVEL_NEMO_RL_REFIT", "1")
    vllm.register()
    assert home.packed_broadcast_producer is producer and "NeMo-RL's own broadcast stays" in caplog.text
    home.packed_broadcast_consumer = consumer
    monkeypatch.setenv("RAVEL_NEMO_RL_REFIT", "0")
    vllm.register()
    assert home.packed_broadcast_consumer is consumer
    monkeypatch.setenv("RAVEL_NEMO_RL_REFIT", "1")
    vllm.register()  # as vLLM's plug-in in every worker
    assert home.packed_broadcast_producer is nemo_rl_refit.packed_broadcast_producer
    assert worker.packed_broadcast_consumer is nemo_rl_refit.packed_broadcast_consumer
