#!/usr/bin/env python3
"""Checks that the linked program for GPUs is one: what it loads, and the processors its kernels were compiled for.

Usage: check_cuda_program.py PROGRAM ARCHITECTURE...      for example build/cuda/shardtune 80 90
"""
import re
import struct
import subprocess
import sys

LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cpu.so", "libc10.so", "libnccl.so", "libcudart.so")
KERNELS = ("ordered_sum", "four_bit", "int8_rows", "quantise_states", "dequantise_states")
FAT_BINARY = struct.pack("<I", 0xBA55ED50)  # nvcc's container of one .cu file; entries of 16 bytes header follow


def readelf(flags, program):
    return subprocess.run(["readelf", "-W", flags, program], check=True, capture_output=True, text=True).stdout


def kernel_architectures(program):
    """[{architecture}] of the machine code of each .cu file in the program."""
    found = re.search(r"\.nv_fatbin\s+PROGBITS\s+\S+\s+(\w+)\s+(\w+)", readelf("-S", program))
    if not found:
        return []
    with open(program, "rb") as file:
        file.seek(int(found[1], 16))
        section = file.read(int(found[2], 16))
    containers = []
    start = section.find(FAT_BINARY)
    while start >= 0:
        header, size = struct.unpack_from("<HQ", section, start + 6)
        at, end, architectures = start + header, start + header + size, set()
        while at < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", section, at)
            if kind == 2:  # machine code; 1 is PTX
                architectures.add(struct.unpack_from("<I", section, at + 28)[0])
            at += entry_header + entry_size
        containers.append(architectures)
        start = section.find(FAT_BINARY, end)
    return containers


def main():
    program, wanted = sys.argv[1], {int(a) for a in sys.argv[2:]}
    loads = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", program))
    missing = [name for name in LIBRARIES if not any(one == name or one.startswith(name + ".") for one in loads)]
    if missing:
        sys.exit(f"{program} does not load {', '.join(missing)}; it loads {', '.join(loads)}")
    symbols = readelf("-s", program)
    absent = [name for name in KERNELS if not re.search(rf"__device_stub__\w*\d{name}", symbols)]
    if absent:
        sys.exit(f"{program} has no kernel {', '.join(absent)}")
    containers = kernel_architectures(program)
    if not containers or any(architectures != wanted for architectures in containers):
        sys.exit(f"{program}: kernels for {containers}, wanted {sorted(wanted)} in each file")
    print(f"{program}: loads {', '.join(LIBRARIES)}; {len(containers)} files of kernels for "
          + ", ".join(f"sm_{a}" for a in sorted(wanted)))


if __name__ == "__main__":
    main()
