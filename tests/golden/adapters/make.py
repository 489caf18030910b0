"""Golden vectors of adapters, made by PEFT beside models of tests/golden/archs.

    python3 tests/golden/adapters/make.py     writes beside itself; made with peft 0.21.2, transformers 5.23.0 and torch 2.15.0

For each a folder as PEFT's `save_pretrained` writes it (float32), and golden.safetensors: `nll` and `base` float64 (negative
log-likelihood of tokens 1 .. L-1 of the first sample of the model's golden file, with the adapter and without), and `grad/PARAMETER`
float32, named as the adapter's file names them: the gradient of the mean of `nll`. Forward and backward run in float64.

Adapters of experts are written one expert at a time, and PEFT reads them into the stacked tensors of its model, gate beside up with the
blocks of B that are theirs: gradients are taken apart in the same way. (PEFT 0.21 doubles their alpha for the doubled rank, which is right
without rsLoRA alone.)

configs.txt: one adapter_config.json per line, as PEFT writes it, behind the key that cannot be applied ("ok": none)."""
import json
import pathlib
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import (ArrowConfig, BdLoraConfig, EvaConfig, KasaConfig, LoftQConfig, LoraGAConfig, MontecloraConfig,
                              VeloraConfig)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
ADAPTERS = {"llama3": dict(r=4, lora_alpha=8, target_modules="all-linear"),
            "qwen2": dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]),
            "gemma3": dict(r=2, lora_alpha=8, target_modules="all-linear"),
            "phi3": dict(r=3, lora_alpha=6, target_modules="all-linear")}
EXPERTS = {"olmoe": (dict(r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]),
                     "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
           "mixtral": (dict(r=3, lora_alpha=3, target_modules=["o_proj", "w1", "w3", "w2"]),
                       "block_sparse_moe.experts", ("w1", "w3", "w2"))}


def nll_of(model, ids):
    logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1)
    return -logp.gather(1, ids[0, 1:, None])[:, 0]


for name, options in ADAPTERS.items():
    torch.manual_seed(len(name))
    base = HERE.parent / "archs" / name
    ids = load_file(base / "golden.safetensors")["ids/0"].long()[None]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options))
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in trained.values():
            p.copy_((torch.randn_like(p) * 0.3).float().double())
    nll = nll_of(model, ids)
    nll.mean().backward()
    out = {"grad/" + key.replace(".default.", "."): p.grad.float().contiguous() for key, p in trained.items()}
    out["nll"] = nll.detach()
    with model.disable_adapter():
        out["base"] = nll_of(model, ids).detach()
    model.float()
    model.peft_config["default"].base_model_name_or_path = f"tests/golden/archs/{name}"
    model.save_pretrained(HERE / name)
    (HERE / name / "README.md").unlink(missing_ok=True)
    save_file(out, HERE / name / "golden.safetensors")


def halves_of(key, grad, experts, r, names):
    """A gradient of PEFT's stacked tensor as those of each expert's A or B: (expert, name, gradient)."""
    both = "base_layer" in key
    if "lora_A" in key:
        per = grad.reshape(experts, -1, grad.shape[1])
        cuts = [per[:, :r], per[:, r:]] if both else [per]
    else:
        per = grad.reshape(grad.shape[0], -1, experts).permute(2, 0, 1)
        half = per.shape[1] // 2
        cuts = [per[:, :half, :r], per[:, half:, r:]] if both else [per]
    for name, cut in zip(names[:2] if both else names[2:], cuts):
        for e in range(experts):
            yield e, name, cut[e].contiguous()


