#!/usr/bin/env python3
"""Cuts tests/parity/data/quant out of a reference folder's quant/, whose bytes bitsandbytes 0.50.2 made on a CPU.

code_tables, blockwise_8bit and int8 are copied whole. Of four_bit.safetensors every matrix stays that stands for a kind of
case (README.md beside this script); left out are the second matrix of whole blocks (160 x 64), what was derived and not made
by bitsandbytes (absmax_nearest), packed bytes of double quantisation that equal those without it, and dequantised values that
others stand for. Of adamw_8bit.safetensors the fp32 tensors stay: first values, gradients of ten steps, states after steps 1, 2
and 10. Their parameters come from adamw.py.

Usage: quant.py REFERENCE_FOLDER [--out tests/parity/data/quant]
"""
import argparse
import pathlib
import shutil

import safetensors_lite

WHOLE = ("code_tables", "blockwise_8bit", "int8")
ADAMW = ("AdamW8bit.0_64x128.fp32.", "AdamW8bit.1_100x77.fp32.", "AdamW8bit.2_40x40.fp32.", "grad.")


def keeps_dequantised(name):
    """Every kind of small matrix (37 x 54, 64 x 64, ...), and of the large ones double quantisation to fp32 and bf16."""
    if ".dequantised" not in name or name[:2] not in ("00", "02", "06", "07", "10"):
        return True
    return name[:2] in ("02", "06") and ".fp32.nf4.b64.double" in name


def four_bit(tensors):
    kept = {}
    for name, tensor in tensors.items():
        single = name.replace(".double.packed", ".single.packed")
        if name.startswith("01_") or name.endswith(".absmax_nearest") or not keeps_dequantised(name):
            continue
        if single != name and tensors[single] == tensor:
            continue
        kept[name] = tensor
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data" / "quant")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = args.reference / "quant"

    def read(name):
        return safetensors_lite.read(source / f"{name}.safetensors")

    def write(name, tensors):
        safetensors_lite.write(args.out / f"{name}.safetensors", tensors)
        print(f"{name}: {len(tensors)} tensors")

    for name in WHOLE:
        (args.out / f"{name}.safetensors").unlink(missing_ok=True)
        shutil.copyfile(source / f"{name}.safetensors", args.out / f"{name}.safetensors")
    write("four_bit", four_bit(read("four_bit")))
    write("adamw_8bit", {name: tensor for name, tensor in read("adamw_8bit").items()
                         if name.startswith(ADAMW) and not name.endswith(".param")})


if __name__ == "__main__":
    main()
