#!/usr/bin/env python3
"""20-step runs of LoRA+ on the tiny models, with the parameter groups of PEFT's create_loraplus_optimizer.

Usage: loraplus.py [--data tests/parity/data] [--only NAME ...]
For each run: data/numerics/MODEL/NAME/{run.json, start/}, as embedding_runs.py leaves them. The rates of all groups follow one
cosine schedule (LambdaLR, as Transformers'); `lr` of a step is that of the first group, which Transformers logs.
"""
import argparse
import json
import math
import pathlib
import shutil
import warnings

import torch
from embedding_runs import micro_loss, start_values
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

STEPS = 20
EMBEDDING = {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj", "down_proj"],
             "modules_to_save": ["norm"]}
DORA = {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "up_proj"], "use_dora": True}
RUNS = {
    "loraplus": ("tiny", EMBEDDING, torch.optim.AdamW, 1e-3),
    "loraplus_sgd": ("tiny", EMBEDDING, torch.optim.SGD, 1e-2),
    "loraplus_dora": ("tiny-odd", DORA, torch.optim.AdamW, 1e-3),
}
RATIO, RATE_OF_EMBEDDING, DECAY = 8.0, 2e-2, 0.05


def train(model, batches, kind, rate):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = create_loraplus_optimizer(model, kind, lr=rate, loraplus_lr_ratio=RATIO,
                                          loraplus_lr_embedding=RATE_OF_EMBEDDING, loraplus_weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)))
    steps = []
    for step in range(STEPS):
        micro = [(batches["train.input_ids"][i], batches["train.labels"][i]) for i in (2 * step, 2 * step + 1)]
        targets = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro)
        optimizer.zero_grad()
        losses = [micro_loss(model, ids, labels, targets) for ids, labels in micro]
        for loss in losses:
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        steps.append({"loss": sum(loss.item() for loss in losses), "grad_norm": float(norm), "lr": schedule.get_last_lr()[0],
                      "tokens": targets})
        optimizer.step()
        schedule.step()
    return steps


def save_start(model, folder, model_name):
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../../../models/{model_name}"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(data, name):
    model_name, settings, kind, rate = RUNS[name]
    out = data / "numerics" / model_name / name
    shutil.rmtree(out, ignore_errors=True)
    base = AutoModelForCausalLM.from_pretrained(data / "models" / model_name, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        start_values(model)
    if name == "loraplus_sgd":  # starts as loraplus does
        out.mkdir()
    else:
        save_start(model, out / "start", model_name)
    model.train()
    steps = train(model, load_file(data / "numerics" / model_name / "batches.safetensors"), kind, rate)
    run = {"settings": {"lr": rate, "schedule": "cosine", "warmup_steps": 0, "weight_decay": DECAY, "max_grad_norm": 1.0,
                        "steps": STEPS, "loraplus_lr_ratio": RATIO, "loraplus_lr_embedding": RATE_OF_EMBEDDING},
           "steps": steps}
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    print(name, [round(step["loss"], 5) for step in steps])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data")
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only:
        make(arguments.data, name)


if __name__ == "__main__":
    main()
