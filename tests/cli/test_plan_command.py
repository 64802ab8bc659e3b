"""`shardtune plan` as a command: its pages in the documentation, what it refuses, what it says of a device."""

import json
import re
import subprocess
import sys

from plan_support import HARDWARE, ROOT, plan
from support import BINARY, CASES, CliTest, environment, main, options, run

H100 = str(ROOT / "configs" / "hardware" / "h100_sxm.ini")


class Pages(CliTest):
    """docs/memory.md and docs/time.md are what the script writes today, and keep to the aims."""

    def test_pages_and_aims(self):
        out = self.scratch / "new" / "folder"
        subprocess.run([sys.executable, str(ROOT / "tools" / "make_plan_pages.py"), "--binary", BINARY, "--out", str(out)],
                       check=True, env=environment(), stdin=subprocess.DEVNULL)
        for page in ("memory.md", "time.md"):
            self.assertEqual((out / page).read_text(), (ROOT / "docs" / page).read_text(),
                             f"run tools/make_plan_pages.py: docs/{page} is not what it writes")
        peaks = re.findall(r"^\| ([^|]*) \| \*\*([0-9.]+)\*\*", (out / "memory.md").read_text(), re.MULTILINE)
        # GB: the PEFT guide's users saw 72 to 80, and 35.6 with NF4.
        for (name, peak), most in zip(peaks[:2] + peaks[5:6], (44, 33, 27)):
            self.assertLessEqual(float(peak), most, name)


