"""Tests of the scripts in tools/ that need no network: run by ctest as tools_scripts."""
import contextlib
import io
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "parity" / "make")]

import check_includes  # noqa: E402
import formula  # noqa: E402
import gguf  # noqa: E402
import make_demo_chat  # noqa: E402
import make_demo_model  # noqa: E402
import make_libtorch  # noqa: E402
import mutate  # noqa: E402
import wheels  # noqa: E402


class Includes(unittest.TestCase):
    def problems(self, path, line):
        return [problem for _, _, problem in check_includes.problems_of(pathlib.PurePosixPath(path), line + "\n")]

    def test_allowed(self):
        for path, header in (("src/io/x.cpp", "core/error.h"), ("src/fsdp/x.cpp", "model/parameters.h"),
                             ("src/options/x.cpp", "optim/options.h"), ("src/train/x.cpp", "export/peft.h"),
                             ("include/shardtune/data/x.h", "data/rows.h"), ("src/main.cpp", "train/run.h")):
            self.assertEqual(self.problems(path, f'#include "shardtune/{header}"'), [], path)

    def test_forbidden(self):
        for path, line in (("src/io/x.cpp", '#include "shardtune/data/rows.h"'),
                           ("src/fsdp/x.cpp", '#include "shardtune/model/linear.h"'),
                           ("src/options/x.cpp", '#include "shardtune/data/rows.h"'),
                           ("src/core/ops/x.cpp", '  #  include "shardtune/io/files.h"'),
                           ("src/main.cpp", '#include "shardtune/model/config.h"'),
                           ("src/data/x.cpp", '#include "shardtune/nowhere/x.h"'),
                           ("src/data/x.cpp", '#include "../io/transfer.h"'),
                           ("src/train/x.cpp", "#include <boost/program_options.hpp>"),
                           ("src/fsdp/x.cpp", "#include <mpi.h>"),
                           ("src/fsdp/x.cu", "#include <cuda_runtime.h>"), ("src/train/x.cpp", "#include <nccl.h>"),
                           ("src/data/x.cpp", "#include <ATen/ATen.h>")):
            self.assertEqual(len(self.problems(path, line)), 1, line)

    def test_unknown_module(self):
        self.assertEqual(len(self.problems("src/helpers/x.cpp", "")), 1)


