"""Case A48: rank 2 of 4 alone fails. Everybody ends within a minute, and the cause is what the log ends with."""

import os
import shutil
import signal
import struct
import time
import unittest

from support import CASES, DEADLINE_S, SANITIZER, CliTest, Job, lora_options, main, options, read_lines, rewrite_tensors, run

FAULTS = os.environ["SHARDTUNE_TEST_OPEN_FAULTS"]
IO_FAULTS = os.environ["SHARDTUNE_TEST_IO_FAULTS"]
RANK = 2


def fault(match, action, **more):
    return {"LD_PRELOAD": FAULTS, "OPENF_MATCH": match, "OPENF_RANK": RANK, "OPENF_DO": action, **more}


class RankFailure(CliTest):
    def check_own_line(self, done, error_class, *fragments):
        """An error that the program sees: one line of ours with the rank, nothing of ours behind it."""
        message = self.check_failed_cleanly(done, 1, error_class, [f"rank {RANK}", *fragments])
        ours = [line for line in done.err.splitlines() if line.startswith("shardtune")]
        self.assertIn(message, ours[-1])
        return message

    def check_killed(self, done):
        """A process that is gone cannot speak: mpirun names its rank and signal, and that is how the log ends."""
        self.assertIsNotNone(done.code, done.text())
        self.assertNotEqual(done.code, 0, done.text())
        self.assertLess(done.seconds, DEADLINE_S)
        self.assertEqual(done.error_lines(), [], done.text())
        # Newer launchers break the sentence over two lines.
        tail = " ".join([line for line in done.err.splitlines() if line.strip("- ")][-2:])
        self.assertIn(f"rank {RANK} ", tail, done.text())
        self.assertIn("signal 9", tail, done.text())

    def no_result(self, output):
        names = {path.name for path in output.iterdir()}
        self.assertFalse(names & {"adapter_model.safetensors", "adapter_config.json"}, names)

    def views(self, change):
        """One working folder per rank with its own copy of model and rows under the same relative names, so that all ranks get the
        same options; `change(folder)` acts on the copy of rank 2. Returns (base options, shell command for the ranks)."""
        for rank in range(4):
            folder = self.scratch / f"rank{rank}"
            folder.mkdir()
            shutil.copytree(CASES / "base-sharded-mixed", folder / "model")
            shutil.copyfile(CASES / "rows-uneven.jsonl", folder / "rows.jsonl")
            for path in folder.rglob("*"):
                path.chmod(0o755)
        change(self.scratch / f"rank{RANK}")
        base = lora_options(model_name_or_path="model", dataset_name="rows.jsonl", dtype="float32", output_dir=self.scratch / "out")
        return base, f'cd "{self.scratch}/rank$OMPI_COMM_WORLD_RANK"'

    def check_view(self, change, error_class, *fragments):
        base, before = self.views(change)
        done = run(4, options(base), before=before)
        message = self.check_own_line(done, error_class, *fragments)
        self.check_nothing_written(self.scratch / "out", (error_class, message))


class OneView(RankFailure):
    """What rank 2 reads is broken, missing or another than what the others read."""

    def test_same_view_works(self):
        base, before = self.views(lambda folder: None)
        self.check_succeeded(run(4, options(base), before=before))

    def test_missing_shard(self):
        self.check_view(lambda folder: (folder / "model/model-00002-of-00002.safetensors").unlink(), "bad_model",
                        "model-00002-of-00002.safetensors")

    def test_truncated_shard(self):
        def change(folder):
            path = folder / "model/model-00001-of-00002.safetensors"
            path.write_bytes(path.read_bytes()[:-1])

        self.check_view(change, "bad_model", "model-00001-of-00002.safetensors")

    def test_unreadable_shard(self):
        done = run(4, options(lora_options(model_name_or_path=CASES / "base-sharded-mixed", dtype="float32",
                                           output_dir=self.scratch / "out")),
                   ranks_env=fault("model-00002-of-00002.safetensors", "refuse"))
        message = self.check_own_line(done, "bad_storage", "model-00002-of-00002.safetensors", "Permission denied")
        self.check_nothing_written(self.scratch / "out", ("bad_storage", message))

    def test_broken_row(self):
        def change(folder):
            lines = (folder / "rows.jsonl").read_text().splitlines()
            (folder / "rows.jsonl").write_text("\n".join(lines[:3] + ['{"text": '] + lines[4:]))

        self.check_view(change, "bad_data", "rows.jsonl line 4")

    def test_other_rows(self):
        # One row less: this rank would expect one step less in each epoch than the others.
        def change(folder):
            lines = (folder / "rows.jsonl").read_text().splitlines()
            (folder / "rows.jsonl").write_text("\n".join(lines[:4]))

        self.check_view(change, "bad_data", "the training rows differ")

    def test_other_model(self):
        self.check_view(lambda folder: self.change_config(folder / "model", rms_norm_eps=1e-3), "bad_model", "config.json differ")


