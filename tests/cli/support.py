"""Runs the program under mpirun and checks how it ends. Standard library only."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BINARY = os.environ["SHARDTUNE_BINARY"]
CASES = Path(os.environ["SHARDTUNE_TEST_DATA"]) / "cases"
# The library of the sanitizer that the program was built with, or "".
SANITIZER = os.environ.get("SHARDTUNE_TEST_SANITIZER", "")
RANKS = (1, 2, 3, 4)
# What the acceptance cases allow a failed job to take; the sanitizers make everything many times slower.
DEADLINE_S = 480 if SANITIZER else 60

OUR_LINE = re.compile(r"^shardtune: error \((\w+)\): (.*)$")
# Nothing of this may reach a user: the marks of signals, uncaught exceptions and stack traces.
TRACES = ("terminate called", "Segmentation fault", "Aborted", "*** Process received signal", "Exception raised from", "frame #",
          "AddressSanitizer", "runtime error:")


def environment():
    """The caller's environment without settings of this program that would change a run."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("SHARDTUNE_") or name == "SHARDTUNE_BINARY"}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
    if not SANITIZER:  # which reports leaks while a rank ends
        # After a rank's exit with a code other than 0 mpirun sleeps this long, twice, before it kills what is left; ranks that leave
        # together, as ours must, have nothing left to kill, and a test of a refusal would take three times as long.
        env["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
    return env


class Finished:
    """How a run ended: exit code, both streams, seconds."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def error_lines(self):
        """(class, message) of every error line of ours, in order."""
        return [match.groups() for line in self.err.splitlines() if (match := OUR_LINE.match(line))]

    def text(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out[-1500:]}\n--- stderr\n{self.err[-3000:]}"


class Job:
    """A run in progress, in its own process group. `ranks_env` reaches the ranks but not mpirun; `before` is a shell command that
    each rank runs first."""

    def __init__(self, ranks, arguments, ranks_env=None, before=None, cwd=None):
        command = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
        for name, value in (ranks_env or {}).items():
            if name == "LD_PRELOAD" and SANITIZER:
                value = f"{SANITIZER}:{value}"
            command += ["-x", f"{name}={value}"]
        if before:
            command += ["sh", "-c", before + '; exec "$0" "$@"']
        self.folder = tempfile.TemporaryDirectory(prefix="shardtune-cli-")
        # Files and not pipes: a job that prints much must not wait for its reader.
        self.paths = [Path(self.folder.name) / name for name in ("out", "err")]
        self.start = time.monotonic()
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.process = subprocess.Popen(command + [BINARY] + [str(a) for a in arguments], stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, env=environment(), cwd=cwd, start_new_session=True)

    def output(self):
        return self.paths[0].read_text(errors="replace")

    def wait_for(self, pattern, deadline_s=DEADLINE_S):
        """Returns when stdout holds the pattern; fails when the job ends or the time is over before."""
        end = time.monotonic() + deadline_s
        while not re.search(pattern, self.output(), re.MULTILINE):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no '{pattern}' in the log\n{self.finish().text()}")
            time.sleep(0.002)

    def pid_of(self, rank):
        """Process id of a rank, from the launcher's children."""
        wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if wanted in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    return int(child)
        raise AssertionError(f"no process of rank {rank}")

    def finish(self, deadline_s=DEADLINE_S):
        """Waits for the end. A job over the deadline is killed and reported as code None."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            code = None
        out, err = (path.read_text(errors="replace") for path in self.paths)
        self.folder.cleanup()
        return Finished(code, out, err, time.monotonic() - self.start)


def run(ranks, arguments, **keywords):
    return Job(ranks, arguments, **keywords).finish()


def options(base=(), **changes):
    """Arguments of `train` from name=value pairs; True stands alone, None leaves the option out."""
    merged = {**dict(base), **changes}
    arguments = ["train"]
    for name, value in merged.items():
        if value is None:
            continue
        arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return arguments


def lora_options(**changes):
    """A small LoRA run on the case files: 6 rows, 2 epochs, about half a second."""
    base = dict(model_name_or_path=CASES / "base-gqa", dataset_name=CASES / "rows-uneven.jsonl", use_peft_lora=True,
                adapter_name_or_path=CASES / "lora-start", lora_dropout=0, lr_scheduler_type="constant", learning_rate=1e-2,
                per_device_train_batch_size=1, shuffle=False, num_train_epochs=2, logging_steps=1, save_strategy="no")
    return {**base, **changes}


def rewrite_tensors(path, change):
    """Replaces the bytes of each tensor by change(name, header entry, bytes), which may edit the entry, and packs them again."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    parts, at = [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        parts.append(change(name, tensor, data[begin:end]))
        tensor["data_offsets"] = [at, at + len(parts[-1])]
        at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def read_lines(path):
    """The JSON objects of a JSON Lines file; no line may be anything else."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


class CliTest(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="shardtune-cli-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)

    def model_copy(self, name="model", source="base-gqa"):
        folder = self.scratch / name
        shutil.copytree(CASES / source, folder)
        for path in folder.iterdir():
            path.chmod(0o644)
        return folder

    def change_config(self, folder, **changes):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def rows(self, records, name="rows.jsonl"):
        path = self.scratch / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
        return path

    def check_succeeded(self, done):
        self.assertEqual(done.code, 0, done.text())
        self.assertEqual(done.error_lines(), [], done.text())

    def check_failed_cleanly(self, done, code, error_class, fragments):
        """One line of ours with class and fragments, the exit code, no trace of a crash, in time. Returns the message."""
        self.assertEqual(done.code, code, done.text())
        self.assertLess(done.seconds, DEADLINE_S)
        lines = done.error_lines()
        self.assertEqual(len(lines), 1, done.text())
        self.assertEqual((done.out + done.err).count("shardtune: error"), 1, done.text())
        self.assertEqual(lines[0][0], error_class, done.text())
        for fragment in fragments:
            self.assertIn(fragment, lines[0][1], done.text())
        for trace in TRACES:
            self.assertNotIn(trace, done.out + done.err, done.text())
        return lines[0][1]

    def check_nothing_written(self, output, recorded):
        """No adapter, no model, no checkpoint, no leftovers; `recorded` is the (class, message) that must end metrics.jsonl."""
        if not output.is_dir():
            self.assertIsNone(recorded)
            return
        names = sorted(path.name for path in output.iterdir())
        allowed = {"metrics.jsonl", "run_options.json"}
        self.assertLessEqual(set(names), allowed, names)
        if recorded is None:
            return
        last = read_lines(output / "metrics.jsonl")[-1]
        self.assertEqual(last, {"error_class": recorded[0], "error": recorded[1]})

    def check_refused(self, base, error_class, *fragments, code=1, ranks=RANKS, recorded=True, **keywords):
        """The run fails in the same clean way on every number of ranks and leaves no result; `recorded`: the output folder was
        usable, so the error must also be in metrics.jsonl."""
        outputs = {n: self.scratch / f"out-{n}" for n in ranks}

        def one(n):
            shutil.rmtree(outputs[n], ignore_errors=True)
            return run(n, options(base, output_dir=outputs[n]), **keywords)

        messages = set()
        for n, done in in_parallel(one, ranks).items():
            with self.subTest(ranks=n):
                message = self.check_failed_cleanly(done, code, error_class, fragments)
                self.check_nothing_written(outputs[n], (error_class, message) if recorded else None)
                messages.add(re.sub(r"^rank \d+: ", "", message).replace(str(outputs[n]), "OUT"))
        self.assertEqual(len(messages), 1, "the message depends on the number of ranks")


def in_parallel(function, arguments):
    """{argument: result}. Two at a time: a start is mostly waiting for the launcher."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(arguments, pool.map(function, arguments)))


def main():
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
