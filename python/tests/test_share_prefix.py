"""Models of transformers, trainers of TRL and verl whose layers compute what rows share once: what is taken, what is refused, and that
gradients are those of unshared rows. `make test-frameworks` has the packages."""

import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from peers import engine
from test_tree import draw, padded

from ravel.adapters import transformers_tree, tree_rows, verl_trees

torch = pytest.importorskip("torch", reason="torch is not installed: sharing of prefixes was not tried")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: sharing of prefixes was not tried")

SHAPE = dict(vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_expand=2)


def tiny(family, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")
    return getattr(transformers, f"{family}ForCausalLM")(config(**{**SHAPE, **more}))


@pytest.mark.parametrize("family, more, why", [
    ("Bamba", MAMBA, "before layers.0.mamba.*outside of attention"),
    ("FalconH1", dict(MAMBA, mamba_d_ssm=128), "before layers.0.mamba.*outside of attention"),
    ("Jamba", dict(num_experts=2, num_experts_per_tok=1), "before layers.0.mamba.*outside of attention"),
    ("Lfm2", dict(layer_types=["conv", "full_attention"]), r"layers.0.*outside of attention"),
    ("Lfm2", dict(layer_types=["full_attention", "conv"]), r"layers.1.*outside of attention"),
    ("MiniMax", dict(num_local_experts=2, num_experts_per_tok=1), "before layers.1.self_attn.*outside of attention"),
    ("Qwen3Next", dict(num_experts=4, num_experts_per_tok=2), "layers.0.linear_attn.*outside of attention"),
    ("Mistral", dict(sliding_window=8), "mask is not of full causal attention"),
    ("GptOss", dict(num_local_experts=2, num_experts_per_tok=1), "mask is not of full causal attention"),
    ("Gemma2", dict(head_dim=16), "mask is not of full causal attention"),
    ("Llama", dict(attention_dropout=0.1), "dropout 0.1 in attention"),
    ("OPT", dict(ffn_dim=64, word_embed_proj_dim=64), "its head does not get what its layers give"),
])
def test_what_trees_are_not_exact_for_is_refused_by_name_and_left_alone(family, more, why):
    model = tiny(family, **more)
    forward, before = model.base_model.forward, model.config._attn_implementation
    model.eval()
    with pytest.raises(ValueError, match=f"{family}ForCausalLM cannot share prefixes: .*{why}"):
        tree_rows.share(model)
    assert model.base_model.forward == forward and model.config._attn_implementation == before
    assert not any(m.training or m._forward_hooks for m in model.modules())


def test_what_attention_is_given_and_trees_do_not_know_is_refused():
    layer = torch.nn.Identity()
    for options, why in ((dict(s_aux=torch.zeros(2)), "s_aux"), (dict(softcap=3.0), "softcap"), (dict(sliding_window=4), "sliding_window"),
                         (dict(is_causal=False), "not causal"), (dict(something_new=1), "something_new")):
        assert why in transformers_tree.refusal(layer, 0.0, options)
    assert transformers_tree.refusal(layer, 0.0, dict(position_ids=torch.zeros(1), sliding_window=None, softcap=None)) is None


def losses(model, ids, mask, weight):
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    logp = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return (logp * weight * mask[:, 1:] * mask[:, :-1]).sum() / 100


def compare(plain, tree, bound=2e-5):
    """Loss and gradients of both over padded rows that share prompts."""
    ids, mask = (torch.from_numpy(x) for x in padded(draw(9, groups=3, answers=4), True))
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=(ids.shape[0], ids.shape[1] - 1))).float()
    found = [losses(model, ids, mask, weight) for model in (plain, tree)]
    for loss in found:
        loss.backward()
    assert abs(found[0] - found[1]) < bound
    for a, b in zip(plain.parameters(), tree.parameters()):
        assert (a.grad is None) == (b.grad is None)
        assert a.grad is None or (a.grad - b.grad).abs().max() < bound * (1e-3 + a.grad.abs().max())


@pytest.mark.parametrize("family, more", [("Llama", {}), ("Qwen3", {}), ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)),
                                          ("Gemma", dict(head_dim=16)), ("DeepseekV3", dict(num_key_value_heads=4)), ("GPTNeoX", {}), ("Phi3", {}),
                                          ("Lfm2", dict(layer_types=["full_attention"] * 2))])
def test_gradients_of_families_are_those_of_unshared_rows(family, more):
    plain, tree = tiny(family, **more), tiny(family, **more)
    tree.load_state_dict(plain.state_dict())
    tree_rows.share(tree)
    compare(plain, tree)
    assert tree.base_model.ravel_saved > 100


