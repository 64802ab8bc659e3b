#!/usr/bin/env python3
"""Copies the part of a reference folder that the tests read into tests/parity/data.

The reference folder holds models/, numerics/ and smollm2/ as the Hugging Face peers left them (README.md beside this
script). Files are copied unchanged, but forward.safetensors, which is cut down to the tensors the tests compare.

Usage: collect.py REFERENCE_FOLDER [--out tests/parity/data]
"""
import argparse
import os
import pathlib
import shutil

import safetensors_lite

MODELS = ("tiny", "tiny-llama3", "tiny-odd")
EVERY_MODEL = ("batches.safetensors", "forward.json", "grads_fp32.safetensors", "lora/run.json",
               "lora/start.safetensors", "full/run.json")
TINY_ONLY = ("lora/grads_step1.safetensors", "lora/logits.safetensors", "lora/adapter/adapter_config.json",
             "lora/adapter/adapter_model.safetensors", "lora_warmup/run.json", "rslora/run.json",
             "rslora/adapter/adapter_config.json", "lora_bf16/run.json",
             "qlora_nf4_fp32/run.json", "qlora_nf4_fp32/dequantised_base.safetensors", "qlora_nf4_bf16/run.json",
             "qlora_nf4_bf16/dequantised_base.safetensors", "lora_int8_fp32/run.json", "full_adamw_8bit/run.json")
# DoRA starts with the matrices of `lora` and these magnitudes; "trained" are the weights after 20 steps.
DORA = (("tiny", "dora", True), ("tiny", "qdora_nf4_fp32", True), ("tiny-llama3", "dora", False), ("tiny-odd", "dora", False))
FORWARD = ("fp32.plain.logits", "rope.inv_freq")
FORWARD_TINY = FORWARD + ("fp32.padded.logits", "fp32.packed.logits", "bf16.plain.logits")
STORED_NF4 = ("config.json", "model.safetensors", "expected.safetensors")
SMOLLM2 = ("base_loss.json", "curve_lora_hf_fp32.json", "curve_lora_trl_fp32.json")


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)  # contents only: the source may be write-protected


def link_if_same(path, first):
    """Two models of one shape share their start values and batches: the second is a link to the first."""
    if path != first and first.is_file() and path.read_bytes() == first.read_bytes():
        path.unlink()
        path.symlink_to(os.path.relpath(first, path.parent))


def magnitudes(start):
    """Those of a start, under the names that PEFT gives them in its files."""
    return {name.removesuffix(".weight"): tensor for name, tensor in safetensors_lite.read(start).items() if "magnitude" in name}


def copy_dora(source, target, with_weights):
    copy(source / "run.json", target / "run.json")
    safetensors_lite.write(target / "magnitudes.safetensors", magnitudes(source / "start.safetensors"))
    if with_weights:
        copy(source / "grads_step1.safetensors", target / "grads_step1.safetensors")
        copy(source / "adapter" / "adapter_model.safetensors", target / "trained.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data")
    args = parser.parse_args()
    for model in MODELS:
        for file in sorted((args.reference / "models" / model).iterdir()):
            copy(file, args.out / "models" / model / file.name)
        source, target = args.reference / "numerics" / model, args.out / "numerics" / model
        for name in EVERY_MODEL + (TINY_ONLY if model == "tiny" else ()):
            copy(source / name, target / name)
            link_if_same(target / name, args.out / "numerics" / "tiny" / name)
        forward = safetensors_lite.read(source / "forward.safetensors")
        keep = FORWARD_TINY if model == "tiny" else FORWARD
        safetensors_lite.write(target / "forward.safetensors", {name: forward[name] for name in keep})
    for model, name, with_weights in DORA:
        copy_dora(args.reference / "numerics" / model / name, args.out / "numerics" / model / name, with_weights)
    for name in STORED_NF4:
        copy(args.reference / "quant" / "prequantised_nf4_tiny" / name, args.out / "models" / "tiny-nf4" / name)
    copy(args.reference / "numerics" / "made.json", args.out / "numerics" / "made.json")
    for name in SMOLLM2:
        copy(args.reference / "smollm2" / name, args.out / "smollm2" / name)
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file() and not f.is_symlink())
    print(f"{args.out}: {size / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()
