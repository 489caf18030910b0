"""A tiny Llama of transformers, with and without shared prefixes: the same losses, step by step.

    python3 python/examples/transformers_tree.py
"""

import _checkout  # noqa: F401  (the package of this checkout)
import numpy as np

import ravel
from ravel.adapters import transformers_tree


def main() -> None:
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as missing:
        print(f"skipped: {missing}")
        return
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    rows = []
    for prompt in range(3):  # four answers to each of three prompts
        begin = rng.integers(0, 99, 24).tolist()
        rows += sorted(begin + rng.integers(0, 99, 4 + 3 * answer).tolist() for answer in range(4))
    rows.sort(key=lambda row: [*row, 100])  # tree order; ravel.tree_order does this for any rows
    store = ravel.Ragged([len(row) for row in rows], tokens=np.concatenate(rows).astype(np.int32))
    batch = ravel.pack(store, range(len(rows)), tree=True)
    shape = dict(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2)
    plain = LlamaForCausalLM(LlamaConfig(**shape))
    tree = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation=transformers_tree.register()))
    tree.load_state_dict(plain.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (plain, tree)]
    print(f"{batch.actual_tokens} tokens, {batch.unique_tokens} different ones")
    for step in range(3):
        apart = [plain(input_ids=torch.tensor([row])).logits[0, :-1].log_softmax(-1)
                 .gather(1, torch.tensor(row[1:])[:, None])[:, 0] for row in rows]
        together = transformers_tree.logprobs(tree(**transformers_tree.inputs(batch)).logits[0], batch)
        losses = [-torch.cat(apart).mean(), -together.mean()]
        for loss, optimizer in zip(losses, optimizers):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"step {step}: one by one {losses[0].item():.6f}, as trees {losses[1].item():.6f}")
        assert abs(losses[0].item() - losses[1].item()) < 1e-5
    worst = max((a - b).abs().max().item() for a, b in zip(plain.parameters(), tree.parameters()))
    print(f"weights differ by {worst:.1e} at the most")
    assert worst < 1e-5


if __name__ == "__main__":
    main()