class Gguf(unittest.TestCase):
    def test_q8_0(self):
        raw = np.frombuffer(struct.pack("<e", 0.5) + bytes(range(31)) + b"\xff", np.uint8)
        self.assertEqual(gguf.from_q8_0(raw)[0].tolist(), [0.5 * i for i in range(31)] + [-0.5])

    def test_q4_1(self):
        raw = np.frombuffer(struct.pack("<ee", 2.0, -1.0) + bytes([0x31] * 16), np.uint8)
        self.assertEqual(gguf.from_q4_1(raw)[0].tolist(), [1.0] * 16 + [5.0] * 16)

    def test_refuses_other_files(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"GGUX" + bytes(60))
            file.flush()
            with self.assertRaisesRegex(ValueError, "not a GGUF"):
                gguf.GgufFile(file.name)

    def test_bf16_rounds_to_even(self):
        for value, bits in ((1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (-2.5, 0xC020)):
            made = make_demo_model.bf16_bytes(np.array([value], np.float32))
            self.assertEqual(struct.unpack("<H", made)[0], bits, value)

    def test_rotary_halves(self):
        rows = np.arange(8)[:, None]  # two heads of four rows
        self.assertEqual(make_demo_model.rotary_halves(rows, 2)[:, 0].tolist(), [0, 2, 1, 3, 4, 6, 5, 7])


class DemoChat(unittest.TestCase):
    def test_counts_and_no_repeats(self):
        splits = make_demo_chat.splits()
        texts = [json.dumps(row) for rows in splits.values() for row in rows]
        self.assertEqual({name: len(rows) for name, rows in splits.items()}, {"train": 120, "test": 24})
        self.assertEqual(len(set(texts)), 144)

    def test_form(self):
        for rows in make_demo_chat.splits().values():
            for row in rows:
                roles = [message["role"] for message in row["messages"]]
                self.assertEqual(roles, ["system"] + ["user", "assistant"] * (len(roles) // 2))
                for message in row["messages"][2::2]:
                    self.assertRegex(message["content"], r"(?s)^TOPIC: \w+ \| LEVEL: \w+\nCAUSE: .*\n-- Halden desk$")
                self.assertNotRegex(json.dumps(row), "[{]n[}]|[{]node[}]")


class Formula(unittest.TestCase):
    def test_fnv_and_splitmix(self):
        self.assertEqual(formula.name_seed(""), 0xCBF29CE484222325)  # published test vectors of FNV-1a
        self.assertEqual(formula.name_seed("foobar"), 0x85944171F73967E8)
        first = 0xE220A8397B1DCDAF  # splitmix64, seed 0, first output
        self.assertEqual(formula.uniform(0, 1, 1.0)[0], np.float32((first >> 40) / 2**23 - 1))


REQUIREMENTS = "Requires-Dist: numpy\nRequires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'\n"


class Wheels(unittest.TestCase):
    """The cache with a made-up wheel in place of the big ones."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = pathlib.Path(self.folder.name)
        environment = unittest.mock.patch.dict(os.environ, {"SHARDTUNE_CACHE": str(self.cache)})
        environment.start()
        self.addCleanup(environment.stop)
        (self.cache / "wheels").mkdir()
        pinned = {}
        for name, members in (("torch", ("torch/include/ATen/ATen.h", "torch/lib/libc10.so", "torch/lib/libtorch_cpu.so",
                                         "torch/lib/libgomp.so.1", "torch/lib/libtorch_cuda.so", "torch/nn/a.py",
                                         "torch-2.11.0.dist-info/METADATA")),
                              ("nvidia-cuda-runtime", ("nvidia/cu13/lib/libcudart.so.13",)),
                              ("nvidia-cuda-cupti", ("nvidia/cu13/lib/libcupti.so.13", "nvidia/cu13/lib/other.so"))):
            version = wheels.PINNED[name][0]
            path = self.cache / "wheels" / f"{name.replace('-', '_')}-{version}-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                for member in members:
                    archive.writestr(member, REQUIREMENTS if member.endswith("METADATA") else member)
            pinned[name] = (version, wheels.sha256(path), path.stat().st_size)
        pins = unittest.mock.patch.object(wheels, "PINNED", pinned)
        pins.start()
        self.addCleanup(pins.stop)

    def test_cpu_layout(self):
        folder = make_libtorch.make("cpu")
        self.assertEqual(folder, self.cache / "libtorch-2.11.0-cpu")
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        self.assertEqual(names, [".made-from", "include/ATen/ATen.h", "lib/libc10.so", "lib/libcudart.so.13",
                                 "lib/libcupti.so.13", "lib/libgomp.so.1", "lib/libtorch_cpu.so"])

    def test_cuda_layout(self):
        folder = make_libtorch.make("cuda")
        names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        self.assertEqual(names, [".made-from", "include/ATen/ATen.h", "lib/libc10.so", "lib/libgomp.so.1", "lib/libtorch_cpu.so",
                                 "lib/libtorch_cuda.so"])

    def test_what_cuda_needs_is_kept_when_the_wheel_is_gone(self):
        folder = make_libtorch.make("cuda")
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                make_libtorch.cuda_notes(folder)
            self.assertIn("nvidia-nccl-cu13==2.28.9", out.getvalue())
            for wheel in (self.cache / "wheels").iterdir():
                wheel.unlink()
        self.assertEqual(make_libtorch.make("cuda"), folder)

    def test_wheels_are_not_needed_again(self):
        folder = make_libtorch.make("cpu")
        for wheel in (self.cache / "wheels").iterdir():
            wheel.unlink()
        self.assertEqual(make_libtorch.make("cpu"), folder)

    def test_half_made_folder_is_made_again(self):
        folder = make_libtorch.make("cpu")
        (folder / ".made-from").unlink()
        (folder / "lib" / "libc10.so").write_text("cut")
        make_libtorch.make("cpu")
        self.assertEqual((folder / "lib" / "libc10.so").read_text(), "torch/lib/libc10.so")

    def test_a_kill_while_unpacking_leaves_no_folder(self):
        with unittest.mock.patch.object(make_libtorch, "unpack", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                make_libtorch.make("cpu")
        self.assertEqual([p.name for p in self.cache.iterdir() if "libtorch" in p.name], [])

    def test_leftovers_of_a_killed_run_are_removed(self):
        stale = self.cache / ".libtorch-2.11.0-cpu.partial-dead"
        stale.mkdir()
        make_libtorch.make("cpu")
        self.assertFalse(stale.exists())

    def test_disk_full_is_one_line(self):
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=10**6)):
            with self.assertRaisesRegex(wheels.SetupError, "disk full.*MB are free.*SHARDTUNE_CACHE"):
                make_libtorch.make("cpu")
        with unittest.mock.patch.object(make_libtorch, "unpack", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(wheels.SetupError, "disk full while writing"):
                make_libtorch.make("cpu")

    def test_no_network_is_one_line(self):
        for wheel in (self.cache / "wheels").glob("torch*"):
            wheel.unlink()
        failed = unittest.mock.Mock(returncode=1, stdout="WARNING: Retrying\nERROR: No matching distribution\n")
        with unittest.mock.patch.object(wheels, "python_with_pip", return_value="python3"), \
                unittest.mock.patch("subprocess.run", return_value=failed):
            with self.assertRaisesRegex(wheels.SetupError, "cannot download torch.*No matching distribution.*network"):
                make_libtorch.make("cpu")

    def test_a_wrong_wheel_is_not_used(self):
        wheel = next((self.cache / "wheels").glob("torch*"))
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
        with unittest.mock.patch.object(wheels, "download", side_effect=wheels.SetupError("asked for")), \
                contextlib.redirect_stdout(io.StringIO()), self.assertRaisesRegex(wheels.SetupError, "asked for"):
            make_libtorch.make("cpu")


class Mutations(unittest.TestCase):
    def test_the_file_is_restored(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(mutate, "ROOT", pathlib.Path(folder)):
            path = pathlib.Path(folder) / "a.cpp"
            path.write_text("a < b; c")
            with self.assertRaises(KeyboardInterrupt):
                with mutate.planted({"name": "x", "file": "a.cpp", "old": "a < b", "new": "a <= b"}):
                    self.assertEqual(path.read_text(), "a <= b; c")
                    raise KeyboardInterrupt
            self.assertEqual(path.read_text(), "a < b; c")

    def test_an_edit_made_meanwhile_is_not_overwritten(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(mutate, "ROOT", pathlib.Path(folder)):
            path = pathlib.Path(folder) / "a.cpp"
            path.write_text("a < b; c")
            with self.assertRaisesRegex(SystemExit, "changed by someone else"):
                with mutate.planted({"name": "x", "file": "a.cpp", "old": "a < b", "new": "a <= b"}):
                    path.write_text("somebody's work")
            self.assertEqual(path.read_text(), "somebody's work")

    def test_a_fault_of_code_this_processor_cannot_run_is_counted_apart(self):
        mutation = {"name": "x", "file": "a.cpp", "old": "a", "new": "b", "target": "t", "tests": "t", "needs": "avx512dq"}
        with unittest.mock.patch.object(mutate, "processor_flags", return_value={"avx2"}), \
                unittest.mock.patch.object(mutate, "problem_without_a_fault", side_effect=AssertionError("planted")), \
                contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(mutate.judge(None, [mutation]), 0)
        self.assertIn("not planted: this processor has no avx512dq", printed.getvalue())
        self.assertIn("0 of 1 faults found; 1 not planted", printed.getvalue())

    def test_every_fault_of_the_list_still_fits_the_source(self):
        for mutation in json.loads(mutate.LIST.read_text(encoding="utf-8")):
            text = (ROOT / mutation["file"]).read_text(encoding="utf-8")
            self.assertEqual(text.count(mutation["old"]), 1, mutation["name"])


if __name__ == "__main__":
    unittest.main()
