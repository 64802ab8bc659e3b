#!/usr/bin/env python3
"""Short runs of PEFT adapters that touch the embedding, the head, norms or whole modules, on the tiny models.

Usage: embedding_runs.py [--data tests/parity/data] [--only NAME ...]
For each run: data/numerics/MODEL/NAME/{run.json, start/}: the folder that save_pretrained writes before the first step, and loss,
gradient norm and rate of each step; of the runs `tokens*` also adapter/, the trained folder. 2 rows and 2 micro-batches a step, as the other runs; AdamW, cosine schedule, clip 1.
"""
import argparse
import json
import math
import pathlib
import shutil
import warnings

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

STEPS, LONG, RATE, DECAY = 8, 20, 5e-3, 1e-4
RUNS = {
    "embed_lora": ("tiny", {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "q_proj"]}),
    "embed_head_lora": ("tiny-llama3", {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head"]}),
    "saved_embed": ("tiny-llama3", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
                                    "modules_to_save": ["embed_tokens"]}),
    "saved_tied": ("tiny-llama3", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
                                   "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "saved_norm_down": ("tiny", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "down_proj"],
                                 "modules_to_save": ["norm", "layers.1.mlp.down_proj"]}),
    "tokens": ("tiny", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
                        "trainable_token_indices": [90, 1, 260, 2]}),
    "tokens_both": ("tiny", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
                             "trainable_token_indices": {"embed_tokens": [90, 1, 260, 2], "lm_head": [2, 50, 17]}}),
    "tokens_tied": ("tiny-llama3", {"r": 2, "lora_alpha": 4, "target_modules": ["v_proj"],
                                    "trainable_token_indices": [260, 2, 90, 1]}),
}


def start_values(model):
    """A and B that are not zero; what PEFT copies from the base stays."""
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_" in name:
                parameter.copy_(0.1 * (2 * torch.rand(parameter.shape, generator=generator) - 1))


def micro_loss(model, ids, labels, targets):
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].double()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1),
                                             ignore_index=-100, reduction="sum") / targets


def train(model, batches, count):
    trained = [p for p in model.parameters() if p.requires_grad]
    norms = {id(p) for n, p in model.named_parameters() if "norm" in n}
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if id(p) not in norms], "weight_decay": DECAY},
                                   {"params": [p for p in trained if id(p) in norms], "weight_decay": 0.0}], lr=RATE)
    steps = []
    for step in range(count):
        micro = [(batches["train.input_ids"][i], batches["train.labels"][i]) for i in (2 * step, 2 * step + 1)]
        targets = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro)
        optimizer.zero_grad()
        losses = [micro_loss(model, ids, labels, targets) for ids, labels in micro]
        for loss in losses:
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        rate = RATE * 0.5 * (1 + math.cos(math.pi * step / count))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": float(sum(losses)), "grad_norm": float(norm), "lr": rate, "tokens": targets})
    return steps


def save(model, folder, model_name):
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../../../models/{model_name}"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(data, name):
    model_name, settings = RUNS[name]
    out = data / "numerics" / model_name / name
    shutil.rmtree(out, ignore_errors=True)
    base = AutoModelForCausalLM.from_pretrained(data / "models" / model_name, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        start_values(model)
        save(model, out / "start", model_name)
    model.train()
    count = LONG if name.startswith("tokens") else STEPS
    steps = train(model, load_file(data / "numerics" / model_name / "batches.safetensors"), count)
    run = {"settings": {"lr": RATE, "schedule": "cosine", "warmup_steps": 0, "weight_decay": DECAY, "max_grad_norm": 1.0,
                        "steps": count}, "steps": steps}
    if name.startswith("tokens"):
        save(model, out / "adapter", model_name)
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
