#!/usr/bin/env python3
"""Ten steps of the optimizers of bitsandbytes 0.50.2 and PyTorch on the tensors of quant/adamw_8bit.safetensors, on a CPU.

The parameters after step 10 go to tests/parity/data/quant/optimizer_parameters.safetensors. bitsandbytes takes its square roots
from PyTorch and PyTorch from MKL, which does not round them the same way on every processor: one unit in the last place of some
roots moves some parameters by one as well, and on most machines no byte of the states. With MKL_CBWR=AVX2, which this script
sets and checks, they are rounded correctly, so that another program can have the same bits.

Usage: adamw.py REFERENCE_FOLDER [--out tests/parity/data/quant]      needs requirements.txt
"""
import argparse
import os
import pathlib

os.environ.update(MKL_CBWR="AVX2", ATEN_CPU_CAPABILITY="avx2")
import bitsandbytes  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

SHAPES = {"0_64x128": (64, 128), "1_100x77": (100, 77), "2_40x40": (40, 40)}
RATE, DECAY, STEPS = 1e-2, 0.01, 10


def optimizer(name, weights):
    if name == "SGD":
        return torch.optim.SGD(weights, lr=RATE, weight_decay=DECAY)
    return getattr(bitsandbytes.optim, name)(weights, lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)


def check_roots():
    values = torch.rand(100_000)
    if not (values.sqrt().numpy() == numpy.sqrt(values.numpy())).all():
        raise SystemExit("square roots are not rounded correctly on this machine, in spite of MKL_CBWR=AVX2")


def check_states(reference, key, step, state):
    for role, tensor in state.items():
        if role.startswith(("state", "absmax")) and not torch.equal(tensor, reference[f"{key}.step{step}.{role}"]):
            raise SystemExit(f"{key}.step{step}.{role} is not what the reference folder has")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data" / "quant")
    args = parser.parse_args()
    torch.set_num_threads(1)
    check_roots()
    reference = load_file(args.reference / "quant" / "adamw_8bit.safetensors")
    made = {}
    for index, (tensor, shape) in enumerate(SHAPES.items()):
        key = f"AdamW8bit.{tensor}.fp32"
        for name in ("AdamW8bit", "PagedAdamW32bit", "SGD"):
            weight = torch.nn.Parameter(reference[key + ".start"].clone().reshape(shape))
            stepper = optimizer(name, [weight])
            for step in range(1, STEPS + 1):
                weight.grad = reference[f"grad.{index}.{step}"].clone().reshape(shape)
                stepper.step()
                if name == "AdamW8bit" and step in (1, 2, 10):
                    check_states(reference, key, step, stepper.state[weight])
            made[f"{name}.{tensor}"] = weight.detach().clone()
    save_file(made, args.out / "optimizer_parameters.safetensors")
    print(f"{len(made)} tensors")


if __name__ == "__main__":
    main()
