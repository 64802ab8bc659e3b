"""Runs that succeed: metrics.jsonl, resumed runs, and storage that moves few bytes at a time."""

import json
import math
import os
import shutil
import tempfile
from pathlib import Path

from support import CASES, RANKS, CliTest, Job, in_parallel, lora_options, main, options, read_lines, run

PRELOAD = os.environ["SHARDTUNE_TEST_IO_FAULTS"]
# Values that depend on the clock or the machine.
# The ledger's, too: the first step of a process makes the sums that later ones find.
MEASURED = {"tokens_per_second", "peak_rss_bytes", "peak_ledger_bytes", "step_ledger", "train_runtime", "eval_runtime"}


def computed(lines):
    return [{name: value for name, value in line.items() if name not in MEASURED} for line in lines]


class Metrics(CliTest):
    def test_lines_and_keys(self):
        data = self.scratch / "data"
        data.mkdir()
        for split in ("train", "test"):
            shutil.copyfile(CASES / "rows-uneven.jsonl", data / f"{split}.jsonl")
        base = lora_options(dataset_name=data, eval_strategy="epoch", eval_on_start=True)
        for n, done in in_parallel(lambda n: run(n, options(base, output_dir=self.scratch / f"out-{n}")), RANKS).items():
            with self.subTest(ranks=n):
                self.check_succeeded(done)
                self.check_lines(read_lines(self.scratch / f"out-{n}" / "metrics.jsonl"), math.ceil(6 / n))

    def check_lines(self, lines, steps_per_epoch):
        steps = [line for line in lines if "loss" in line]
        evaluations = [line for line in lines if "eval_loss" in line]
        self.assertEqual(len(lines), len(steps) + len(evaluations) + 1)
        self.assertEqual([line["step"] for line in steps], list(range(1, 2 * steps_per_epoch + 1)))
        self.assertEqual([line["step"] for line in evaluations], [0, steps_per_epoch, 2 * steps_per_epoch])
        for line in steps:
            self.assertEqual(set(line), {"step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_per_second", "num_tokens",
                                         "peak_rss_bytes", "peak_ledger_bytes"})
            self.assertAlmostEqual(line["epoch"], line["step"] / steps_per_epoch, delta=1e-12)
            self.assertEqual(line["learning_rate"], 1e-2)
            self.assertGreater(line["tokens_per_second"], 0)
            self.assertGreater(line["peak_rss_bytes"], 1 << 20)
            self.assertGreater(line["peak_ledger_bytes"], 52_000)  # the base alone, over 4 ranks
        for line in evaluations:
            self.assertEqual(set(line), {"step", "epoch", "eval_loss", "eval_targets", "eval_runtime"})
            self.assertEqual(line["eval_targets"], 106)  # 112 tokens, the first of each of 6 rows is no target
        self.assertEqual(steps[-1]["num_tokens"], 2 * 112)
        last = lines[-1]
        self.assertEqual(set(last), {"step", "epoch", "train_loss", "train_runtime", "tokens_per_second", "num_tokens", "peak_rss_bytes",
                                     "step_ledger", "step_collectives"})
        self.assertEqual((last["step"], last["epoch"], last["num_tokens"]), (2 * steps_per_epoch, 2, 2 * 112))
        self.assertAlmostEqual(last["train_loss"], sum(line["loss"] for line in steps) / len(steps), delta=1e-12)