def test_layers_of_a_stock_model_see_a_shared_token_once():
    plain, tree = tiny("Llama"), tiny("Llama")
    tree_rows.share(tree)
    tree_rows.share(tree)  # once is enough
    compare(plain, tree)
    saved, rows = tree.base_model.ravel_saved, draw(9, groups=3, answers=4)
    ids, mask = (torch.from_numpy(x) for x in padded(rows, True))
    out = [model.generate(ids[:2], attention_mask=mask[:2], max_new_tokens=4, do_sample=False) for model in (plain, tree)]
    assert torch.equal(*out) and tree.base_model.ravel_saved == saved > 100  # a cache: as before
    packed = torch.from_numpy(np.concatenate(rows)[None].astype(np.int64))
    positions = torch.from_numpy(np.concatenate([np.arange(len(row)) for row in rows])[None])
    alone = torch.cat([plain(input_ids=torch.from_numpy(row[None].astype(np.int64))).logits[0] for row in rows])
    assert (tree(input_ids=packed, position_ids=positions, use_cache=False).logits[0] - alone).abs().max() < 1e-4
    assert tree.base_model.ravel_saved > saved


@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_attention_is_the_models_own_where_nothing_is_shared_and_afterwards(before):
    plain, tree = (transformers.AutoModelForCausalLM.from_config(tiny("Llama").config, attn_implementation=before) for _ in range(2))
    tree.load_state_dict(plain.state_dict())
    forward = tree.base_model.forward
    ids = torch.arange(3, 13)[None]
    tree_rows.share(tree)
    assert torch.equal(*(model(input_ids=ids).logits for model in (plain, tree)))
    assert bool(tree(input_ids=ids, output_attentions=True).attentions) == (before == "eager")
    tree_rows.unshare(tree)
    assert tree.config._attn_implementation == before and tree.base_model.forward == forward


def test_a_model_of_peft_shares_too():
    peft = pytest.importorskip("peft", reason="peft is not installed: its models were not tried")
    plain, tree = (peft.get_peft_model(tiny("Llama"), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
                   for _ in range(2))
    tree.load_state_dict(plain.state_dict())
    tree_rows.share(tree)
    compare(plain, tree)
    assert tree.get_base_model().base_model.ravel_saved > 100


def test_a_kernel_of_a_gpu_is_tried_before_it_is_used(monkeypatch):
    """Two that stand for the kernels of a GPU: one sees the keys at the top left, as older ones do, one those at the bottom right."""
    def kernel(bottom):
        def run(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale):
            out = []
            for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
                rows, keys = torch.arange(b - a)[:, None], torch.arange(d - c)[None]
                mask = keys <= rows + ((d - c) - (b - a) if bottom else 0)
                each = [x.transpose(0, 1) for x in (q[a:b], k[c:d].repeat_interleave(2, 1), v[c:d].repeat_interleave(2, 1))]
                out.append(torch.nn.functional.scaled_dot_product_attention(*each, attn_mask=mask, scale=softmax_scale).transpose(0, 1))
            return torch.cat(out)
        return run

    tried = []
    monkeypatch.setattr(transformers_tree, "_KERNELS", tuple(lambda b=b: (tried.append(b), kernel(b))[1] for b in (False, True)))
    transformers_tree._kernel.cache_clear()
    assert transformers_tree._kernel(torch.device("cpu"), torch.float32, 4, 2, 16, 16) is not None and tried == [False, True]
    monkeypatch.setattr(transformers_tree, "_KERNELS", (lambda: kernel(False),))
    transformers_tree._kernel.cache_clear()
    with pytest.warns(UserWarning, match="no variable-length kernel"):
        assert transformers_tree._kernel(torch.device("cpu"), torch.float32, 4, 2, 16, 16) is None
    transformers_tree._kernel.cache_clear()


def test_trls_grpo_trainer_takes_the_same_step(monkeypatch, tmp_path):
    trl = pytest.importorskip("trl", reason="trl is not installed: its trainer was not tried")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from trl.trainer import grpo_trainer, rloo_trainer

    from ravel.adapters import trl as ours

    for module, kind in ((grpo_trainer, "GRPOTrainer"), (rloo_trainer, "RLOOTrainer")):  # put back afterwards
        monkeypatch.setattr(getattr(module, kind), "__init__", getattr(module, kind).__init__)
        monkeypatch.setattr(module, "shuffle_sequence_dict", module.shuffle_sequence_dict)
    words = {str(i): i for i in range(3, 1000)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    split = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="3"))
    split.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=split, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    before = tiny("Llama")
    before.save_pretrained(tmp_path / "model"), tokenizer.save_pretrained(tmp_path / "model")
    data = datasets.Dataset.from_dict({"prompt": [" ".join(str(3 + (7 * i + j) % 900) for j in range(40)) for i in range(16)]})
    steps = {}
    for share in (False, True):
        if share:
            ours.install(module=types_of_nothing(), share_prefix=True)
        args = trl.GRPOConfig(output_dir=str(tmp_path / "out"), per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=4,
                              max_completion_length=8, max_steps=1, learning_rate=1.0, optim="sgd", max_grad_norm=0, beta=0.1, seed=3,
                              report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True)
        trainer = trl.GRPOTrainer(str(tmp_path / "model"), reward_funcs=lambda completions, **_: [float(len(set(c))) for c in completions],
                                  args=args, train_dataset=data)
        trainer.train()
        steps[share] = torch.cat([(p.detach() - q).flatten() for p, q in zip(trainer.model.parameters(), before.parameters())])
        assert not share or trainer.model.base_model.ravel_saved > 500 < trainer.ref_model.base_model.ravel_saved
    assert (steps[True] - steps[False]).abs().max() < 1e-5 * steps[False].abs().max() and steps[False].abs().max() > 1e-3