for name, (options, prefix, names) in EXPERTS.items():
    torch.manual_seed(len(name))
    base = HERE.parent / "archs" / name
    ids = load_file(base / "golden.safetensors")["ids/0"].long()[None]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    config, r, own = model.config, options["r"], {}
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    ffn = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    for key, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and key.rsplit(".", 1)[-1] in options["target_modules"]:
            own[key] = (module.in_features, module.out_features)
    for layer in range(config.num_hidden_layers):
        for e in range(experts):
            for which in names:
                sizes = (ffn, config.hidden_size) if which == names[2] else (config.hidden_size, ffn)
                own[f"model.layers.{layer}.{prefix}.{e}.{which}"] = sizes
    tensors = {}
    for key, (columns, rows) in own.items():
        tensors[f"base_model.model.{key}.lora_A.weight"] = torch.randn(r, columns) * 0.3
        tensors[f"base_model.model.{key}.lora_B.weight"] = torch.randn(rows, r) * 0.3
    LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, base_model_name_or_path=f"tests/golden/archs/{name}", inference_mode=True,
               **options).save_pretrained(HERE / name)
    save_file(tensors, HERE / name / "adapter_model.safetensors")
    model = PeftModel.from_pretrained(model, HERE / name, is_trainable=True)
    nll = nll_of(model, ids)
    nll.mean().backward()
    out = {"nll": nll.detach()}
    for key, p in model.named_parameters():
        if not p.requires_grad:
            continue
        key = key.replace(".default.", ".")
        if ".experts." not in key:
            out["grad/" + key] = p.grad.float().contiguous()
            continue
        layer, half = key.split(".experts.")[0].rsplit(".", 1)[0], "lora_A" if "lora_A" in key else "lora_B"
        for e, which, grad in halves_of(key, p.grad.float(), experts, r, names):
            out[f"grad/{layer}.{prefix}.{e}.{which}.{half}.weight"] = grad
    with model.disable_adapter():
        out["base"] = nll_of(model, ids).detach()
    assert {key.removeprefix("grad/") for key in out if key.startswith("grad/")} == set(tensors)
    save_file(out, HERE / name / "golden.safetensors")

CONFIGS = [("ok", {}), ("ok", dict(init_lora_weights=False)), ("ok", dict(init_lora_weights="gaussian")),
           ("ok", dict(init_lora_weights="orthogonal")), ("ok", dict(init_lora_weights="eva", eva_config=EvaConfig())),
           ("ok", dict(use_rslora=True)), ("ok", dict(lora_dropout=0.05)), ("ok", dict(target_modules="all-linear"))]
CONFIGS += [("init_lora_weights", dict(init_lora_weights=name)) for name in ("pissa", "pissa_niter_16", "olora", "corda", "mica")]
CONFIGS += [("init_lora_weights", dict(init_lora_weights="loftq", loftq_config=LoftQConfig())),
            ("init_lora_weights", dict(init_lora_weights="lora_ga", lora_ga_config=LoraGAConfig())),
            ("alora_invocation_tokens", dict(alora_invocation_tokens=[1, 2])), ("use_qalora", dict(use_qalora=True)),
            ("use_dora", dict(use_dora=True)), ("bias", dict(bias="all")), ("bias", dict(bias="lora_only")),
            ("fan_in_fan_out", dict(fan_in_fan_out=True)), ("rank_pattern", dict(rank_pattern={"q_proj": 2})),
            ("alpha_pattern", dict(alpha_pattern={"q_proj": 2})), ("modules_to_save", dict(modules_to_save=["lm_head"])),
            ("layers_to_transform", dict(layers_to_transform=[1])), ("layer_replication", dict(layer_replication=[(0, 1), (0, 2)])),
            ("exclude_modules", dict(exclude_modules=["q_proj"])), ("lora_bias", dict(lora_bias=True)),
            ("target_parameters", dict(target_parameters=["mlp.experts.gate_up_proj"])),
            ("trainable_token_indices", dict(trainable_token_indices=[1])), ("arrow_config", dict(arrow_config=ArrowConfig())),
            ("use_bdlora", dict(use_bdlora=BdLoraConfig())), ("velora_config", dict(velora_config=VeloraConfig())),
            ("monteclora_config", dict(monteclora_config=MontecloraConfig())), ("kasa_config", dict(kasa_config=KasaConfig()))]
with open(HERE / "configs.txt", "w") as out:
    for key, options in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            LoraConfig(**dict(dict(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]), **options)).save_pretrained(folder)
            config = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        if isinstance(config["target_modules"], list):
            config["target_modules"].sort()
        print(key, json.dumps(config), file=out)