class WhileSaving(RankFailure):
    """Rank 2 cannot write its part of the second checkpoint: the first stays, nothing of the second is left."""

    def check(self, env, error_class, *fragments):
        output = self.scratch / "out"
        base = lora_options(save_strategy="steps", save_steps=1, output_dir=output)
        message = self.check_own_line(run(4, options(base), ranks_env=env), error_class, *fragments)
        self.assertEqual({path.name for path in output.iterdir()}, {"metrics.jsonl", "run_options.json", "checkpoint-1"})
        self.assertEqual(read_lines(output / "metrics.jsonl")[-1], {"error_class": error_class, "error": message})

    def test_refused_file(self):
        self.check(fault(".tmp-checkpoint-2.", "refuse"), "bad_storage", f"rank-0000{RANK}.h5", "Permission denied")

    def test_full_disk(self):
        env = {"LD_PRELOAD": IO_FAULTS, "IOF_ENOSPC_AFTER": 40000, "IOF_MATCH": f"rank-0000{RANK}"}
        self.check(env, "bad_storage", f"rank-0000{RANK}.h5", "No space left on device")

    @unittest.skipIf(SANITIZER, "a sanitizer reserves its address space at the start")
    def test_no_memory(self):
        # Enough for the first save, which begins it, and not for the second. Freed memory goes back to the system: what the
        # process kept for itself could be enough.
        self.check({**fault(".tmp-checkpoint-1.", "memory", OPENF_EXTRA=2 << 20), "MALLOC_TRIM_THRESHOLD_": 131072}, "out_of_memory")


class Killed(RankFailure):
    BASE = lora_options(save_strategy="steps", save_steps=1, num_train_epochs=None, max_steps=6)

    def preloaded(self, match):
        output = self.scratch / "out"
        done = run(4, options(self.BASE, output_dir=output), ranks_env=fault(match, "kill"))
        self.check_killed(done)
        self.no_result(output)
        return output

    def test_while_loading(self):
        self.assertEqual(list(self.preloaded("base-gqa/model.safetensors").iterdir()), [])

    def test_while_saving(self):
        output = self.preloaded(".tmp-checkpoint-3.")
        self.assertEqual(sorted(path.name for path in output.glob("checkpoint-*")), ["checkpoint-1", "checkpoint-2"])
        # What the killed save left does not stand in the way of going on.
        done = run(4, options(self.BASE, output_dir=output, resume_from_checkpoint=True))
        self.check_succeeded(done)
        self.assertIn("checkpoint-2 at step 2", done.out)

    def many_rows(self, count, name):
        return self.rows([{"input_ids": [5 + i % 500] * 60} for i in range(count)], name)

    def test_while_training(self):
        output = self.scratch / "out"
        job = Job(4, options(lora_options(dataset_name=self.many_rows(2000, "rows.jsonl"), num_train_epochs=100, output_dir=output)))
        job.wait_for(r"^step 3/")
        os.kill(job.pid_of(RANK), signal.SIGKILL)
        self.check_killed(job.finish())
        self.no_result(output)
        self.assertGreaterEqual(len(read_lines(output / "metrics.jsonl")), 3)

    def test_while_evaluating(self):
        output = self.scratch / "out"
        data = self.scratch / "data"
        data.mkdir()
        shutil.copyfile(CASES / "rows-uneven.jsonl", data / "train.jsonl")
        self.many_rows(8000, "data/test.jsonl")
        job = Job(4, options(lora_options(dataset_name=data, eval_strategy="epoch", eval_on_start=True, per_device_eval_batch_size=1,
                                          output_dir=output)))
        job.wait_for(r"^steps: ")
        time.sleep(0.3)
        os.kill(job.pid_of(RANK), signal.SIGKILL)
        done = job.finish()
        self.check_killed(done)
        self.assertNotIn("eval at step", done.out)
        self.no_result(output)


@unittest.skipIf(SANITIZER, "a sanitizer reserves its address space at the start")
class OutOfMemory(RankFailure):
    def large_model(self):
        """base-gqa with 40,000 rows of vocabulary: parts large enough to need memory of their own."""
        folder, rows = self.model_copy(), 40000
        self.change_config(folder, vocab_size=rows)

        def change(name, tensor, data):
            if name not in ("model.embed_tokens.weight", "lm_head.weight"):
                return data
            tensor["shape"][0] = rows
            return struct.pack("<f", 0.01) * (rows * tensor["shape"][1])

        rewrite_tensors(folder / "model.safetensors", change)
        return folder

    def test_while_loading(self):
        output = self.scratch / "out"
        base = lora_options(model_name_or_path=self.large_model(), output_dir=output)
        done = run(4, options(base), ranks_env=fault("model/config.json", "memory"))
        self.check_own_line(done, "out_of_memory")
        self.no_result(output)

    def test_while_training(self):
        """From the first save on rank 2 may take 4 MiB more; the rows of the second step need more than that."""
        output = self.scratch / "out"
        rows = self.rows([{"input_ids": [5, 6, 7, 8]}] * 4 + [{"input_ids": [5 + i % 500 for i in range(8000)]}] * 4)
        base = lora_options(dataset_name=rows, max_length=8000, save_strategy="steps", save_steps=1, output_dir=output)
        done = run(4, options(base), ranks_env={**fault(".tmp-checkpoint-1.", "memory", OPENF_EXTRA=4 << 20),
                                                "MALLOC_TRIM_THRESHOLD_": 131072})
        self.check_own_line(done, "out_of_memory", "you tried to allocate", "--per_device_train_batch_size")
        self.no_result(output)
        self.assertEqual([path.name for path in output.glob("checkpoint-*")], ["checkpoint-1"])


if __name__ == "__main__":
    main()
