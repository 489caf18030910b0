"""What `ravel export` writes, read by pip's gguf package: every family of tests/golden/archs in every type.

    python3 tests/text/gguf_files.py RAVEL FOLDER

Names come from gguf's own map of Hugging Face's names, values from the safetensors files, q8_0 from gguf's quantization. Then a
tokenizer of each kind. Ends with "N passed, N failed".
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import gguf
import numpy as np
from gguf import quants

RAVEL, ROOT = sys.argv[1], sys.argv[2]
ARCH = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "smollm3": "smollm3", "granite": "granite", "qwen2": "qwen2",
        "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "olmoe": "olmoe", "gemma3_text": "gemma3", "olmo2": "olmo2", "phi3": "phi3"}
SQUARE = {"qwen2", "olmo2", "olmoe", "phi3"}  # all heads together are as wide as the model
PERMUTED = {"llama", "smollm3", "granite"}
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0}


def safetensors(folder):
    """Names and float32 arrays."""
    out = {}
    for path in glob.glob(os.path.join(folder, "model*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            data = f.read()
        for name, t in header.items():
            if name == "__metadata__":
                continue
            raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[t["dtype"]]
            values = np.frombuffer(raw, kind)
            if t["dtype"] == "BF16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            out[name] = values.astype(np.float32).reshape(t["shape"])
    return out


def permute(weights, heads):
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def wanted(folder, config, arch):
    """gguf names and arrays, as llama.cpp's converter makes them."""
    code = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(code, config["num_hidden_layers"])
    out, experts = {}, {}
    tensors = safetensors(folder)
    if any(name.startswith("language_model.") for name in tensors):  # of a model with images what reads text
        tensors = {n.removeprefix("language_model."): v for n, v in tensors.items() if n.startswith("language_model.")}
    for name, values in tensors.items():
        if arch in PERMUTED and re.search(r"\.[qk]_proj\.weight$", name):
            heads = config["num_attention_heads"] if ".q_proj" in name else config.get("num_key_value_heads", config["num_attention_heads"])
            values = permute(values, heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        found = re.search(r"^(.*experts)\.(\d+)\.(\w+)\.weight$", name)
        if found:
            experts.setdefault(f"{found[1]}.{found[3]}.weight", {})[int(found[2])] = values
            continue
        out[names.get_name(name, try_suffixes=(".weight", ".bias")) or name] = values
    for name, parts in experts.items():
        stem = names.get_name(name, try_suffixes=(".weight",))
        out[stem] = np.stack([parts[i] for i in range(len(parts))])
    return out


def export(folder, kind, *more):
    out = os.path.join(ROOT, "model.gguf")
    subprocess.run([RAVEL, "export", folder, "--gguf", out, "--type", kind, *more], check=True, stdout=subprocess.DEVNULL)
    return gguf.GGUFReader(out)


def fresh(config):
    """A new model of this shape, by ravel train."""
    shape, run, folder = (os.path.join(ROOT, name) for name in ("shape.json", "run", "model"))
    for old in (run, folder):
        shutil.rmtree(old, ignore_errors=True)
    with open(shape, "w") as f:
        json.dump(config, f)
    subprocess.run([RAVEL, "train", "sft", "--shape", shape, "--mock", '{"type": "constant", "mean_seq_len": 8, "count": 2}',
                    "--steps", "1", "--batch", "2", "--run", run, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(glob.glob(run + "/checkpoints/step-*")[0], folder)
    return folder


def as_llama_cpp_has_it(folder, config):
    """The golden models of these families have what llama.cpp takes as given otherwise: a changed config, or a new model."""
    layers = config["num_hidden_layers"]
    if config["model_type"] == "qwen3_moe":
        return fresh({**config, "mlp_only_layers": []})
    if config["model_type"] in SQUARE:
        return fresh({**config, **({"num_key_value_heads": 4} if config["model_type"] == "olmoe" else
                                   {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8})})
    if config["model_type"] == "gemma3_text":
        config["layer_types"] = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
        config.get("rope_parameters", {}).get("sliding_attention", {})["rope_theta"] = 10000.0
        config["query_pre_attn_scalar"] = config["head_dim"]
        config.pop("_sliding_window_pattern", None)
    if "yarn" in json.dumps(config):
        del config["rope_parameters"]["beta_fast"], config["rope_parameters"]["beta_slow"]
    if config["model_type"] == "smollm3":
        config["no_rope_layers"] = [int(i % 4 != 3) for i in range(layers)]
        config["no_rope_layer_interval"] = 4
    copy = os.path.join(ROOT, "changed")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    with open(os.path.join(copy, "config.json"), "w") as f:
        json.dump(config, f)
    return copy


def compare(folder, kind):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config = config.get("text_config", config)
    square = config["model_type"] in SQUARE and (config["model_type"] == "olmoe" or
                                                 config["num_attention_heads"] * config["head_dim"] != config["hidden_size"])
    if config["model_type"] in ("gemma3_text", "qwen3_moe", "smollm3") or square or "yarn" in json.dumps(config):
        refused = subprocess.run([RAVEL, "export", folder, "--gguf", os.path.join(ROOT, "no.gguf")], capture_output=True, text=True)
        if refused.returncode != 1 or "llama.cpp has no" not in refused.stderr or os.path.exists(os.path.join(ROOT, "no.gguf")):
            return "not refused"
        folder = as_llama_cpp_has_it(folder, config)
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
    arch = ARCH[config["model_type"]]
    read, want = export(folder, kind), wanted(folder, config, arch)
    got = {t.name: t for t in read.tensors}
    rope = got.pop("rope_freqs.weight", None)
    ropes = config.get("rope_parameters", {})
    if (rope is not None) != ("llama3" in json.dumps(config)):
        return "rope_freqs"
    for kind_of in ("long", "short"):
        factors = got.pop(f"rope_factors_{kind_of}.weight", None)
        if (None if factors is None else np.float32(factors.data).tolist()) != (
                np.float32(ropes[f"{kind_of}_factor"]).tolist() if f"{kind_of}_factor" in ropes else None):
            return f"rope_factors_{kind_of}"
    if set(got) != set(want):
        return f"tensors {sorted(set(got) ^ set(want))[:6]}"
    field = {k: f.contents() for k, f in read.fields.items()}
    rotated = int(config.get("head_dim", 0) * config.get("partial_rotary_factor", 1))
    if rotated and field[f"{arch}.rope.dimension_count"] != rotated:
        return "rope.dimension_count"
    if field.get(f"{arch}.rope.scaling.type") != {"linear": "linear", "yarn": "yarn"}.get(ropes.get("full_attention", ropes).get("rope_type")):
        return "rope.scaling.type"
    if field["general.architecture"] != arch or field[f"{arch}.block_count"] != config["num_hidden_layers"]:
        return "metadata"
    for name, values in want.items():
        t = got[name]
        if list(t.shape) != list(values.shape[::-1]):
            return f"{name}: {list(t.shape)} instead of {list(values.shape[::-1])}"
        if values.ndim > 1 and "ffn_gate_inp" not in name and (kind != "q8_0" or values.shape[-1] % 32 == 0):
            if t.tensor_type != TYPES[kind]:
                return f"{name}: type {t.tensor_type}"
        exact = quants.quantize(values, t.tensor_type)
        if exact.tobytes() != np.ascontiguousarray(t.data).tobytes():
            return f"{name}: values"
    return None


def tokenizer(name, pre):
    """A model of this tokenizer's size; its metadata against tokenizer.json."""
    source = os.path.join("tests/golden/text", name)
    with open(os.path.join(source, "tokenizer.json"), encoding="utf8") as f:
        data = json.load(f)
    size = len({**data["model"]["vocab"], **{t["content"]: 0 for t in data["added_tokens"]}}) + 3
    with open("tests/golden/archs/qwen3/config.json") as f:
        folder = fresh({**json.load(f), "vocab_size": size})
    for file in os.listdir(source):
        shutil.copy(os.path.join(source, file), folder)
    if data["pre_tokenizer"].get("add_prefix_space"):
        refused = subprocess.run([RAVEL, "export", folder, "--gguf", os.path.join(ROOT, "no.gguf")], capture_output=True, text=True)
        if refused.returncode != 1 or "no space before a text" not in refused.stderr:
            return "not refused"
        data["pre_tokenizer"]["add_prefix_space"] = False
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf8") as f:
            json.dump(data, f)
    field = {k: f.contents() for k, f in export(folder, "q8_0").fields.items()}
    vocab = {**data["model"]["vocab"], **{t["content"]: t["id"] for t in data["added_tokens"]}}
    special = {t["id"]: 3 if t["special"] else 4 for t in data["added_tokens"]}
    if field["tokenizer.ggml.pre"] != pre or any(field["tokenizer.ggml.tokens"][i] != t for t, i in vocab.items()):
        return f"pre {field['tokenizer.ggml.pre']}, or tokens"
    kinds = [special.get(i, 1) for i in range(size - 3)] + [5] * 3
    if field["tokenizer.ggml.token_type"] != kinds or len(field["tokenizer.ggml.tokens"]) != size:
        return "kinds"
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    if field["tokenizer.ggml.merges"] != merges:
        return "merges"
    with open(os.path.join(source, "tokenizer_config.json"), encoding="utf8") as f:
        settings = json.load(f)
    if field.get("tokenizer.chat_template") != settings.get("chat_template"):
        return "template"
    eos = settings["eos_token"]
    return None if field["tokenizer.ggml.eos_token_id"] == vocab[eos] else "eos"


def main():
    os.makedirs(ROOT, exist_ok=True)
    checks = [(f"{os.path.basename(os.path.dirname(p))} as {kind}", compare, (os.path.dirname(p), kind))
              for p in sorted(glob.glob("tests/golden/archs/*/config.json")) for kind in TYPES]
    checks += [(f"tokenizer {name}", tokenizer, (name, pre))
               for name, pre in (("gpt2", "gpt-2"), ("llama3", "llama-bpe"), ("qwen", "qwen2"), ("smol", "smollm"))]
    failed = 0
    for what, check, given in checks:
        try:
            problem = check(*given)
        except subprocess.CalledProcessError as error:
            problem = str(error)
        failed += problem is not None
        if problem:
            print(f"  FAIL  {what}: {problem}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
