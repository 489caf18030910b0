"""What `ravel export` writes, run by llama.cpp (pip's cyllama): losses of every family against those of `ravel eval`, and ids of texts.

    python3 tests/text/llama_cpp.py RAVEL TOKENIZERS

TOKENIZERS is the folder that parity.py filled. Models are those of tests/golden/archs where llama.cpp takes their shape, else new ones of the same family. What llama.cpp
would not load, or would compute otherwise, has to be refused. Ends with "N passed, N failed".
"""
import glob
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys

import cyllama.llama.llama_cpp as llama

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).resolve().parents[2] / "python")]
import ravel  # noqa: E402
import strings  # noqa: E402

RAVEL, TOKENIZERS, ROOT = sys.argv[1], sys.argv[2], os.path.join(sys.argv[2], "llama.cpp")
SQUARE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIX = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "query_pre_attn_scalar": 8,
       "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                           "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
# (folder, what its config has otherwise: then weights are new, how many of the tokens)
TAKEN = [("llama2", None, 40), ("llama-linear", None, 40), ("llama3", None, 40), ("smollm", None, 40), ("mistral", None, 6),
         ("mistral", {"sliding_window": None}, 40), ("mixtral", None, 40), ("granite", None, 40), ("qwen3", None, 40),
         ("qwen3-tied", None, 40), ("qwen3-yarn", {"rope_parameters": YARN}, 40), ("qwen2", SQUARE, 40), ("olmo2", SQUARE, 40),
         ("olmoe", {"num_key_value_heads": 4}, 40), ("phi3", {**SQUARE, "sliding_window": None}, 40),
         ("phi3", {**SQUARE, "sliding_window": 6}, 6), ("phi3-long", None, 40), ("qwen3_moe", {"mlp_only_layers": []}, 40),
         ("gemma3", SIX, 40),
         ("smollm3", {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4, "no_rope_layers": [1, 1, 1, 0]}, 40)]
REFUSED = ["gemma3", "olmo2", "olmoe", "phi3", "qwen2", "qwen3-yarn", "qwen3_moe", "smollm3"]
IDS = [[(7 * i * i + 3 * i + k) % 41 + 2 for i in range(40)] for k in range(3)]


class Model(llama.LlamaModel):
    @property
    def n_vocab(self):  # the package asks its model for it
        return self.get_vocab().n_vocab


def run(*words):
    return subprocess.run([RAVEL, *words], check=True, capture_output=True, text=True)


def model_folder(name, changes):
    source = os.path.join("tests/golden/archs", name)
    if changes is None:
        return source
    with open(os.path.join(source, "config.json"), encoding="utf8") as f:
        config = {**json.load(f), **changes}
    shape, made = os.path.join(ROOT, "shape.json"), os.path.join(ROOT, "run")
    shutil.rmtree(made, ignore_errors=True)
    with open(shape, "w", encoding="utf8") as f:
        json.dump(config, f)
    run("train", "sft", "--shape", shape, "--init-std", "0.3", "--mock", '{"type": "constant", "mean_seq_len": 8, "count": 2}',
        "--steps", "1", "--batch", "2", "--lr", "1e-9", "--run", made, "--quiet")
    return made


def open_model(folder, kind="f32"):
    path = os.path.join(ROOT, "model.gguf")
    run("export", folder, "--gguf", path, "--type", kind)
    params = llama.LlamaModelParams()
    params.n_gpu_layers = 0
    return Model(path_model=path, params=params, verbose=False)


def loss_of(model, ids):
    params = llama.LlamaContextParams()
    params.n_ctx = params.n_batch = 64
    params.type_k = params.type_v = params.flash_attn_type = 0  # keys and values in f32
    context = llama.LlamaContext(model=model, params=params, verbose=False)
    batch = llama.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
    batch.add_sequence(ids, 0, True)
    context.decode(batch)
    total = 0.0
    for i, target in enumerate(ids[1:]):
        logits = list(context.get_logits_ith(i))
        most = max(logits)
        total += most + math.log(sum(math.exp(x - most) for x in logits)) - logits[target]
    return total / (len(ids) - 1)


def compare(name, changes, count):
    folder, files = model_folder(name, changes), []
    for i, ids in enumerate(IDS):
        files.append(os.path.join(ROOT, f"{i}.jsonl"))
        with open(files[-1], "w", encoding="utf8") as f:
            f.write(json.dumps({"input_ids": ids[:count]}) + "\n")
    want = [f["loss"] for f in json.loads(run("eval", folder, "--json", "--quiet", "--data", *files).stdout)["files"]]
    model = open_model(folder)
    got = [loss_of(model, ids[:count]) for ids in IDS]
    if os.environ.get("RAVEL_VERBOSE"):
        print("   ", name, max(abs(a - b) for a, b in zip(got, want)))
    return None if max(abs(a - b) for a, b in zip(got, want)) < 0.001 else f"losses {got} instead of {want}"


def ids_of_texts(name):
    """llama.cpp has no NFC (Qwen), and a space after every special token where Mistral's newer tokenizers have one before the
    text alone: these are left out."""
    source, random_state = os.path.join(TOKENIZERS, name), random.Random(strings.seed())
    with open(os.path.join(source, "tokenizer.json"), encoding="utf8") as f:
        data = json.load(f)
    made = model_folder("qwen3", {"vocab_size": max([t["id"] for t in data["added_tokens"]] + [*data["model"]["vocab"].values()]) + 4})
    folder = glob.glob(made + "/checkpoints/step-*")[0]
    for file in os.listdir(source):
        shutil.copy(os.path.join(source, file), folder)
    model = open_model(folder)  # which the vocabulary does not keep
    ours, theirs = ravel.Tokenizer(source), model.get_vocab()
    special = [t["content"] for t in data["added_tokens"] if t["special"]]
    real = strings.real_texts()
    for text in (strings.text(random_state, real, special) for _ in range(200)):
        want, got = ours.encode(text, template=False).tolist(), list(theirs.tokenize(text, False, True))
        if got != want:
            return f"{text!r}: {got} instead of {want}"
    return None


def refused(name):
    path = os.path.join(ROOT, "no.gguf")
    pathlib.Path(path).unlink(missing_ok=True)
    tried = subprocess.run([RAVEL, "export", os.path.join("tests/golden/archs", name), "--gguf", path], capture_output=True, text=True)
    return None if tried.returncode == 1 and "llama.cpp has no" in tried.stderr and not os.path.exists(path) else "not refused"


def main():
    os.makedirs(ROOT, exist_ok=True)
    llama.disable_logging()
    checks = [(f"{name} {changes or ''} {count}", compare, (name, changes, count)) for name, changes, count in TAKEN]
    checks += [(f"ids of {name}", ids_of_texts, (name,)) for name in ("llama2", "gemma", "inside", "gpt2", "llama3", "smollm2")
               if os.path.isdir(os.path.join(TOKENIZERS, name))]
    checks += [(f"{name} as it is", refused, (name,)) for name in REFUSED]
    failed = 0
    for what, check, given in checks:
        try:
            problem = check(*given)
        except subprocess.CalledProcessError as error:
            problem = error.stderr.strip()
        except ValueError as error:  # llama.cpp does not load it
            problem = str(error)[:120]
        failed += problem is not None
        if problem:
            print(f"  FAIL  {what}: {problem}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
