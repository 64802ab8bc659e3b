#!/usr/bin/env python3
"""Makes the LibTorch folder the build links with, out of the wheels of PyTorch.

The wheels on the package index are CUDA builds, but their libtorch_cpu and libc10 run without a GPU; they only name
libcudart and libcupti, which come from two small wheels. So the CPU folder holds include/ and five libraries.

Usage: make_libtorch.py [--cuda]      prints the folder
  --cuda   the whole wheel, for the program that cmake --preset cuda links; nothing more is downloaded
"""
import argparse
import pathlib
import shutil
import zipfile

import wheels

MARKER = ".made-from"  # written last: names the wheels the folder was unpacked from
CPU_LIBRARIES = {"torch": ("libc10.so", "libtorch_cpu.so", "libgomp.so.1"),
                 "nvidia-cuda-runtime": ("libcudart.so.13",), "nvidia-cuda-cupti": ("libcupti.so.13",)}
UNPACKED_BYTES = {"cpu": 550_000_000, "cuda": 2_000_000_000}


def target_of(wheel, member, flavour):
    """Where a wheel's member goes below the folder, or None when it is not wanted."""
    path = pathlib.PurePosixPath(member)
    if member.endswith("/"):
        return None
    if flavour == "cuda":
        wanted = path.parts[0] == "torch" and path.parts[1] in ("include", "lib", "share")
        return path.relative_to("torch") if wanted else None
    if member.startswith("torch/include/"):
        return path.relative_to("torch")
    if path.parent.name == "lib" and path.name in CPU_LIBRARIES[wheel]:
        return pathlib.PurePosixPath("lib") / path.name
    return None


def contents(archive, wheel, flavour):
    """[(member, target)] of one open wheel."""
    pairs = [(info, target_of(wheel, info.filename, flavour)) for info in archive.infolist()]
    return [(info, target) for info, target in pairs if target is not None]


def unpack(archive, pairs, folder):
    for info, target in pairs:
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, open(path, "wb") as out:  # zipfile checks each member's CRC
            shutil.copyfileobj(source, out, 1 << 20)


def same_sizes(pairs, folder):
    return all((folder / t).is_file() and (folder / t).stat().st_size == info.file_size for info, t in pairs)


def make(flavour):
    """Returns the folder; unpacks it when it is missing, half made by hand, or made from other wheels."""
    folder = wheels.cache_dir() / f"libtorch-{wheels.PINNED['torch'][0]}-{flavour}"
    names = CPU_LIBRARIES if flavour == "cpu" else ("torch",)
    mark = "".join(f"{n} {wheels.PINNED[n][0]} {wheels.PINNED[n][1]}\n" for n in names)
    marker = folder / MARKER
    if marker.is_file() and marker.read_text(encoding="ascii") == mark:
        return folder
    with wheels.cache_lock():
        archives = {n: zipfile.ZipFile(wheels.fetch(n)) for n in names}
        members = {n: contents(archives[n], n, flavour) for n in names}
        if folder.is_dir() and all(same_sizes(members[n], folder) for n in names):
            marker.write_text(mark, encoding="ascii")
            return folder
        wheels.need_space(folder.parent, UNPACKED_BYTES[flavour], f"unpacking LibTorch ({flavour})")
        with wheels.fresh_folder(folder) as partial:
            for n in names:
                unpack(archives[n], members[n], partial)
            (partial / MARKER).write_text(mark, encoding="ascii")
    return folder


def cuda_notes(folder):
    """What the CUDA program needs besides, read from the wheel's own list of requirements."""
    kept = folder / "METADATA"
    if not kept.is_file():
        with wheels.cache_lock(), zipfile.ZipFile(wheels.fetch("torch")) as archive:
            kept.write_bytes(archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))))
    lines = kept.read_text(encoding="utf-8").splitlines()
    needs = sorted({line.split(": ")[1].split(";")[0].strip() for line in lines
                    if line.startswith("Requires-Dist: ") and ("nvidia" in line or "cuda" in line)})
    print(f"LibTorch with CUDA: {folder}")
    print("the build needs the CUDA 13.0 toolkit (nvcc) and NCCL; the machine that runs the program, libraries of these versions: "
          + ", ".join(needs))
    print("build with: cmake --preset cuda && cmake --build --preset cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true")
    if parser.parse_args().cuda:
        cuda_notes(make("cuda"))
    else:
        print(f"LibTorch: {make('cpu')}")


if __name__ == "__main__":
    wheels.run(main)
