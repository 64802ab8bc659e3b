#!/usr/bin/env python3
"""Losses of SmolLM2-135M-Instruct on our own demo conversations, by Transformers and PEFT, in fp32 on the CPU.

Writes tests/parity/data/smollm2/own_rows.safetensors (`input_ids` int32 [10, 256]: the demo training conversations in
the model's own template, joined and cut) and own_loss.json:
  base_loss    mean loss of each row (255 predictions), log-sum-exp in fp64 over the fp32 logits, and over bf16 logits
  curve_fp64   5 LoRA steps written out below, loss in fp64 over the fp32 logits
  curve_trainer  the same steps by transformers.Trainer (its fp32 log-softmax over 49,152 classes is about 1e-5 low)
and own_qlora_loss.json with curve_fp64 over the base in NF4 with double quantisation by bitsandbytes, computing in fp32.
LoRA r 8, alpha 16, all-linear, A = uniform(name_seed(name), 1/sqrt(in)), B = 0; rows in order, two a step; AdamW lr 1e-4
cosine to 0 over 5 steps, weight decay 1e-4, gradient norm clipped at 1.

Usage: smollm2_loss.py MODEL_FOLDER       with the packages of requirements.txt; about 3 minutes
"""
import importlib.metadata
import json
import math
import os
import pathlib
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import formula  # noqa: E402
import make_demo_chat  # noqa: E402

OUT = ROOT / "tests" / "parity" / "data" / "smollm2"
ROWS, LENGTH, BATCH, STEPS = 10, 256, 2, 5
LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-4, 1e-4, 1.0


def make_rows(model_folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    ids = []
    for row in make_demo_chat.splits()["train"]:
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids[:ROWS * LENGTH]).reshape(ROWS, LENGTH)


def loss_fp64(logits, ids):
    """Mean over the predictions of all rows: log-sum-exp minus the target's logit, both in fp64."""
    exact = logits[:, :-1].double()
    return (exact.logsumexp(-1) - exact.gather(-1, ids[:, 1:, None]).squeeze(-1)).mean()


def base_losses(model_folder, rows, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).eval()
    with torch.no_grad():
        return [float(loss_fp64(model(input_ids=row[None], use_cache=False).logits, row[None])) for row in rows]


NF4 = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                      bnb_4bit_compute_dtype=torch.float32)


def lora_model(model_folder, quantisation=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, quantization_config=quantisation)
    config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                             target_modules="all-linear")
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_A" in name:
                seed = formula.name_seed(name.replace(".default", ""))
                values = formula.uniform(seed, weight.numel(), weight.shape[1] ** -0.5)
                weight.copy_(torch.from_numpy(values).reshape(weight.shape))
            elif "lora_B" in name:
                weight.zero_()
    return model


def gradient_norm(weights):
    return float(torch.stack([w.grad.double().norm() for w in weights]).norm())


def written_out(model, rows):
    """The training loop, step by step."""
    model.train()
    weights = [w for w in model.parameters() if w.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    curve = []
    for step in range(STEPS):
        ids = rows[step * BATCH:(step + 1) * BATCH]
        rate = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        optimizer.param_groups[0]["lr"] = rate
        loss = loss_fp64(model(input_ids=ids, use_cache=False).logits, ids)
        loss.backward()
        curve.append({"loss": float(loss.detach()), "grad_norm": gradient_norm(weights), "lr": rate})
        print("step", step + 1, curve[-1], flush=True)
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return curve


class OrderedTrainer(transformers.Trainer):
    """Rows in order; keeps the log line of every step."""

    def _get_train_sampler(self, *_args, **_kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_trainer(model_folder, rows):
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=LEARNING_RATE,
            lr_scheduler_type="cosine", warmup_steps=0, weight_decay=WEIGHT_DECAY, max_grad_norm=CLIP,
            optim="adamw_torch", logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
        trainer = OrderedTrainer(model=lora_model(model_folder), args=arguments,
                                 train_dataset=[{"input_ids": row, "labels": row} for row in rows])
        trainer.train()
    return [{"loss": line["loss"], "grad_norm": float(line["grad_norm"]), "lr": line["learning_rate"]}
            for line in trainer.state.log_history if "loss" in line]


def about(*names):
    return {"made_with": {name: importlib.metadata.version(name) for name in names},
            "settings": {"r": 8, "alpha": 16, "batch": BATCH, "steps": STEPS, "lr": LEARNING_RATE, "scheduler": "cosine",
                         "warmup": 0, "weight_decay": WEIGHT_DECAY, "max_grad_norm": CLIP}}


def qlora(model_folder, rows):
    return {**about("torch", "transformers", "peft", "bitsandbytes"),
            "curve_fp64": written_out(lora_model(model_folder, NF4), rows)}


def write(name, result):
    (OUT / name).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main():
    model_folder = sys.argv[1]
    rows = make_rows(model_folder)
    OUT.mkdir(parents=True, exist_ok=True)
    save_file({"input_ids": rows.to(torch.int32)}, OUT / "own_rows.safetensors", {"format": "pt"})
    result = {**about("torch", "transformers", "peft"),
              "base_loss": {"fp32": base_losses(model_folder, rows, torch.float32),
                            "bf16": base_losses(model_folder, rows[:4], torch.bfloat16)},
              "curve_fp64": written_out(lora_model(model_folder), rows), "curve_trainer": by_trainer(model_folder, rows)}
    write("own_loss.json", result)
    write("own_qlora_loss.json", qlora(model_folder, rows))


if __name__ == "__main__":
    main()