class Refused(CliTest):
    def refuse(self, code, arguments, *words):
        done = plan(arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def model(self):
        return ["--model_name_or_path", str(CASES / "base-gqa")]

    def test_world_of_no_ranks(self):
        self.refuse(2, self.model() + ["--world_size", "0"], "world_size: '0' is not allowed", "expected")

    def test_rank_outside_of_the_world(self):
        self.refuse(2, self.model() + ["--world_size", "4", "--plan_rank", "4"], "option plan_rank = 4: the ranks of --world_size 4 are 0 to 3")

    def test_fraction_that_leaves_no_target(self):
        self.refuse(2, self.model() + ["--max_length", "64", "--plan_trained_fraction", "0.001"],
                    "--plan_trained_fraction 0.001 leaves no trained token in a document of 64 tokens")

    def test_more_ranks_than_gpus_on_a_node(self):
        self.refuse(2, self.model() + ["--world_size", "16", "--ranks_per_node", "16", "--hardware", H100], "option ranks_per_node = 16", "has 8 GPUs")

    def test_figures_for_something_that_is_no_file(self):
        self.refuse(1, self.model() + ["--max_length", "64", "--plan_json", "/dev/null"],
                    "option plan_json = /dev/null: /dev/null: is there and is not a regular file")
        self.refuse(2, self.model() + ["--max_length", "64", "--plan_json", f"{self.scratch}/"], "a file is wanted, this names a folder")
        # Told before the work: the hardware file that is missing would be found only then.
        self.refuse(1, self.model() + ["--max_length", "64", "--hardware", "/nowhere.ini", "--trace", "/nowhere/trace.json"],
                    "option trace = /nowhere/trace.json: /nowhere/trace.json: cannot create the file")

    def test_figures_replace_those_of_a_plan_and_nothing_else(self):
        mine, figures, trace = (self.scratch / name for name in ("config.json", "plan.json", "trace.json"))
        mine.write_text("{}\n")
        for option in ("plan_json", "trace"):
            self.refuse(1, self.model() + ["--max_length", "64", "--hardware", H100, f"--{option}", str(mine)],
                        f"option {option} = {mine}: the file holds something else than a plan")
        self.assertEqual(mine.read_text(), "{}\n")
        for _ in range(2):
            done = plan(self.model() + ["--max_length", "64", "--hardware", H100, "--plan_json", str(figures), "--trace", str(trace)])
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_trace_and_figures_in_one_file(self):
        self.refuse(2, self.model() + ["--max_length", "64", "--hardware", H100, "--trace", f"{self.scratch}/x.json", "--plan_json",
                                       f"{self.scratch}/./x.json"], "trace", "plan_json", "name the same file")

    def test_documents_longer_than_rows(self):
        self.refuse(2, self.model() + ["--max_length", "64", "--plan_document_tokens", "65"],
                    "option plan_document_tokens = 65 is more than max_length = 64")

    def test_name_of_a_device_instead_of_its_file(self):
        done = subprocess.run([BINARY, "plan"] + self.model() + ["--hardware", "h100_sxm"], env=environment(), check=False,
                              capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("did you mean configs/hardware/h100_sxm.ini?", done.stderr)
        self.refuse(2, self.model() + ["--hardware", "abacus"], "hardware file 'abacus': there is no such file", "configs/hardware/*.ini")

    def test_file_instead_of_the_folder(self):
        file = CASES / "base-gqa" / "config.json"
        self.refuse(1, ["--model_name_or_path", str(file)], f"'{file}' is a file", f"here '{file.parent}'")

    def test_rows_beyond_what_can_be_planned(self):
        self.refuse(2, self.model() + ["--max_length", "16777216", "--per_device_train_batch_size", "65536"],
                    "is more than the 67108864 that can be planned", "--per_device_train_batch_size")

    def test_shape_that_config_json_lacks(self):
        config = json.loads((CASES / "base-gqa" / "config.json").read_text())
        del config["hidden_size"]
        (self.scratch / "config.json").write_text(json.dumps(config))
        self.refuse(1, ["--model_name_or_path", str(self.scratch)], "config.json", "hidden_size")

    def test_option_of_the_plan_in_a_run(self):
        done = run(1, options(model_name_or_path=CASES / "base-gqa", dataset_name=self.scratch, output_dir=self.scratch / "out",
                              world_size=2))
        self.check_failed_cleanly(done, 2, "usage", ["option world_size is for 'shardtune plan'"])


class OnADevice(CliTest):
    """What the hardware file says of memory and nodes."""

    def make(self, *more, **figures):
        hardware = self.scratch / "hardware.ini"
        text = HARDWARE
        for key, value in figures.items():
            text = re.sub(f"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        hardware.write_text(text)
        written = self.scratch / "plan.json"
        done = plan(["--model_name_or_path", str(CASES / "base-gqa"), "--max_length", "64", "--hardware", str(hardware),
                     "--plan_json", str(written), *more])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, json.loads(written.read_text())

    def test_whether_it_fits(self):
        for memory, fits, words in (("2", True, "fits the 2 GB of a small one"), ("1.5", False, "does not fit the 1.5 GB of a small one")):
            text, figures = self.make(memory_gb=memory)
            lines = [line for line in text.splitlines() if line.startswith("memory: ")]
            self.assertEqual(len(lines), 1, text)
            self.assertIn(words, lines[0])
            self.assertIn("1.5 GB for the CUDA context", lines[0])
            self.assertEqual(figures["memory"]["fits"], fits)
            self.assertEqual(figures["memory"]["device_bytes"], int(float(memory) * 1e9))
            most = max(figures[part]["bytes"] for part in ("load", "step", "save"))
            self.assertEqual(figures["memory"]["needed_bytes"], most + 1_500_000_000)

    def test_node_with_fewer_gpus(self):
        for gpus, nodes in (("4", "4 ranks a node"), ("1", "1 rank a node"), ("16", "8 ranks a node")):
            text, _ = self.make("--world_size", "16", gpus_per_node=gpus)
            self.assertIn(f"({nodes}, GPUs)", text)
        text, _ = self.make("--world_size", "16", "--ranks_per_node", "2", gpus_per_node="4")
        self.assertIn("(2 ranks a node, GPUs)", text)

    def test_without_hardware(self):
        written = self.scratch / "plan.json"
        done = plan(["--model_name_or_path", str(CASES / "base-gqa"), "--max_length", "64", "--plan_json", str(written)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("beside this lie the CUDA context", done.stdout)
        memory = json.loads(written.read_text())["memory"]
        self.assertEqual((memory["device_bytes"], memory["fits"]), (None, None))


class UnderMpirun(CliTest):
    def test_one_process_plans(self):
        done = run(2, ["plan", "--model_name_or_path", CASES / "base-gqa", "--max_length", "64", "--world_size", "4"])
        self.check_succeeded(done)
        self.assertEqual(done.out.count("plan for rank 0 of 4"), 1, done.text())
        self.assertEqual(done.err.count("notice: 2 processes were started, and one of them plans"), 1, done.text())

    def test_an_error_comes_once(self):
        done = run(2, ["plan", "--model_name_or_path", CASES / "base-gqa", "--plan_rank", "4"])
        self.check_failed_cleanly(done, 2, "usage", ["plan_rank"])


if __name__ == "__main__":
    main()
