"""Golden vectors of every architecture of the trainer, made by Hugging Face transformers with small random weights.

    python3 tests/golden/archs/make.py [FOLDER ...]   writes beside itself, all or these; made with
    transformers 5.22.2 and torch 2.15.0 up to qwen3, transformers 5.23.0 from gemma3 on

For each architecture a folder as `save_pretrained` writes it (float32), and golden.safetensors: for sample i in 0..3
`ids/i` int32 and `nll/i` float64 (negative log-likelihood of tokens 1 .. L-1), and `grad/PARAMETER` float32: the gradient
of the mean over all those tokens; `greedy` int32: a prompt of 9 tokens and the 40 likeliest tokens after it. Forward and
backward run in float64, each sample alone, eager attention. Of models with experts also `load` float64 [layers with experts]: the
load loss of each over all tokens of the four samples, `load_grad/PARAMETER` of some: the gradient of their mean, and `load_all` float64
[1], `load_all_grad/PARAMETER`: the same over all layers together, as the models train it.
`make.py --load FOLDER ...` only adds load_all to folders that are there, `make.py --greedy FOLDER ...` only greedy answers.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
LENGTHS = [23, 1, 40, 7]
PROMPT = [5, 9, 40, 3, 3, 17, 22, 31, 40]
SIZES = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             head_dim=8, vocab_size=64, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None,
             attn_implementation="eager")  # a pad token would have no gradient
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=4, vocab_size=48)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
GEMMA3 = dict(full_attention=dict(rope_type="linear", rope_theta=100000.0, factor=4.0),
              sliding_attention=dict(rope_type="default", rope_theta=1000.0))
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=0.5)
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3, 1.2], long_factor=[1.5, 2.5, 4.0, 6.5],
            original_max_position_embeddings=16)
EXPERTS = dict(experts_implementation="eager", num_experts=8, num_experts_per_tok=2, router_aux_loss_coef=0.02)

MODELS = {
    "llama2": ("Llama", dict(num_key_value_heads=6, rms_norm_eps=1e-5)),
    "llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama-linear": ("Llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "smollm": ("Llama", dict(num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True)),
    "mistral": ("Mistral", dict(sliding_window=6)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=False)),
    "qwen3-tied": ("Qwen3", dict(SMALL, tie_word_embeddings=True)),
    "qwen3-yarn": ("Qwen3", dict(SMALL, head_dim=16, tie_word_embeddings=False, rope_parameters=YARN)),
    "gemma3": ("Gemma3Text", dict(SMALL, num_hidden_layers=4, sliding_window=6, query_pre_attn_scalar=12,
                                  layer_types=(["sliding_attention"] * 2 + ["full_attention"]) + ["sliding_attention"],
                                  rope_parameters=GEMMA3)),
    "gemma3-images": ("Gemma3", dict(SMALL, num_hidden_layers=3, sliding_window=6,
                                    layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "smollm3": ("SmolLM3", dict(SMALL, num_hidden_layers=3, no_rope_layers=[1, 0, 1], no_rope_layer_interval=2,
                                rope_parameters=dict(rope_type="default", rope_theta=50000.0))),
    "olmo2": ("Olmo2", dict(SMALL)),
    "phi3": ("Phi3", dict(SMALL, sliding_window=6)),
    "phi3-long": ("Phi3", dict(SMALL, hidden_size=32, num_attention_heads=2, head_dim=16, partial_rotary_factor=0.5,
                               original_max_position_embeddings=16, rope_parameters=LONG)),
    "granite": ("Granite", dict(SMALL, embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.2,
                                logits_scaling=2.5, tie_word_embeddings=True)),
    "qwen3_moe": ("Qwen3Moe", dict(SMALL, **EXPERTS, moe_intermediate_size=16, norm_topk_prob=True, num_hidden_layers=3,
                                   mlp_only_layers=[1])),
    "mixtral": ("Mixtral", dict(SMALL, experts_implementation="eager", num_local_experts=8, num_experts_per_tok=2,
                                intermediate_size=16, sliding_window=None)),
    "olmoe": ("Olmoe", dict(SMALL, **EXPERTS, head_dim=4, intermediate_size=16, norm_topk_prob=False)),
}


def load_losses(model, samples):
    """The load loss of transformers: of each layer by itself, and of all layers together, as its models have it."""
    import importlib
    module = importlib.import_module(type(model).__module__)
    outputs = [model(input_ids=ids, output_router_logits=True).router_logits for ids in samples]
    layers = tuple(torch.cat(logits) for logits in zip(*outputs))
    sizes = layers[0].shape[-1], model.config.num_experts_per_tok
    each = torch.stack([module.load_balancing_loss_func((logits,), *sizes) for logits in layers])
    return each, module.load_balancing_loss_func(layers, *sizes)


def add_load(out, model, loss, name):
    model.zero_grad()
    loss.backward(retain_graph=True)
    for key, p in model.named_parameters():
        if p.grad is not None and ("embed" in key or ".gate.weight" in key):
            out[f"{name}/{key}"] = p.grad.float().contiguous()


def images(config):
    """A model with images around the model of text, whose config leaves the rope's bases to the family."""
    vision = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=8, patch_size=4)
    return transformers.Gemma3Config(text_config=transformers.Gemma3TextConfig(**config), vision_config=vision,
                                     mm_tokens_per_image=4, attn_implementation="eager")


