"""What a config.json means that leaves keys out: ravel.shape against transformers' own configs, for every model_type of
the trainer (the rows of src/base/model/family.c with a class, which docs/train.md lists).

    python3 tests/text/configs.py

Ends with "N passed, N failed".
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "python"))
from transformers import CONFIG_MAPPING  # noqa: E402

import ravel  # noqa: E402

GIVEN = dict(hidden_size=256, num_hidden_layers=6, num_attention_heads=32, vocab_size=100, intermediate_size=96)


def wanted(config):
    """The fields of a shape as transformers understands the config."""
    ropes, kinds = config.rope_parameters, getattr(config, "layer_types", None) or []
    fields = dict(heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, vocab=config.vocab_size,
                  head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
                  rope_theta=ropes.get("full_attention", ropes)["rope_theta"], norm_eps=config.rms_norm_eps,
                  rope_local=ropes.get("sliding_attention", {}).get("rope_theta", 0),
                  max_positions=config.max_position_embeddings, tied=int(config.tie_word_embeddings))
    window = getattr(config, "sliding_window", None) or 0
    fields["window"] = window if not kinds or "sliding_attention" in kinds else 0
    if fields["window"] and "full_attention" in kinds:
        fields["window_every"] = kinds.index("full_attention") + 1
    if hasattr(config, "num_experts_per_tok"):
        fields["experts_active"] = config.num_experts_per_tok
        fields["router_norm"] = int(getattr(config, "norm_topk_prob", True))
    return fields


def compare(name, left_out):
    given = {"model_type": name, **{k: v for k, v in GIVEN.items() if k not in left_out}}
    config = CONFIG_MAPPING[name].from_dict(dict(given))
    for key in ("num_experts", "num_local_experts"):
        if hasattr(config, key):
            given[key] = getattr(config, key)
    shape = ravel.shape(given)
    return [f"{name}: {k} is {getattr(shape, k)}, in transformers {v}"
            for k, v in wanted(config).items() if getattr(shape, k) != v]


def main():
    names = re.findall(r'FAMILY\("(\w+)", "', (HERE / "src/base/model/family.c").read_text())
    passed = failed = 0
    for name in names:
        problems = compare(name, ("num_attention_heads", "vocab_size") if name == "gemma3_text" else ())
        passed, failed = passed + (not problems), failed + bool(problems)
        for problem in problems:
            print(f"  FAIL  {problem}")
    print(f"{passed} passed, {failed + (not names)} failed, 0 skipped")
    return failed > 0 or not names


sys.exit(main())
