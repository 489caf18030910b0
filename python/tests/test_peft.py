"""Adapters between the command and PEFT itself: what one writes the other reads, with the same log-probs."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

import ravel

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

BASE = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "archs" / "llama3"
PROMPT, TOKENS = [5, 9, 31, 3, 8], 6

pytestmark = pytest.mark.skipif(ravel.command() is None or not BASE.exists(), reason="no ravel command, or no checkout")


def command(*arguments, cwd=None):
    done = subprocess.run([str(ravel.command()), *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


def answer(model):
    """Greedy tokens of a model of transformers, and the sum of their log-probs."""
    ids, total = list(PROMPT), 0.0
    with torch.no_grad():
        for _ in range(TOKENS):
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1)
            ids.append(int(logp.argmax()))
            total += float(logp[ids[-1]])
    return ids[len(PROMPT):], total


def check(model, expected, **options):
    [found] = ravel.generate(model, [PROMPT], max_tokens=TOKENS, temperature=0, threads=1, stop_ids=47, **options)
    tokens, total = expected
    count = len(found.tokens)
    assert count == TOKENS or tokens[count - 1] == 47
    assert found.tokens.tolist() == tokens[:count] and (count < TOKENS or abs(found.logprob - total) < 1e-3)


def base():
    return transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)


def adapted(**options):
    torch.manual_seed(4)
    model = peft.get_peft_model(base(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **options))
    return model


def move(model):
    """As training would."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p += torch.randn_like(p) * 0.1


@pytest.mark.parametrize("options", [dict(r=4, lora_alpha=8), dict(r=3, use_rslora=True), dict(r=4, init_lora_weights="orthogonal"),
                                     dict(r=4, init_lora_weights="gaussian", lora_dropout=0.05)], ids=str)
def test_what_peft_writes_answers_alike(tmp_path, options):
    model = adapted(**options)
    move(model)
    model.save_pretrained(tmp_path / "adapter")
    check(BASE, answer(model.eval()), adapter=str(tmp_path / "adapter"))


def test_an_adapter_of_changed_weights_is_refused_until_peft_converts_it(tmp_path):
    model = adapted(r=4, init_lora_weights="pissa")
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "initial")
    model.peft_config["default"].init_lora_weights = "pissa"
    move(model)
    model.save_pretrained(tmp_path / "pissa")
    with pytest.raises(RuntimeError, match="path_initial_model_for_weight_conversion"):
        ravel.generate(BASE, [PROMPT], adapter=str(tmp_path / "pissa"))
    code, said = command("merge", "--model", BASE, "--adapter", tmp_path / "pissa", "--out", tmp_path / "merged")
    assert code == 1 and "init_lora_weights" in said
    expected = answer(model.eval())
    model.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "initial"))
    check(BASE, expected, adapter=str(tmp_path / "plain"))


@pytest.mark.parametrize("name", ["llama3", "phi3", "olmoe", "mixtral"])
def test_what_ravel_writes_moves_with_its_model(tmp_path, monkeypatch, name):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(BASE.with_name(name), here / "base")
    (here / "rows.jsonl").write_text("".join(json.dumps({"input_ids": [(i * 7 + t * 3) % 40 for t in range(20)]}) + "\n" for i in range(8)))
    code, said = command("train", "sft", "--model", "base", "--data", "rows.jsonl", "--lora-rank", 4, "--steps", 3, "--batch", 4, "--budget", 128,
                         "--lr", 0.05, "--run", "run", "--sinks", "jsonl", cwd=here)
    assert code == 0, said
    here.rename(there)
    monkeypatch.chdir(there)
    folder = "run/checkpoints/step-00000003"
    assert json.loads(pathlib.Path(folder, "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    model = peft.AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = answer(model.eval())
    with model.disable_adapter():
        assert answer(model) != expected
    monkeypatch.chdir(os.sep)
    check(there / "run", expected)
    code, said = command("merge", "--adapter", there / folder, "--out", tmp_path / "merged")
    assert code == 0, said
    merged = answer(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32))
    assert merged[0] == expected[0] and abs(merged[1] - expected[1]) < 1e-4