class Resume(CliTest):
    """Cases A21 and A22: dropout, shuffling and more than one epoch, so every piece of random state and position counts."""

    BASE = lora_options(lora_dropout=0.3, shuffle=True, lr_scheduler_type="linear", num_train_epochs=None, max_steps=6,
                        save_strategy="steps", save_steps=3)

    def per_rank(self, n):
        # 6 steps are 3 epochs of 2 steps, so the checkpoint of step 3 lies inside an epoch after the first.
        return {**self.BASE, "per_device_train_batch_size": 1, "gradient_accumulation_steps": math.ceil(3 / n)}

    def resumed(self, n, checkpoint, output, **changes):
        return run(n, options(self.per_rank(n), **changes, output_dir=output, resume_from_checkpoint=checkpoint))

    def straight(self, n):
        output = self.scratch / f"straight-{n}"
        self.check_succeeded(run(n, options(self.per_rank(n), output_dir=output)))
        return output

    def test_case_a21_a22_resumed_equals_straight(self):
        def both(n):
            straight, second = self.straight(n), self.scratch / f"second-{n}"
            return straight, second, self.resumed(n, straight / "checkpoint-3", second)

        for n, (straight, second, done) in in_parallel(both, (1, 2, 3)).items():
            with self.subTest(ranks=n):
                self.check_succeeded(done)
                lines = read_lines(straight / "metrics.jsonl")
                self.assertEqual([line.get("epoch") for line in lines[2:6]], [1.5, 2, 2.5, 3])
                resumed = read_lines(second / "metrics.jsonl")
                self.assertEqual(computed(resumed[:3]), computed(lines[3:6]))
                self.assertEqual(len(resumed), 4)
                for name in ("adapter_model.safetensors", "adapter_config.json", "checkpoint-6/manifest.json"):
                    self.assertEqual((second / name).read_bytes(), (straight / name).read_bytes(), name)

    def test_newest_checkpoint_of_the_folder(self):
        straight = self.straight(2)
        adapter = (straight / "adapter_model.safetensors").read_bytes()
        for name in ("checkpoint-6", "adapter_model.safetensors"):
            path = straight / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        done = self.resumed(2, True, straight)
        self.check_succeeded(done)
        self.assertIn("checkpoint-3 at step 3", done.out)
        self.assertEqual((straight / "adapter_model.safetensors").read_bytes(), adapter)

    def test_older_checkpoint_needs_a_free_way(self):
        straight = self.straight(2)
        done = self.resumed(2, straight / "checkpoint-3", straight)
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["checkpoint-3 is at step 3", "newer checkpoint-6"])
        # What is left of a newer one without its manifest is kept, under a name that is not in the way.
        (straight / "checkpoint-6" / "manifest.json").unlink()
        done = self.resumed(2, True, straight)
        self.check_succeeded(done)
        self.assertIn("incomplete-checkpoint-6", done.out)
        self.assertTrue((straight / "incomplete-checkpoint-6" / "rank-00001.h5").exists())
        self.assertTrue((straight / "checkpoint-6" / "manifest.json").exists())

    def test_into_the_folder_of_another_run(self):
        """The two would mix; with --overwrite_output_dir the other one goes, but only when this one stands."""
        straight, other = self.straight(2), self.scratch / "other"
        self.check_succeeded(run(2, options(self.per_rank(2), seed=7, output_dir=other)))

        def content():
            return {path.relative_to(other): path.read_bytes() for path in other.rglob("*") if path.is_file()}

        before = content()
        done = self.resumed(2, straight / "checkpoint-3", other)
        self.check_failed_cleanly(done, 1, "bad_storage", ["already holds a run", "run_options.json", "--overwrite_output_dir"])
        done = self.resumed(2, straight / "checkpoint-3", other, overwrite_output_dir=True, seed=8)
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["--seed was"])
        self.assertEqual(content(), before)
        done = self.resumed(2, other / "checkpoint-3", other, overwrite_output_dir=True)
        self.check_failed_cleanly(done, 2, "usage", ["--resume_from_checkpoint", "--overwrite_output_dir"])
        self.assertEqual(content(), before)
        self.check_succeeded(self.resumed(2, straight / "checkpoint-3", other, overwrite_output_dir=True))
        self.assertEqual(sorted(path.name for path in other.glob("checkpoint-*")), ["checkpoint-6"])
        self.assertEqual((other / "adapter_model.safetensors").read_bytes(), (straight / "adapter_model.safetensors").read_bytes())
        self.assertEqual(len(read_lines(other / "metrics.jsonl")), 4)

    def test_two_runs_at_once(self):
        output = self.scratch / "out"
        rows = self.rows([{"input_ids": [5 + i % 500] * 60} for i in range(2000)], "rows.jsonl")
        base = options(lora_options(dataset_name=rows, num_train_epochs=100, output_dir=output))
        first = Job(2, base)
        first.wait_for(r"^step 3/")
        second = run(2, base)
        first.process.terminate()
        first.finish()
        self.check_failed_cleanly(second, 1, "bad_storage", [str(output), "in use by another run"])

    def test_after_half_a_line_of_metrics(self):
        """As a node leaves it that loses power: the records that follow parse."""
        straight = self.straight(2)
        metrics = straight / "metrics.jsonl"
        shutil.rmtree(straight / "checkpoint-6")
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]) + '{"step": 4, "ep')
        self.check_succeeded(self.resumed(2, True, straight))
        lines = metrics.read_text().splitlines()
        self.assertEqual(lines[3], '{"step": 4, "ep')
        self.assertEqual([json.loads(line)["step"] for line in lines[4:]], [4, 5, 6, 6])

    def test_other_seed_changes_the_result(self):
        """The comparison above can fail: another seed gives other masks and another order."""
        first = read_lines(self.straight(2) / "metrics.jsonl")
        other = self.scratch / "other"
        self.check_succeeded(run(2, options(self.per_rank(2), seed=7, output_dir=other)))
        self.assertNotEqual(computed(first)[3:6], computed(read_lines(other / "metrics.jsonl"))[3:6])


