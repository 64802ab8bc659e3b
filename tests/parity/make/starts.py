#!/usr/bin/env python3
"""20-step runs of PEFT adapters that start from the base's weights: PiSSA and OLoRA.

Usage: starts.py [--data tests/parity/data] [--only NAME ...]
For each run: data/numerics/MODEL/NAME/run.json with the settings and loss, gradient norm and rate of each step (2 rows and 2
micro-batches a step; AdamW, cosine schedule, clip 1), and merged.safetensors: two weights that PEFT merges after the last step.
"""
import argparse
import json
import math
import pathlib
import warnings

import torch
from embedding_runs import micro_loss
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

STEPS, RATE, DECAY = 20, 2e-3, 1e-4
RUNS = {
    "pissa": ("tiny", {"r": 8, "lora_alpha": 16, "init_lora_weights": "pissa"}),
    "olora": ("tiny", {"r": 8, "lora_alpha": 16, "init_lora_weights": "olora"}),
    "pissa_pattern": ("tiny-odd", {"r": 4, "lora_alpha": 2, "init_lora_weights": "pissa", "use_rslora": True,
                                   "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 7},
                                   "alpha_pattern": {"down_proj": 9}}),
    "olora_pattern": ("tiny-odd", {"r": 4, "lora_alpha": 6, "init_lora_weights": "olora",
                                   "rank_pattern": {"v_proj": 3}, "alpha_pattern": {"o_proj": 2}}),
}
KEPT = ["model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"]


def train(model, batches):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY)
    steps = []
    for step in range(STEPS):
        micro = [(batches["train.input_ids"][i], batches["train.labels"][i]) for i in (2 * step, 2 * step + 1)]
        targets = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro)
        optimizer.zero_grad()
        losses = [micro_loss(model, ids, labels, targets) for ids, labels in micro]
        for loss in losses:
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        rate = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": sum(loss.item() for loss in losses), "grad_norm": float(norm), "lr": rate,
                      "tokens": targets})
    return steps


def make(data, name):
    model_name, settings = RUNS[name]
    out = data / "numerics" / model_name / name
    out.mkdir(exist_ok=True)
    base = AutoModelForCausalLM.from_pretrained(data / "models" / model_name, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **settings))
    model.train()
    steps = train(model, load_file(data / "numerics" / model_name / "batches.safetensors"))
    merged = model.merge_and_unload().state_dict()
    save_file({key: merged[key].contiguous() for key in KEPT}, out / "merged.safetensors")
    run = {"settings": {"lr": RATE, "schedule": "cosine", "warmup_steps": 0, "weight_decay": DECAY, "max_grad_norm": 1.0,
                        "steps": STEPS, **settings}, "steps": steps}
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
