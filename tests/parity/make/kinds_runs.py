#!/usr/bin/env python3
"""20-step runs of PEFT's DoRA and modules_to_save on a tiny model whose base is in bf16 or in 8 bits, and of several adapters.

Usage: kinds_runs.py [--data tests/parity/data] [--only NAME ...]
For each run: data/numerics/tiny/NAME/{run.json, start/}, as embedding_runs.py leaves them. bf16: base in bf16, trained weights in
fp32, forward under autocast. int8: the base's linears are what bitsandbytes' 8-bit weights stand for, in fp32 (its 8-bit modules
cannot be trained with DoRA on a CPU). With several adapters: a folder for each, first, second, ...; all take part in this order,
the last is trained and the others are frozen.
"""
import argparse
import json
import math
import pathlib
import shutil
import warnings

import torch
from bitsandbytes.functional import int8_vectorwise_quant
from embedding_runs import micro_loss, start_values
from loraplus import save_start
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

STEPS, RATE, DECAY, MODEL = 20, 5e-3, 1e-4, "tiny"
DORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "use_dora": True}
SAVED = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
         "modules_to_save": ["norm", "lm_head", "layers.1.mlp.down_proj"]}
RUNS = {"dora_int8_fp32": (DORA, "int8"), "dora_bf16": (DORA, "bf16"), "saved_bf16": (SAVED, "bf16")}
BESIDE = {"beside_dora": [{"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
                          {"r": 3, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"], "use_dora": True},
                          {**DORA, "modules_to_save": ["norm"]}],
          "beside_embedding": [{"r": 3, "lora_alpha": 3, "target_modules": ["embed_tokens", "v_proj"]},
                               {"r": 2, "lora_alpha": 4, "target_modules": ["embed_tokens", "q_proj"]}]}


def quantised(base):
    with torch.no_grad():
        for name, module in base.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                rows, largest, _ = int8_vectorwise_quant(module.weight.half())
                module.weight.copy_(rows.float() * largest.float().view(-1, 1) / 127)
    return base


def load_base(data, kind):
    kind_of = torch.bfloat16 if kind == "bf16" else torch.float32
    base = AutoModelForCausalLM.from_pretrained(data / "models" / MODEL, attn_implementation="eager", dtype=kind_of)
    return quantised(base) if kind == "int8" else base


def train(model, batches, bf16):
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": [p for n, p in trained if "norm" not in n], "weight_decay": DECAY},
                                   {"params": [p for n, p in trained if "norm" in n], "weight_decay": 0.0}], lr=RATE)
    steps = []
    for step in range(STEPS):
        micro = [(batches["train.input_ids"][i], batches["train.labels"][i]) for i in (2 * step, 2 * step + 1)]
        targets = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro)
        optimizer.zero_grad()
        loss_sum = 0.0
        for ids, labels in micro:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = micro_loss(model, ids, labels, targets)
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in trained], 1.0)
        rate = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": loss_sum, "grad_norm": float(norm), "lr": rate, "tokens": targets})
    return steps


def write_run(out, steps):
    run = {"settings": {"lr": RATE, "schedule": "cosine", "warmup_steps": 0, "weight_decay": DECAY, "max_grad_norm": 1.0,
                        "steps": STEPS}, "steps": steps}
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    print(out.name, [round(step["loss"], 5) for step in steps])


def make(data, name):
    settings, kind = RUNS[name]
    out = data / "numerics" / MODEL / name
    shutil.rmtree(out, ignore_errors=True)
    model = get_peft_model(load_base(data, kind), LoraConfig(task_type="CAUSAL_LM", **settings))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    start_values(model)
    save_start(model, out / "start", MODEL)
    model.train()
    write_run(out, train(model, load_file(data / "numerics" / MODEL / "batches.safetensors"), kind == "bf16"))


def make_beside(data, name):
    """Adapters `first`, `second`, ...: all take part, the last is trained."""
    out = data / "numerics" / MODEL / name
    shutil.rmtree(out, ignore_errors=True)
    names = ["first", "second", "third"][:len(BESIDE[name])]
    model = None
    for adapter, settings in zip(names, BESIDE[name]):
        config = LoraConfig(task_type="CAUSAL_LM", **settings)
        if model is None:
            model = get_peft_model(load_base(data, "fp32"), config, adapter_name=adapter)
        else:
            model.add_adapter(adapter, config)
        model.set_adapter(adapter)
        start_values(model)
    if name == "beside_dora":  # a head of its own that differs from the model's
        with torch.no_grad():
            head = dict(model.named_parameters())["base_model.model.lm_head.modules_to_save.first.weight"]
            head.mul_(1 + 0.2 * torch.rand(head.shape, generator=torch.Generator().manual_seed(7)))
    model.save_pretrained(out)
    (out / "README.md").unlink()
    for adapter in names:
        file = out / adapter / "adapter_config.json"
        config = json.loads(file.read_text())
        config["base_model_name_or_path"] = f"../../../../models/{MODEL}"
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    model.base_model.set_adapter(names)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(f".{names[-1]}." in parameter_name or parameter_name.endswith(f".{names[-1]}"))
    model.train()
    write_run(out, train(model, load_file(data / "numerics" / MODEL / "batches.safetensors"), bf16=False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data")
    parser.add_argument("--only", nargs="*", choices=[*RUNS, *BESIDE], default=[*RUNS, *BESIDE])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in arguments.only:
        (make if name in RUNS else make_beside)(arguments.data, name)


if __name__ == "__main__":
    main()