class BadCheckpoint(CliTest):
    BASE = lora_options(save_strategy="steps", save_steps=1, max_steps=2, num_train_epochs=None)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = tempfile.TemporaryDirectory(prefix="shardtune-cli-")
        cls.addClassCleanup(cls.shared.cleanup)
        cls.saved = {n: Path(cls.shared.name) / f"run-{n}" for n in RANKS}
        for n, done in in_parallel(lambda n: run(n, options(cls.BASE, output_dir=cls.saved[n])), RANKS).items():
            if done.code != 0:
                raise AssertionError(done.text())

    def refuse(self, damage, *fragments, ranks=RANKS, resume_ranks=lambda n: n, error_class="bad_checkpoint", code=1, **changes):
        """Resumes from a copy of checkpoint-1 of each rank count after `damage(folder)`."""
        def one(n):
            checkpoint = self.scratch / f"copy-{n}" / "checkpoint-1"
            shutil.copytree(self.saved[n] / "checkpoint-1", checkpoint)
            damage(checkpoint)
            return run(resume_ranks(n), options(self.BASE, **changes, resume_from_checkpoint=checkpoint, output_dir=self.scratch / f"out-{n}"))

        for n, done in in_parallel(one, ranks).items():
            with self.subTest(ranks=n):
                message = self.check_failed_cleanly(done, code, error_class, ["checkpoint-1", *fragments])
                self.check_nothing_written(self.scratch / f"out-{n}", (error_class, message))

    def test_missing(self):
        self.refuse(shutil.rmtree, "no such folder")

    def test_without_manifest(self):
        self.refuse(lambda folder: (folder / "manifest.json").unlink(), "manifest.json", ranks=(3,))

    def test_damaged_manifest(self):
        def damage(folder):
            path = folder / "manifest.json"
            path.write_text(path.read_text()[:-20])

        self.refuse(damage, "manifest.json")

    def test_manifest_of_wrong_values(self):
        for key, value in (("step", "one"), ("step", 2.7), ("world_size", 2.9), ("num_tokens", -1), ("num_tokens", 1e300), ("loss_sum", None),
                           ("epoch", 5), ("step_in_epoch", 2), ("optimizer_steps", 2), ("loss_scale", 0), ("loss_scale", -65536),
                           ("loss_scale", 65537.5), ("loss_scale", 1e300), ("good_steps", 2000), ("xxh3_128", []), ("fixed", []), ("parameters", {}), ("schema", 3),
                           ("optim", 8), ("roles", [])):
            with self.subTest(key=key, value=value):
                for path in self.scratch.iterdir():
                    shutil.rmtree(path)

                def damage(folder):
                    path = folder / "manifest.json"
                    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

                self.refuse(damage, *(["--use_peft_lora was (not stored)"] if key == "fixed" else ["manifest.json", key]), ranks=(2,))

    def test_under_the_name_of_another_step(self):
        checkpoint = self.scratch / "copy" / "checkpoint-8"
        shutil.copytree(self.saved[2] / "checkpoint-1", checkpoint)
        done = run(2, options(self.BASE, resume_from_checkpoint=checkpoint, output_dir=self.scratch / "out"))
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["is of step 1", "called checkpoint-8"])

    def test_missing_rank_file(self):
        self.refuse(lambda folder: sorted(folder.glob("rank-*.h5"))[-1].unlink(), "rank-0000", ranks=(3,))

    def test_changed_byte(self):
        def damage(folder):
            path = sorted(folder.glob("rank-*.h5"))[-1]
            content = bytearray(path.read_bytes())
            content[-50] ^= 1
            path.write_bytes(content)

        self.refuse(damage, "rank-0000", "damaged")

    def test_truncated_rank_file(self):
        def damage(folder):
            path = sorted(folder.glob("rank-*.h5"))[0]
            path.write_bytes(path.read_bytes()[:-1000])

        self.refuse(damage, "rank-00000.h5", ranks=(3,))

    def test_other_number_of_ranks(self):
        self.refuse(lambda folder: None, "ranks", resume_ranks=lambda n: n % 4 + 1)

    def test_other_settings(self):
        for name, value in (("seed", 7), ("max_length", 64), ("per_device_train_batch_size", 2), ("shuffle", True)):
            with self.subTest(option=name):
                for path in self.scratch.iterdir():
                    shutil.rmtree(path)
                self.refuse(lambda folder: None, f"--{name} was", ranks=(2,) if name != "seed" else RANKS, **{name: value})

    def test_other_adapter(self):
        self.refuse(lambda folder: None, "trained parameter 0", "lora_A.weight", "[4,32]", "[2,32]", adapter_name_or_path=None, lora_r=2,
                    lora_alpha=8)

    def test_other_scale(self):
        self.refuse(lambda folder: None, "--lora_alpha was 8", "16", ranks=(2,), adapter_name_or_path=None, lora_r=4, lora_alpha=16)

    def test_nothing_left_to_train(self):
        self.refuse(lambda folder: None, "nothing is left", error_class="usage", code=2, ranks=(2,), max_steps=1)

    def test_no_checkpoint_in_the_folder(self):
        output = self.scratch / "out"
        for n, done in in_parallel(lambda n: run(n, options(self.BASE, resume_from_checkpoint=True, output_dir=f"{output}-{n}")), RANKS).items():
            with self.subTest(ranks=n):
                self.check_failed_cleanly(done, 1, "bad_checkpoint", ["--resume_from_checkpoint", str(output)])


