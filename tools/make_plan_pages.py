#!/usr/bin/env python3
"""Writes docs/memory.md and docs/time.md: what `shardtune plan` says of 70B jobs, beside what was reported of other programs.

Usage: make_plan_pages.py [--binary build/shardtune] [--out docs]

Every figure of ours on the pages comes from a plan made in this run; nothing is trained and no GPU is needed.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LORA = ["--use_peft_lora", "--lora_r", "8", "--lora_alpha", "16", "--lora_dropout", "0.1", "--lora_target_modules", "all-linear",
        "--dtype", "bfloat16"]


def job(model="llama-2-70b", ranks=8, rows=8, accumulation=4, length=2048, policy="recompute", hardware="h100_sxm", more=()):
    return ["--model_name_or_path", f"configs/shapes/{model}", *LORA, "--world_size", str(ranks), "--ranks_per_node",
            str(min(ranks, 8)), "--per_device_train_batch_size", str(rows), "--gradient_accumulation_steps", str(accumulation),
            "--max_length", str(length), "--activation_policy", policy, "--hardware", f"configs/hardware/{hardware}.ini", *more]


def first(**changes):
    """The first run of the PEFT guide: 8 GPUs, bf16 base, 8 rows of 2,048 tokens a GPU, 4 micro-batches."""
    return job(**changes)


def second(**changes):
    """Its second: 2 GPUs, NF4 base with double quantisation, 2 rows, 2 micro-batches."""
    return job(**{"ranks": 2, "rows": 2, "accumulation": 2, "more": ("--use_4bit_quantization", "--use_nested_quant"), **changes})


NF4 = ("--use_4bit_quantization", "--use_nested_quant")
MEMORY = [
    ("bf16, 8 ranks, 8 x 2048", first(), "72-80"),
    ("the same, every 2nd layer input kept", first(policy="inputs_every_2"), ""),
    ("the same, every 8th", first(policy="inputs_every_8"), ""),
    ("the same as the first, 64 ranks", first(ranks=64), ""),
    ("the same as the first, the whole micro-batch at once", first(more=("--ffn_chunk_tokens", "16384")), ""),
    ("NF4, 2 ranks, 2 x 2048", second(), "35.6"),
    ("the same, every 2nd layer input kept", second(policy="inputs_every_2"), ""),
    ("Llama-3-70B: bf16, 8 ranks, 8 x 2048", first(model="llama-3-70b"), ""),
    ("the same, every 2nd layer input kept", first(model="llama-3-70b", policy="inputs_every_2"), ""),
    ("Llama-3-70B: NF4, 2 ranks, 2 x 2048", second(model="llama-3-70b"), ""),
    ("the same, every 2nd layer input kept", second(model="llama-3-70b", policy="inputs_every_2"), ""),
]
# name, options, published tokens/s a GPU, whose
TIME = [
    ("bf16 LoRA, 8 x H100, 32 rows of 4,096 a step", job(rows=4, accumulation=1, length=4096), 1092,
     "NeMo AutoModel: 15.0 s a step"),
    ("NF4 LoRA, 4 x H100, rows of 2,048", job(ranks=4, rows=4, accumulation=1, more=NF4), 786, "fsdp_qlora"),
    ("NF4 LoRA, 2 x RTX 4090, rows of 2,048", job(ranks=2, rows=1, accumulation=1, hardware="rtx_4090", more=NF4), 238,
     "fsdp_qlora, base offloaded to the host"),
]
COLUMNS = [("shards", ["weight_shards"]), ("gather buffers", ["gather_buffers"]), ("kept activations", ["kept_activations"]),
           ("stream", ["stream"]), ("workspace", ["workspace", "loss", "dequantised", "tables", "other"]),
           ("gradients, optimizer", ["gradients", "optimizer"])]


def make_plan(binary, arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "plan.json"
        done = subprocess.run([binary, "plan", *arguments, "--plan_json", str(out)], cwd=ROOT, check=False, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"make_plan_pages.py: {' '.join(arguments)}\n{done.stderr}")
        return json.loads(out.read_text(encoding="utf-8"))


def gb(count):
    return f"{count / 1e9:.2f}"


def of_llama3(plans, llama2, llama3, purpose=None):
    """By how much a line of Llama 3 is above that of Llama 2, in GB."""
    one, other = (plan["step"]["at_peak"][purpose] if purpose else plan["step"]["bytes"] for plan in (plans[llama2], plans[llama3]))
    return gb(other - one)


def memory_page(plans):
    first_command = " ".join(["build/shardtune plan"] + MEMORY[0][1])
    lines = [
        "# Memory of a 70B job", "",
        "Made by `python3 tools/make_plan_pages.py`. Planned, not run: the trainer's own code on shapes alone, every tensor of a step",
        "counted, attention, LoRA and loss with what their GPU kernels will allocate. A test holds the same count on the CPU",
        "against real runs, within 2 % for each purpose. No GPU has run any of this yet. The CUDA context and the libraries'",
        "buffers, about 1.5 GB, come on top. GB = 10^9 bytes; LoRA r 8 on all linears, dropout 0.1.", "",
        "Reported: what users of the PEFT + FSDP guide saw for the same run. Its script loads a base that is not quantised in",
        "float32, which alone is 17 GB of its figure.", "",
        "| run | peak | reported | " + " | ".join(name for name, _ in COLUMNS) + " | where |",
        "| --- | --- | --- | " + " | ".join("---" for _ in COLUMNS) + " | --- |"]
    for (name, _, reported), plan in zip(MEMORY, plans):
        step = plan["step"]
        parts = [gb(sum(step["at_peak"][p] for p in purposes)) for _, purposes in COLUMNS]
        lines.append(f"| {name} | **{gb(step['bytes'])}** | {reported or '-'} | " + " | ".join(parts) + f" | {step['phase']} |")
    lines += ["", "NF4 is the layout that a run has: double quantisation, 0.5166 bytes a weight, one matrix at a time dequantised",
              "([quantisation.md](quantisation.md)).", "", "What dominates: with a bf16 base the kept layer inputs",
              "(batch x length x width x 2 bytes x layers) and the shards; with NF4 the shards. `--activation_policy",
              "inputs_every_N` divides the first by N for one more forward at most ([time.md](time.md)), more ranks divide the",
              "second. `--ffn_chunk_tokens` bounds the workspace, and a layer works on whole documents one after the other, so it",
              "does not grow with the batch. Embedding and head of Llama 3 (128,256 words, 2.1 GB) are larger than a layer, or than",
              "four packed ones; they are gathered in pieces of rows, so that a layer sets the size of both gather buffers. What is",
              f"left of them is a rank's share: the Llama 3 lines have {of_llama3(plans, 0, 7)} and {of_llama3(plans, 5, 9)} GB more than those of",
              f"Llama 2, of which the shards are {of_llama3(plans, 0, 7, 'weight_shards')} and {of_llama3(plans, 5, 9, 'weight_shards')}.", "",
              "The first line:", "", "```", first_command, "```", ""]
    return "\n".join(lines)


def time_page(memory_plans, plans):
    lines = ["# Time of a step, estimated", "",
             "Made by `python3 tools/make_plan_pages.py` from `configs/hardware`, whose every figure and efficiency is named with its",
             "source. **An estimate**: no step of this program has run on a GPU yet. The streams of compute, gathers and exchanges",
             "are simulated in the order in which the step issues its work.", "",
             "## Beside published figures", "",
             "| job | estimate: s a step | tokens/s a GPU | published tokens/s a GPU | estimate / published | MFU |",
             "| --- | --- | --- | --- | --- | --- |"]
    for (name, arguments, published, whose), plan in zip(TIME, plans):
        time = plan["time"]
        ranks = int(arguments[arguments.index("--world_size") + 1])
        ours = time["tokens_per_second"] / ranks
        lines.append(f"| {name} | {time['seconds']:.2f} | {ours:.0f} | {published} ({whose}) | {ours / published:.2f} | "
                     f"{100 * time['model_flops_share']:.0f} % |")
    lines += ["", "The published programs are not this one: a ratio above 1 says what our schedule should reach with the efficiencies in the",
              "file, not what was measured. What the estimate leaves out makes it too fast: kernels that are not fused yet, a host",
              "that falls behind, power limits, ranks that wait for a slower one. The RTX 4090 run kept its base on the host and",
              "went through PCIe for it, which is not planned here, and its device holds 24 GB.", "",
              "## What saving memory costs", "",
              "The first run of [memory.md](memory.md) on 8 x H100:", "",
              "| activation policy | peak GB | s a step | tokens/s | waiting for collectives |", "| --- | --- | --- | --- | --- |"]
    for index in (0, 1, 2):
        plan, time = memory_plans[index], memory_plans[index]["time"]
        arguments = MEMORY[index][1]
        policy = arguments[arguments.index("--activation_policy") + 1]
        lines.append(f"| `{policy}` | {gb(plan['step']['bytes'])} | {time['seconds']:.1f} | {time['tokens_per_second']:.0f} | "
                     f"{100 * time['exposed_seconds'] / time['seconds']:.1f} % |")
    return "\n".join(lines + [""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "shardtune"))
    parser.add_argument("--out", default=str(ROOT / "docs"))
    options = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        plans = list(pool.map(lambda entry: make_plan(options.binary, entry[1]), MEMORY + TIME))
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "memory.md").write_text(memory_page(plans[:len(MEMORY)]), encoding="utf-8")
    (out / "time.md").write_text(time_page(plans, plans[len(MEMORY):]), encoding="utf-8")


if __name__ == "__main__":
    main()
