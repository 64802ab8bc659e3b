#!/usr/bin/env python3
"""Fails when a source file includes what its module must not. MAY_INCLUDE below is the layer table.

A module includes its own headers, those of the modules listed for it, and nothing else of this project. Some libraries
belong to one module. Private headers (src/<module>/x.h) are included by bare name, so only from their own folder.

Usage: check_includes.py [--root FOLDER]      prints every violation as path:line, exit code 1 when there is one
"""
import argparse
import pathlib
import re
import sys

# In the order of the layers. An entry with a slash is one header of a module.
MAY_INCLUDE = {
    "core": (),
    "io": ("core",),
    "data": ("core", "io"),
    "quant": ("core",),
    "model": ("core", "io"),
    "adapters": ("core", "io", "quant", "model"),  # io: reads PEFT folders
    "comm": ("core",),
    "fsdp": ("core", "comm", "model/parameters.h"),
    "optim": ("core", "quant", "comm", "fsdp"),
    "checkpoint": ("core", "io", "comm", "data", "fsdp", "optim"),
    "export": ("core", "io", "quant", "model", "adapters", "comm", "fsdp", "checkpoint"),  # gathers shards
    "options": ("core",),  # and the options.h of every module
}
MAY_INCLUDE["train"] = tuple(MAY_INCLUDE)
MAIN = ("core", "comm", "options", "train")  # src/main.cpp; comm: the MPI session

# Library headers that only these modules use.
OWNED_LIBRARIES = {
    "boost/": ("options",),
    "hdf5": ("io",),
    "H5": ("io",),
    "mpi.h": ("comm",),
    "cuda": ("comm", "quant"),
    "nccl": ("comm",),
    "pcre2": ("core",),
}
# Modules that stay free of LibTorch: they compile in a second, and programs on a login node need no tensor library.
WITHOUT_TORCH = ("io", "data", "quant", "options")
TORCH = ("ATen/", "c10/", "torch/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def module_of(path):
    """Module of a path below the project: include/shardtune/MODULE/..., src/MODULE/..., or "main"."""
    parts = path.parts
    if parts[0] == "include":
        return parts[2]
    return "main" if len(parts) == 2 else parts[1]


def project_problem(module, header):
    """What is wrong with module including shardtune/HEADER, or None."""
    other = header.split("/")[0]
    allowed = MAIN if module == "main" else MAY_INCLUDE[module]
    if other == module or other in allowed or header in allowed:
        return None
    if module == "options" and header.endswith("/options.h"):
        return None
    if other not in MAY_INCLUDE:
        return f"there is no module '{other}'"
    return f"{module} may include: {', '.join(allowed) or 'no other module'}"


def library_problem(module, header):
    for prefix, owners in OWNED_LIBRARIES.items():
        if header.startswith(prefix) and module not in owners:
            return f"only {', '.join(owners)} uses {prefix.rstrip('/')}"
    if module in WITHOUT_TORCH and header.startswith(TORCH):
        return f"{module} does not use LibTorch"
    return None


def problems_of(path, text):
    """[(line number, header, problem)] of one file; `path` is relative to the project."""
    module, found = module_of(path), []
    if module != "main" and module not in MAY_INCLUDE:
        return [(1, str(path), f"'{module}' is not in the layer table of tools/check_includes.py")]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        if header.startswith("shardtune/"):
            problem = project_problem(module, header.removeprefix("shardtune/"))
        elif quote == '"':
            problem = "private headers are included by bare name" if ".." in header.split("/") else None
        else:
            problem = library_problem(module, header)
        if problem:
            found.append((number, header, problem))
    return found


def check(root):
    """(number of files read, lines to print)"""
    files = sorted(path for folder in ("src", "include") for path in (root / folder).rglob("*")
                   if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
    lines = []
    for path in files:
        relative = path.relative_to(root)
        for number, header, problem in problems_of(relative, path.read_text(encoding="utf-8")):
            lines.append(f"{relative}:{number}: includes {header}; {problem}")
    return len(files), lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    count, lines = check(parser.parse_args().root)
    if count == 0:
        sys.exit("check_includes.py: found no source files")
    print("\n".join(lines + [f"{count} files, {len(lines)} forbidden includes"]))
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