def forget(folder, *keys):
    """Keys of the model of text that a config may leave to the defaults."""
    config = json.loads((folder / "config.json").read_text())
    for key in keys:
        del config["text_config"][key]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def reopen(name, model_class, **how):
    from safetensors.torch import load_file
    kind = getattr(transformers, model_class.replace("Gemma3Text", "Gemma3") + "ForCausalLM")
    model = kind.from_pretrained(HERE / name, attn_implementation="eager", **how).double()
    return load_file(HERE / name / "golden.safetensors"), model


def greedy(model):
    """With the factors of long sequences from the first token on, where a model has two kinds."""
    config = model.config
    positions = config.original_max_position_embeddings if "long_factor" in str(config) else 0
    if positions:
        config.original_max_position_embeddings = config.rope_parameters["original_max_position_embeddings"] = 1
    ids = torch.tensor([PROMPT])
    for _ in range(40):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    if positions:
        config.original_max_position_embeddings = config.rope_parameters["original_max_position_embeddings"] = positions
    return ids[0].to(torch.int32)


def add_greedy(name, model_class):
    out, model = reopen(name, model_class)
    out["greedy"] = greedy(model)
    save_file(out, HERE / name / "golden.safetensors")


def add_load_all(name, model_class):
    out, model = reopen(name, model_class, experts_implementation="eager")
    each, together = load_losses(model, [out[f"ids/{i}"].long()[None] for i in range(len(LENGTHS))])
    assert torch.allclose(each, out["load"])
    out["load_all"] = together.detach()[None]
    add_load(out, model, together, "load_all_grad")
    save_file(out, HERE / name / "golden.safetensors")


def make(name, model_class, extra):
    torch.manual_seed(sum(map(ord, name)))
    sizes = {**SIZES, **extra}
    if model_class == "Gemma3":
        model, config = transformers.Gemma3ForConditionalGeneration(images(sizes)).double().eval(), images(sizes).text_config
    else:
        config = getattr(transformers, model_class + "Config")(**sizes)
        model = getattr(transformers, model_class.replace("Gemma3Text", "Gemma3") + "ForCausalLM")(config).double()
    with torch.no_grad():
        for key, p in model.named_parameters():
            one = 1 if "norm" in key and "Gemma" not in model_class else 0
            p.copy_((torch.randn_like(p) * (0.3 if p.dim() >= 2 else 0.1) + one).float().double())
    out, nlls, samples = {}, [], []
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(0, config.vocab_size, (1, length))
        out[f"ids/{i}"] = ids[0].to(torch.int32)
        samples.append(ids)
        if length == 1:
            continue
        logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        nll = -logp.gather(1, ids[0, 1:, None])[:, 0]
        out[f"nll/{i}"] = nll.detach()
        nlls.append(nll)
    torch.cat(nlls).mean().backward()
    for key, p in model.named_parameters():
        if p.grad is not None:
            out[f"grad/{key.replace('language_model.', '')}"] = p.grad.float().contiguous()
    if hasattr(config, "num_experts_per_tok"):
        loads, together = load_losses(model, samples)
        out["load"], out["load_all"] = loads.detach(), together.detach()[None]
        add_load(out, model, loads.mean(), "load_grad")
        add_load(out, model, together, "load_all_grad")
    out["greedy"] = greedy(model)
    folder = HERE / name
    model.float().save_pretrained(folder)
    if model_class == "Gemma3":
        forget(folder, "rope_parameters", "query_pre_attn_scalar")
    save_file(out, folder / "golden.safetensors")


for name, (model_class, extra) in MODELS.items():
    if sys.argv[1:2] in (["--load"], ["--greedy"]):
        if name in sys.argv[2:]:
            (add_load_all if sys.argv[1] == "--load" else add_greedy)(name, model_class)
    elif not sys.argv[1:] or name in sys.argv[1:]:
        make(name, model_class, extra)