class CaseA31(CliTest):
    """Transfers of at most 1000 bytes and interrupts change nothing: load, save, resume, export."""

    def check(self, model):
        # Everything lies in the scratch folder, and only its files are meant: LibTorch's reader of /proc/cpuinfo does not know
        # interrupts, which the kernel does not make there.
        faults = {"LD_PRELOAD": PRELOAD, "IOF_MAX_IO": "1000", "IOF_EINTR_EVERY": "7", "IOF_MATCH": str(self.scratch)}
        shutil.copyfile(CASES / "rows-uneven.jsonl", self.scratch / "rows.jsonl")
        base = lora_options(model_name_or_path=self.model_copy(source=model), dataset_name=self.scratch / "rows.jsonl",
                            adapter_name_or_path=self.model_copy("adapter", "lora-start"), dtype="float32",
                            num_train_epochs=None, max_steps=4, save_strategy="steps", save_steps=2)
        results = {}
        for name, env in (("plain", None), ("faults", faults)):
            first, second = self.scratch / f"{name}-first", self.scratch / f"{name}-second"
            self.check_succeeded(run(2, options(base, output_dir=first), ranks_env=env))
            self.check_succeeded(run(2, options(base, output_dir=second, resume_from_checkpoint=first / "checkpoint-2"), ranks_env=env))
            results[name] = [computed(read_lines(folder / "metrics.jsonl")) for folder in (first, second)]
            results[name] += [(folder / "adapter_model.safetensors").read_bytes() for folder in (first, second)]
        self.assertEqual(results["plain"], results["faults"])
        self.assertEqual(results["plain"][2], results["plain"][3])

    def test_one_file(self):
        self.check("base-gqa")

    def test_sharded_with_mixed_types(self):
        self.check("base-sharded-mixed")

    def test_the_faults_reach_the_program(self):
        """With room for 2000 bytes the library must break the run: else the test above compares two plain runs."""
        output = self.scratch / "out"
        env = {"LD_PRELOAD": PRELOAD, "IOF_ENOSPC_AFTER": "2000", "IOF_MATCH": str(self.scratch)}
        done = run(2, options(lora_options(output_dir=output)), ranks_env=env)
        self.check_failed_cleanly(done, 1, "bad_storage", ["No space left on device"])


if __name__ == "__main__":
    main()
