#!/usr/bin/env python3
"""LoRA of rank 16 against full fine-tuning, and both against PEFT with TRL, on the same rows in one run, on a CPU.

    python3 bench/lora_peft.py MODEL CHAT.jsonl [--ravel build/ravel] [--steps 20] [--batch 16] [--threads 2] [--out FOLDER]

MODEL: a Hugging Face folder, as mk/smollm2.py makes; CHAT: rows of {"messages": [...]}, as mk/demo_real.py writes. Needs torch,
transformers, peft and trl. The rows are made tokens once, by transformers; the last assistant's turn has a loss; the last 32 rows are kept
apart. Every run takes the others once (20 updates of 16 rows are the 320 of mk/demo_real.py), in an order of its own, on the same number
of threads, one run after the other:

    full          ravel train sft, AdamW on all weights, f32
    lora          the same with --lora-rank 16, f32; the frozen model is mapped from its file
    lora bf16     the same with --kernels cpu-bf16, on a copy of the model in bf16
    peft          TRL's SFTTrainer with PEFT's LoRA of rank 16 on all linear layers, f32

Printed per run: seconds per update, tokens per second, the largest resident set (of a mapped file: its pages too), anonymous memory
(Ravel), and the loss per token of the rows that are kept apart: at the end, and at the time at which the fastest run ended."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HELD_OUT, EVERY, RANK = 32, 4, 16


def rows_of(model, path):
    from transformers import AutoTokenizer
    tokenizer, rows = AutoTokenizer.from_pretrained(model), []
    for line in open(path):
        messages = json.loads(line)["messages"]
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert whole.startswith(prompt)
        first = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        rest = tokenizer(whole[len(prompt):].rstrip("\n"), add_special_tokens=False)["input_ids"]
        rows.append({"input_ids": first + rest, "labels": [-100] * len(first) + rest})
    return rows


def write(path, rows):
    with open(path, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def rounded(model, folder):
    """A copy of the model in bf16."""
    from transformers import AutoModelForCausalLM
    import torch
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(folder)
    for name in os.listdir(model):
        if name.startswith(("tokenizer", "chat_template", "generation")):
            shutil.copy(os.path.join(model, name), folder)


def run(command, **more):
    """Its largest resident set and its largest anonymous memory, in MiB."""
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, **more)
        anonymous, resident, pid = 0, 0, 0
        while not pid:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            try:
                with open(f"/proc/{child.pid}/status") as text:
                    told = {line.split()[0]: int(line.split()[1]) for line in text if line.startswith(("RssAnon", "VmHWM"))}
                anonymous, resident = max(anonymous, told.get("RssAnon:", 0)), max(resident, told.get("VmHWM:", 0))
            except OSError:
                pass
            time.sleep(0.1)
        said.seek(0)
        text = said.read()
    if status:
        sys.exit(f"{' '.join(command)}\n{text}")
    return resident / 1024, anonymous / 1024


def ravel(o, name, model, lr, *flags):
    folder = os.path.join(o.out, name)
    shutil.rmtree(folder, ignore_errors=True)
    memory = run([o.ravel, "train", "sft", "--model", model, "--data", o.rows, "--eval-data", o.held, "--steps", str(o.steps),
                  "--batch", str(o.batch), "--budget", "1k", "--lr", str(lr), "--schedule", "constant", "--warmup", "0",
                  "--weight-decay", "0", "--clip-grad", "1", "--eval-every", str(EVERY), "--threads", str(o.threads),
                  "--share-prefix", "off", "--eval-samples", "0", "--no-checkpoint-end", "--sinks", "jsonl", "--quiet", "--run", folder, *flags])
    curve, seconds, tokens = [], 0, 0
    for row in map(json.loads, open(os.path.join(folder, "metrics.jsonl"))):
        if "train/loss" in row:
            seconds += row["time/update_sec"] - row.get("time/eval_self_sec", 0)
            tokens += row["tokens/actual"]
        if "eval/loss" in row:
            curve.append((seconds, row["eval/loss"]))
    return name, curve, seconds, tokens, memory


def peft(o):
    path = os.path.join(o.out, "peft.json")
    memory = run([sys.executable, __file__, o.model, o.rows, "--child", path, "--held", o.held, "--steps", str(o.steps), "--batch",
                  str(o.batch), "--threads", str(o.threads)], env=dict(os.environ, OMP_NUM_THREADS=str(o.threads)))
    answer = json.load(open(path))
    return "peft", answer["curve"], answer["seconds"], answer["tokens"], memory


def child(o):
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer
    torch.set_num_threads(o.threads)
    tokenizer = AutoTokenizer.from_pretrained(o.model)
    model = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32)
    rows, held = ([json.loads(line) for line in open(path)] for path in (o.chat, o.held))
    curve, spent = [], [0.0, 0.0]

    def loss_of(net):
        total = count = 0
        net.eval()
        with torch.no_grad():
            for row in held:
                ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
                logp = torch.log_softmax(net(ids).logits[0, :-1], -1)
                keep = labels >= 0
                total -= logp[keep, labels[keep]].sum().item()
                count += int(keep.sum())
        net.train()
        return total / count

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            spent[1] = time.perf_counter()

        def on_step_end(self, args, state, control, model=None, **kwargs):
            spent[0] += time.perf_counter() - spent[1]
            if state.global_step % EVERY == 0:
                curve.append((spent[0], loss_of(model)))

    config = SFTConfig(output_dir=o.child + ".run", per_device_train_batch_size=o.batch, max_steps=o.steps, learning_rate=2e-4,
                       lr_scheduler_type="constant", weight_decay=0, max_grad_norm=1, adam_beta2=0.95, logging_steps=1, save_strategy="no", report_to=[],
                       use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=None, shuffle_dataset=False)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, peft_config=lora,
                         callbacks=[Watch()])
    curve.append((0, loss_of(trainer.model)))
    trainer.train()
    tokens = sum(len(rows[i % len(rows)]["input_ids"]) for i in range(o.steps * o.batch))
    json.dump({"curve": curve, "seconds": spent[0], "tokens": tokens}, open(o.child, "w"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model"), p.add_argument("chat"), p.add_argument("--ravel", default="build/ravel")
    p.add_argument("--steps", type=int, default=20), p.add_argument("--batch", type=int, default=16)
    p.add_argument("--threads", type=int, default=2), p.add_argument("--out", default="build/lora-peft")
    p.add_argument("--child", help=argparse.SUPPRESS), p.add_argument("--held", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.child:
        return child(o)
    os.makedirs(o.out, exist_ok=True)
    rows = rows_of(o.model, o.chat)
    o.rows, o.held, half = (os.path.join(o.out, name) for name in ("rows.jsonl", "held.jsonl", "bf16"))
    write(o.rows, rows[:-HELD_OUT]), write(o.held, rows[-HELD_OUT:])
    rounded(o.model, half)
    adapter = ("--lora-rank", str(RANK))
    runs = [ravel(o, "full", o.model, 5e-5), ravel(o, "lora", o.model, 2e-4, *adapter),
            ravel(o, "lora bf16", half, 2e-4, *adapter, "--kernels", "cpu-bf16"), peft(o)]
    end = min(seconds for _, _, seconds, _, _ in runs)
    print(f"{o.steps} updates of {o.batch} rows, {o.threads} threads; loss before {runs[0][1][0][1]:.4f}")
    print(f"{'':12}{'s/update':>10}{'tokens/s':>10}{'MiB':>8}{'anonymous':>11}{'loss':>9}{f'at {end:.0f} s':>11}")
    for name, curve, seconds, tokens, (memory, anonymous) in runs:
        then = [loss for at, loss in curve if at <= end * 1.001][-1]
        print(f"{name:12}{seconds / o.steps:10.2f}{tokens / seconds:10.0f}{memory:8.0f}{anonymous:11.0f}{curve[-1][1]:9.4f}{then:11.4f}")


main()
