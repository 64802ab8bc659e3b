#!/usr/bin/env python3
"""This program beside TRL + PEFT, the plain Transformers Trainer + PEFT, and Accelerate FSDP2 on two ranks: LoRA on the demo model,
the same rows and settings, one run after the other in alternation. Prints a table of medians in Markdown and stores every raw value.

  compare_peers.py --python VENV/bin/python [--pairs 5] [--steps 8] [--only float32/trl ...] [--out runs/bench/peers.json]

VENV holds torch, transformers, peft, trl, accelerate, bitsandbytes and datasets. The machine's own limit is the matrix product rate of LibTorch's
BLAS on the model's shapes, in the same run, over the 0.54 GFLOP that a token takes with nothing computed twice.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
MODEL = ROOT / "runs/demo/SmolLM2-135M-Instruct"
LENGTH = 256

# What is compared: name, our ranks and threads, batch, type, the peer's command (None: nobody else).
CASES = {
    "float32/trl": dict(ranks=1, threads=2, batch=2, dtype="float32", peer="trl"),
    "float32/hf": dict(ranks=1, threads=2, batch=2, dtype="float32", peer="hf"),
    "bfloat16/trl": dict(ranks=1, threads=2, batch=2, dtype="bfloat16", peer="trl"),
    "bfloat16/hf": dict(ranks=1, threads=2, batch=2, dtype="bfloat16", peer="hf"),
    "NF4 float32/trl": dict(ranks=1, threads=2, batch=2, dtype="float32", peer="trl", nf4=True),
    "NF4 float32/hf": dict(ranks=1, threads=2, batch=2, dtype="float32", peer="hf", nf4=True),
    "2 ranks float32/fsdp2": dict(ranks=2, threads=1, batch=1, dtype="float32", peer="fsdp2"),
}

# Runs inside the venv: rows of LENGTH tokens from the demo conversations, and the product rate on the model's shapes.
ROWS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
ids = []
for line in open(sys.argv[2], encoding="utf-8"):
    ids += tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=False)
length = int(sys.argv[4])
with open(sys.argv[3], "w", encoding="utf-8") as out:
    for at in range(0, len(ids) - length + 1, length):
        out.write(json.dumps({"input_ids": ids[at:at + length], "labels": ids[at:at + length]}) + "\\n")
"""
RATE = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[2]))
tokens, kind = int(sys.argv[3]), getattr(torch, sys.argv[1])
shapes = [(576, 576, 2 * 30), (576, 192, 2 * 30), (576, 1536, 2 * 30), (1536, 576, 30), (576, 49152, 1)]
flop = seconds = 0
for inner, outer, count in shapes:
    x, w = torch.randn(tokens, inner).to(kind), torch.randn(outer, inner).to(kind)
    best = 1e9
    for _ in range(5):
        begin = time.perf_counter()
        torch.mm(x, w.t())
        best = min(best, time.perf_counter() - begin)
    flop += 2 * tokens * inner * outer * count
    seconds += best * count
print(flop / seconds / 1e9)
"""
FLOP_PER_TOKEN = 0.54e9


def run(command, **environment):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, **environment}, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"compare_peers.py: {command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def ours(case, rows, steps):
    """Tokens per second after the first step, and the peak over all ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": str(case["threads"]), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        run(["mpirun", "-np", case["ranks"], "--oversubscribe", "--bind-to", "none", ROOT / "build/shardtune", "train",
             "--model_name_or_path", MODEL, "--dataset_name", rows, "--output_dir", folder, "--dtype", case["dtype"], "--max_length", LENGTH,
             "--per_device_train_batch_size", case["batch"], "--max_steps", steps, "--use_peft_lora", "True", "--lora_r", "8", "--lora_alpha",
             "16", "--lora_dropout", "0.1", "--learning_rate", "1e-4", "--lr_scheduler_type", "cosine", "--save_strategy", "no",
             "--logging_steps", "1"] + (["--use_4bit_quantization", "--use_nested_quant"] if case.get("nf4") else []), **environment)
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    steps_only = [line for line in lines if "loss" in line]
    seconds = [case["batch"] * case["ranks"] * LENGTH / line["tokens_per_second"] for line in steps_only[1:]]
    return {"tokens_per_second": case["batch"] * case["ranks"] * LENGTH * len(seconds) / sum(seconds),
            "peak_rss_bytes": lines[-1]["peak_rss_bytes"] * case["ranks"], "last_loss": steps_only[-1]["loss"]}


def peer(case, rows, steps, python):
    script = [HERE / "peer.py", "--kind", case["peer"], "--model", MODEL, "--rows", rows, "--dtype", case["dtype"], "--steps", steps, "--batch",
              case["batch"], "--threads", case["threads"]] + (["--nf4"] if case.get("nf4") else [])
    if case["peer"] == "fsdp2":
        command = [pathlib.Path(python).parent / "accelerate", "launch", "--config_file", HERE / "fsdp2_cpu.yaml", *script]
    else:
        command = [python, *script]
    text = run(command, OMP_NUM_THREADS=str(case["threads"]), TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"rank"')]
    return {"tokens_per_second": lines[0]["tokens_per_second"], "peak_rss_bytes": sum(line["peak_rss_bytes"] for line in lines),
            "last_loss": lines[0]["last_loss"]}


def compare(name, options, rows):
    case = CASES[name]
    tokens = case["batch"] * LENGTH
    result = {"case": name, "pairs": [], "load": []}
    for _ in range(options.pairs):
        result["load"].append(os.getloadavg()[0])
        result["pairs"].append({"ours": ours(case, rows, options.steps), "peer": peer(case, rows, options.steps, options.python)})
        rate = float(run([options.python, "-c", RATE, case["dtype"], case["threads"] * case["ranks"], tokens]))
        result["pairs"][-1]["matmul_gflops"] = rate
        print(f"{name}: {result['pairs'][-1]}", file=sys.stderr, flush=True)
    return result


def table(results):
    print("| case | ours tokens/s | peer tokens/s | ratio | ours peak GiB | peer peak GiB | ratio | share of the matmul limit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for result in results:
        def median(pick):
            return statistics.median(pick(pair) for pair in result["pairs"])
        speed, other = median(lambda p: p["ours"]["tokens_per_second"]), median(lambda p: p["peer"]["tokens_per_second"])
        memory, theirs = median(lambda p: p["ours"]["peak_rss_bytes"]) / 2**30, median(lambda p: p["peer"]["peak_rss_bytes"]) / 2**30
        ratio = median(lambda p: p["ours"]["tokens_per_second"] / p["peer"]["tokens_per_second"])
        share = median(lambda p: p["ours"]["tokens_per_second"] * FLOP_PER_TOKEN / (p["matmul_gflops"] * 1e9))
        print(f"| {result['case']} | {speed:.0f} | {other:.0f} | {ratio:.2f} | {memory:.2f} | {theirs:.2f} | {memory / theirs:.2f} | {share:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/bench/peers.json")
    options = parser.parse_args()
    if not (MODEL / "config.json").exists():
        sys.exit(f"compare_peers.py: no demo model in {MODEL}; run tools/quickstart.sh first")
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.jsonl"
        run([options.python, "-c", ROWS, MODEL, ROOT / "runs/demo/chat/train.jsonl", rows, LENGTH])
        results = [compare(name, options, rows) for name in options.only]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table(results)


if __name__ == "__main__":
    main()
