#!/usr/bin/env python3
"""One run of a program that others use for the same work, for compare_peers.py: prints one JSON line with tokens per second and peak
memory. Needs torch, transformers, peft, trl, accelerate and datasets; runs on the CPU.

  peer.py --kind trl|hf  --model DIR --rows FILE.jsonl ...      one process
  accelerate launch --config_file fsdp2_cpu.yaml peer.py --kind fsdp2 ...      one process a rank
"""
import argparse
import json
import os
import resource
import sys
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, Trainer, TrainerCallback, TrainingArguments


class StepTimes(TrainerCallback):
    """The moment at which each optimizer step ended."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, *_, **__):
        self.ends.append(time.perf_counter())


def collate(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "labels")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("trl", "hf", "fsdp2"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True, help="JSON Lines with input_ids and labels of one length")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--nf4", action="store_true", help="base in NF4 with double quantisation (needs bitsandbytes)")
    return parser.parse_args()


def make_trainer(options, output_dir, times):
    with open(options.rows, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    data = Dataset.from_list(rows)
    dtype = getattr(torch, options.dtype)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                      bnb_4bit_compute_dtype=dtype) if options.nf4 else None
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, quantization_config=quantisation)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=options.dropout, task_type="CAUSAL_LM", target_modules="all-linear")
    settings = dict(output_dir=output_dir, per_device_train_batch_size=options.batch, max_steps=options.steps, learning_rate=1e-4,
                    lr_scheduler_type="cosine", max_grad_norm=1.0, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
                    bf16=options.dtype == "bfloat16", disable_tqdm=True, gradient_checkpointing=options.recompute,
                    gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.kind == "trl":
        from trl import SFTConfig, SFTTrainer
        return SFTTrainer(model=model, args=SFTConfig(max_length=None, packing=False, **settings), train_dataset=data, peft_config=lora,
                          processing_class=AutoTokenizer.from_pretrained(options.model), callbacks=[times])
    return Trainer(model=get_peft_model(model, lora), args=TrainingArguments(remove_unused_columns=False, **settings), train_dataset=data,
                   data_collator=collate, callbacks=[times])


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    times = StepTimes()
    out, sys.stdout = sys.stdout, sys.stderr  # the trainers print on stdout
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(options, folder, times)
        length = len(trainer.train_dataset[0]["input_ids"])
        trainer.train()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    # The first step also warms everything up; it does not count, for us neither.
    seconds = (times.ends[-1] - times.ends[0]) / (len(times.ends) - 1)
    line = {"rank": int(os.environ.get("RANK", 0)), "tokens_per_second": options.batch * ranks * length / seconds,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "last_loss": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-1]}
    print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
