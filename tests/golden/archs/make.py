"""Golden vectors of every architecture of the trainer, made by Hugging Face transformers with small random weights.

    python3 tests/golden/archs/make.py          writes beside itself; made with transformers 5.22.2, torch 2.15.0

For each architecture a folder as `save_pretrained` writes it (float32), and golden.safetensors: for sample i in 0..3
`ids/i` int32 and `nll/i` float64 (negative log-likelihood of tokens 1 .. L-1), and `grad/PARAMETER` float32: the gradient
of the mean over all those tokens. Forward and backward run in float64, each sample alone, eager attention.
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

HERE = pathlib.Path(__file__).parent
LENGTHS = [23, 1, 40, 7]
SIZES = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             head_dim=8, vocab_size=64, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
             attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

MODELS = {
    "llama2": (LlamaForCausalLM, LlamaConfig, dict(num_key_value_heads=6, rms_norm_eps=1e-5)),
    "llama3": (LlamaForCausalLM, LlamaConfig, dict(rope_parameters=LLAMA3)),
    "llama-linear": (LlamaForCausalLM, LlamaConfig,
                     dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))),
    "smollm": (LlamaForCausalLM, LlamaConfig,
               dict(num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True)),
    "mistral": (MistralForCausalLM, MistralConfig, dict(sliding_window=6)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(tie_word_embeddings=False)),
}


def make(name, model_class, config_class, extra):
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(config_class(**{**SIZES, **extra})).double()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_((torch.randn_like(p) * (0.3 if p.dim() == 2 else 0.1) + (1 if "norm" in key else 0)).float().double())
    out, nlls = {}, []
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(0, SIZES["vocab_size"], (1, length))
        out[f"ids/{i}"] = ids[0].to(torch.int32)
        if length == 1:
            continue
        logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
        nll = -logp.gather(1, ids[0, 1:, None])[:, 0]
        out[f"nll/{i}"] = nll.detach()
        nlls.append(nll)
    torch.cat(nlls).mean().backward()
    for key, p in model.named_parameters():
        out[f"grad/{key}"] = p.grad.float().contiguous()
    folder = HERE / name
    model.float().save_pretrained(folder)
    save_file(out, folder / "golden.safetensors")


for name, (model_class, config_class, extra) in MODELS.items():
    make(name, model_class, config_class, extra)