def types_of_nothing():
    """A module that stands for trl.data_utils: this test switches the trainers alone."""
    import types

    return types.SimpleNamespace(__name__="nothing", pack_dataset=None)


def test_answers_stay_side_by_side_when_trl_shuffles():
    from ravel.adapters.trl_trees import shuffle_sequence_dict

    prompts = torch.arange(6)[torch.randperm(6)].repeat_interleave(4)
    batch = {"prompt_ids": torch.stack([prompts, prompts], 1), "row": torch.arange(24), "said": [str(i) for i in range(24)], "none": None,
             "scalar": torch.tensor(7)}
    orders = set()
    for _ in range(8):
        got = shuffle_sequence_dict(batch)
        assert sorted(got["row"].tolist()) == list(range(24)) and got["said"] == [str(i) for i in got["row"].tolist()]
        assert torch.equal(got["prompt_ids"], batch["prompt_ids"][got["row"]]) and got["none"] is None and got["scalar"] == 7
        blocks = got["row"].reshape(6, 4)
        assert (blocks.diff(dim=1) == 1).all() and (blocks[:, 0] % 4 == 0).all()
        orders.add(tuple(blocks[:, 0].tolist()))
    assert len(orders) > 4


def test_whole_groups_are_dealt_to_ranks_where_they_fit():
    rng = np.random.default_rng(2)
    for ranks, groups, answers in ((2, 8, 4), (4, 16, 3), (8, 64, 8)):
        uids = rng.permutation(np.repeat(np.arange(groups), answers)).tolist()
        lengths = rng.integers(1, 500, len(uids))
        parts = verl_trees.deal(lengths, uids, ranks)
        assert sorted(sum(parts, [])) == list(range(len(uids))) and {len(p) for p in parts} == {len(uids) // ranks}
        for part in parts:
            assert len({uids[i] for i in part}) == groups // ranks  # whole groups
            assert sum(uids[a] != uids[b] for a, b in zip(part, part[1:])) == groups // ranks - 1  # side by side
    assert verl_trees.deal([1] * 6, [1, 1, 1, 1, 2, 2], 2) is None and verl_trees.deal([1] * 5, range(5), 2) is None


VERL = """
import sys, types
sys.path[:0] = sys.argv[1:3]
import numpy as np, tensordict, torch, torch.distributed as dist, transformers, trl
from test_tree import draw

trl.AutoModelForCausalLMWithValueHead = type("ValueHead", (), {})  # TRL has it no more; verl 0.9.1 asks for it
from verl.plugin.platform import platform_cuda, set_platform

class Cpu(platform_cuda.PlatformCUDA):
    device_name, device_module = "cpu", torch.cpu

    def current_device(self):
        return "cpu"

set_platform(Cpu())
import ravel.adapters.verl
import verl.workers.engine.fsdp.transformer_impl as engines
from verl import DataProto
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

folder = sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
engines.log_gpu_memory_usage = lambda *a, **k: None
rows = [torch.from_numpy(row.astype(np.int64)) for row in draw(5, groups=4, answers=4)]
jagged = lambda parts: torch.nested.as_nested_tensor(parts, layout=torch.jagged)

def batch():
    fields = {"input_ids": jagged(rows), "position_ids": jagged([torch.arange(len(r)) for r in rows]), "loss_mask": jagged([torch.ones(len(r)) for r in rows])}
    made = tensordict.TensorDict(fields, batch_size=len(rows))
    tensordict_utils.assign_non_tensor(made, temperature=1.0, use_remove_padding=True, max_token_len_per_gpu=200, use_dynamic_bsz=True)
    return made

def loss(model_output, data, dp_group=None):
    weight = torch.sin(data["input_ids"].values().float())
    weight[data["input_ids"].offsets()[1:] - 1] = 0  # what follows the last token of a row is another row's
    return (model_output["log_probs"].values() * weight).sum() / 100, {}

found = []
for share in (False, True):
    if share:
        places = ravel.adapters.verl.install(share_prefix=True)
        assert len(places) == len(set(places)) and ravel.adapters.verl.install(share_prefix=True)
    model = HFModelConfig(path=folder + "/model", load_tokenizer=False, use_remove_padding=True, enable_gradient_checkpointing=False,
                          override_config={"attn_implementation": "sdpa"})
    config = FSDPEngineConfig(strategy="fsdp2", model_dtype="fp32", use_torch_compile=False, mixed_precision=dict(param_dtype="fp32"))
    engine = engines.FSDPEngineWithLMHead(model, config, FSDPOptimizerConfig(lr=1e-3, total_training_steps=10), CheckpointConfig())
    engine._build_model_optimizer()
    out = engine.forward_backward_batch(batch(), loss)
    grads = torch.cat([p.grad.full_tensor().flatten() for p in engine.module.parameters()])
    found.append((grads, len(out["loss"])))
assert engine.module.base_model.ravel_saved > 200, engine.module.base_model.ravel_saved
assert (found[0][0] - found[1][0]).abs().max() < 1e-5 * found[0][0].abs().max() > 0
assert found[1][1] < found[0][1]  # fewer micro-batches: the budget counts shared tokens once

workers = types.SimpleNamespace(_dispatch_info={"actor": [0, 1]})
rng = np.random.default_rng(0)
uids, lengths = np.repeat([f"u{i}" for i in range(8)], 4)[rng.permutation(32)], rng.integers(1, 40, 32)
mask = (torch.arange(40)[None] < torch.from_numpy(lengths)[:, None]).long()
data = DataProto.from_single_dict({"attention_mask": mask, "row": torch.arange(32), "uid": uids.astype(object)})
trainer = RayPPOTrainer.__new__(RayPPOTrainer)
trainer.actor_rollout_wg, trainer.use_prefix_grouper = workers, False
metrics = {}
trainer._balance_batch(data, metrics)
assert data.batch["attention_mask"].sum(-1).tolist() == lengths[data.batch["row"]].tolist() and metrics
after = data.non_tensor_batch["uid"].reshape(2, 16)
assert not set(after[0]) & set(after[1]) and all(len(set(after.reshape(8, 4)[i])) == 1 for i in range(8)), after

class Trainer(trainer_base.PPOTrainer):
    __abstractmethods__ = frozenset()

trainer = object.__new__(type("T", (trainer_base.PPOTrainer,), {n: None for n in trainer_base.PPOTrainer.__abstractmethods__}))
trainer.actor_rollout_wg = workers
trainer._get_required_batch_multiple = lambda dp: dp
trainer.tokenizer = types.SimpleNamespace(eos_token_id=2)
meta = trainer_base.KVBatchMeta(partition_id="train", keys=[f"{u}_0_{i}" for i, u in enumerate(uids)], tags=[{"seq_len": int(n)} for n in lengths])
meta = trainer._balance_batch(meta, {})
after = np.array([key.split("_")[0] for key in meta.keys]).reshape(8, 4)
assert all(len(set(group)) == 1 for group in after), after
print("fine")
"""


def test_verls_own_engine_and_trainers_share(tmp_path):
    """FSDPEngine with FSDP2 over gloo on this processor; the two trainers' own _balance_batch over a DataProto and a KVBatchMeta."""
    for package in ("ray", "tensordict", "transfer_queue", "trl", "codetiming", "torchdata", "hydra"):
        pytest.importorskip(package, reason=f"{package} is not installed: verl's own classes were not tried")
    package = engine("verl/__init__.py").parent
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "verl").symlink_to(package)
    tiny("Llama").save_pretrained(tmp_path / "model")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(VERL), str(tmp_path / "path"), str(pathlib.Path(__file__).parent), str(tmp_path)],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout[-2000:] + done.stderr[-4000:]
