#!/usr/bin/env python3
"""Plants one fault at a time in the source and expects the tests to find it.

mutations.json lists the faults: name, file, the exact old text (once in the file), the new text, the build target and the
ctest pattern of the tests that must turn red; "needs" names the processor feature (a flag of /proc/cpuinfo) without which
the faulty code does not run: where it is missing the fault is not planted, and the last line says how many. Each one is
edited in, built, tested and taken out again; the file is restored, and in the end the tests are built once more, also after
Ctrl-C. A fault that the tests do not see, one that does not compile and one whose text is not found are failures of the list.

Usage: mutate.py [--list] [--only NAME ...] [--build build] [--jobs 2]
"""
import argparse
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutations.json"


@contextlib.contextmanager
def planted(mutation):
    """The fault is in the file inside the block, and out of it afterwards, whatever ends the block."""
    path = ROOT / mutation["file"]
    original = path.read_bytes()
    old, new = mutation["old"].encode(), mutation["new"].encode()
    count = original.count(old)
    if count != 1:
        raise LookupError(f"its old text stands {count} times in {mutation['file']}, not once")
    faulty = original.replace(old, new)
    try:
        path.write_bytes(faulty)
        yield
    finally:
        # Somebody who edits the file meanwhile must not lose the work to our restoring.
        if path.read_bytes() not in (faulty, original):
            sys.exit(f"mutate.py: {path} was changed by someone else; the fault {mutation['name']} may still be in it")
        path.write_bytes(original)


def processor_flags():
    """The features of this machine's processor by Linux's names; empty where /proc/cpuinfo has no such line."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return set(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())


def run(command):
    return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def build(options, target):
    return run(["cmake", "--build", options.build, "--parallel", str(options.jobs), "--target", *target.split()])


def test(options, pattern):
    return run(["ctest", "--test-dir", options.build, "--no-tests=error", "--output-on-failure", "--stop-on-failure",
                "-R", pattern, "-j", str(options.jobs)])


def problem_without_a_fault(options, target, pattern):
    """None when the tests are green as they stand; else what is wrong, after the output that shows it."""
    built = build(options, target)
    if built.returncode != 0:
        print(built.stdout[-1500:])
        return "the tree does not build without the fault"
    tested = test(options, pattern)
    if tested.returncode != 0:
        print(tested.stdout[-1500:])
        return f"the tests '{pattern}' are red without the fault"
    return None


def verdict(options, mutation):
    """None when the tests, green before, found the fault; else what is wrong."""
    pattern = mutation["tests"]
    try:
        with planted(mutation):
            built = build(options, mutation["target"])
            if built.returncode != 0:
                return "does not compile:\n" + built.stdout[-1500:]
            tested = test(options, pattern)
    except LookupError as error:
        return str(error)
    if "***Timeout" in tested.stdout:
        return f"the tests '{pattern}' ran out of time, which shows nothing on a busy machine; try again"
    return None if tested.returncode != 0 else f"SURVIVED: the tests '{pattern}' stay green"


def judge(options, mutations):
    """The number of faults that the tests did not find."""
    flags = processor_flags()
    elsewhere = [m for m in mutations if "needs" in m and m["needs"] not in flags]
    here = [m for m in mutations if m not in elsewhere]
    for mutation in elsewhere:
        print(f"{mutation['name']:40} not planted: this processor has no {mutation['needs']}", flush=True)
    bad = 0
    without = {}  # asked once for each group of faults
    for mutation in here:
        begin = time.monotonic()
        group = mutation["target"], mutation["tests"]
        if group not in without:
            without[group] = problem_without_a_fault(options, *group)
        problem = without[group] or verdict(options, mutation)
        bad += problem is not None
        print(f"{mutation['name']:40} {problem or 'found'} ({time.monotonic() - begin:.0f} s)", flush=True)
    missing = f"; {len(elsewhere)} not planted, they want another processor" if elsewhere else ""
    print(f"{len(here) - bad} of {len(mutations)} faults found{missing}")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--only", action="append", help="this one alone; may be given again")
    parser.add_argument("--build", default="build", help="a configured build folder")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutations = json.loads(LIST.read_text(encoding="utf-8"))
    if options.only:
        unknown = set(options.only) - {m["name"] for m in mutations}
        if unknown:
            sys.exit(f"mutate.py: no fault is called '{unknown.pop()}'; see --list")
        mutations = [m for m in mutations if m["name"] in options.only]
    if options.list:
        for mutation in mutations:
            print(f"{mutation['name']:32} {mutation['file']:44} {mutation['tests']}")
        return
    # A polite kill restores the file, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        bad = judge(options, mutations)
    finally:
        # No test program with a fault in it stays behind.
        for target in {m["target"] for m in mutations}:
            build(options, target)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
