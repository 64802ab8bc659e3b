"""`shardtune evaluate` as a user starts it: against the reference, in eval_results.json, and what is refused."""

import json
import shutil
import struct

from support import CASES, CliTest, in_parallel, lora_options, main, options, rewrite_tensors, run

DATA = CASES.parent
TINY = DATA / "models" / "tiny"
ADAPTER = DATA / "numerics" / "tiny" / "lora" / "adapter"


def evaluate(ranks, **changes):
    base = dict(model_name_or_path=CASES / "base-gqa", dataset_name=CASES / "rows-uneven.jsonl", per_device_eval_batch_size=1)
    return run(ranks, ["evaluate"] + options(base, **changes)[1:])


class Evaluate(CliTest):
    def results(self, folder):
        return json.loads((folder / "eval_results.json").read_text())

    def test_loss_of_the_case_on_every_number_of_ranks(self):
        def one(ranks):
            return evaluate(ranks, adapter_name_or_path=CASES / "lora-start", output_dir=self.scratch / f"out-{ranks}")

        for ranks, done in in_parallel(one, (1, 2, 3, 4)).items():
            self.check_succeeded(done)
            results = self.results(self.scratch / f"out-{ranks}")
            self.assertEqual(results["eval_targets"], 106)
            self.assertAlmostEqual(results["eval_loss"], 6.83533, delta=2e-4)
            self.assertEqual(done.out.count("eval_loss"), 1, "one rank speaks")
            self.assertIn("LoRA: r ", done.out)
        losses = {self.results(self.scratch / f"out-{ranks}")["eval_loss"] for ranks in (1, 2, 3, 4)}
        self.assertEqual(len(losses), 1, losses)

    def test_adapter_of_another_base(self):
        adapter, changed = self.scratch / "adapter", self.model_copy()
        self.check_succeeded(run(2, options(lora_options(use_4bit_quantization=True, output_dir=adapter))))
        record = json.loads((adapter / "shardtune_base.json").read_text())
        same = evaluate(2, use_4bit_quantization=True, adapter_name_or_path=adapter)
        self.check_succeeded(same)
        self.assertNotIn("notice", same.err)
        other_form = evaluate(2, adapter_name_or_path=adapter)
        self.check_succeeded(other_form)
        self.assertIn(f"notice: {adapter} was trained over a base in nf4 in blocks of 64 made from float32; this run has it in float32",
                      other_form.err)
        rewrite_tensors(changed / "model.safetensors",
                        lambda name, _, data: struct.pack("<f", 0.25) + data[4:] if name == "model.norm.weight" else data)
        message = [f"{adapter}: was trained on another base", record["base_fingerprint"], "take shardtune_base.json out of the folder"]
        plain = dict(model_name_or_path=changed)
        for own, others in ((adapter, None), (CASES / "lora-start", f"other={adapter}")):
            done = evaluate(3, **plain, adapter_name_or_path=own, other_adapters=others)
            self.check_failed_cleanly(done, 1, "bad_model", message)
        done = run(2, options(lora_options(**plain, adapter_name_or_path=adapter, output_dir=self.scratch / "out")))
        self.check_failed_cleanly(done, 1, "bad_model", message)
        (adapter / "shardtune_base.json").unlink()
        self.check_succeeded(evaluate(1, **plain, adapter_name_or_path=adapter))

    def test_data_and_bases_of_every_kind(self):
        rows = DATA / "packing"
        chat = self.rows([{"messages": [{"role": "user", "content": f"Question {i}?"}, {"role": "assistant", "content": "Yes." * i}]}
                          for i in range(1, 9)])
        plain = evaluate(2, model_name_or_path=TINY, dataset_name=chat, output_dir=self.scratch / "plain")
        self.check_succeeded(plain)
        first = self.results(self.scratch / "plain")
        self.assertIsNone(first["adapter_name_or_path"])
        self.assertEqual(first["eval_rows"], 8)
        self.assertAlmostEqual(first["perplexity"], 2.718281828459045 ** first["eval_loss"], delta=1e-9 * first["perplexity"])
        self.assertEqual(first["eval_mean_token_accuracy"], first["eval_correct"] / first["eval_targets"])
        # bfd packing keeps documents apart: the same tokens and the same loss in fewer rows.
        packed = evaluate(2, model_name_or_path=TINY, dataset_name=chat, packing=True, max_length=128,
                          output_dir=self.scratch / "packed")
        self.check_succeeded(packed)
        second = self.results(self.scratch / "packed")
        self.assertLess(second["eval_rows"], 8)
        self.assertEqual(second["eval_targets"], first["eval_targets"])
        self.assertAlmostEqual(second["eval_loss"], first["eval_loss"], delta=1e-5)
        losses = {first["eval_loss"]}
        for name, changes in {"nf4": dict(use_4bit_quantization=True), "int8": dict(use_8bit_quantization=True),
                              "adapter": dict(adapter_name_or_path=ADAPTER), "bf16": dict(dtype="bfloat16"),
                              "nf4_adapter": dict(use_4bit_quantization=True, adapter_name_or_path=ADAPTER)}.items():
            done = evaluate(2, model_name_or_path=TINY, dataset_name=chat, output_dir=self.scratch / name, **changes)
            self.check_succeeded(done)
            losses.add(self.results(self.scratch / name)["eval_loss"])
        self.assertEqual(len(losses), 6)
        self.assertTrue(rows.is_dir())

    def test_files_that_are_quantised_already(self):
        rows = self.rows([{"input_ids": list(range(5, 40))}])
        self.check_succeeded(evaluate(2, model_name_or_path=DATA / "models" / "tiny-nf4", dataset_name=rows))

    def test_split_of_a_folder(self):
        folder = self.scratch / "data"
        folder.mkdir()
        shutil.copy(CASES / "rows-uneven.jsonl", folder / "test.jsonl")
        (folder / "train.jsonl").write_text('{"input_ids": [5, 6, 7]}\n')
        self.assertIn("of 106 tokens)", evaluate(1, dataset_name=folder).out)
        self.assertIn("of 2 tokens)", evaluate(1, dataset_name=folder, dataset_test_split="train").out)
        done = evaluate(2, dataset_name=folder, dataset_test_split="dev")
        self.check_failed_cleanly(done, 1, "bad_data", ["has no file 'dev.jsonl' (--dataset_test_split)"])

    def test_file_of_the_training_run(self):
        config = self.scratch / "run.ini"
        config.write_text(f"model_name_or_path = {CASES / 'base-gqa'}\ndataset_name = {CASES / 'rows-uneven.jsonl'}\n"
                          f"output_dir = {self.scratch / 'out'}\nuse_peft_lora = True\nlearning_rate = 1e-3\nlora_dropout = 0.1\n")
        done = run(2, ["evaluate", "--config", str(config), "--adapter_name_or_path", str(CASES / "lora-start")])
        self.check_succeeded(done)
        self.assertRegex(done.out, r"learning_rate +1e-3 +\(config .*run\.ini, without effect\)")
        self.assertTrue((self.scratch / "out" / "eval_results.json").exists())
        done = run(2, ["evaluate", "--config", str(config)])
        self.check_failed_cleanly(done, 2, "usage", ["no adapter is named", "--use_peft_lora False"])

    def test_what_is_refused(self):
        for error_class, code, fragment, changes in (
                ("bad_data", 1, "no such file or folder (--dataset_name)", dict(dataset_name=self.scratch / "none.jsonl")),
                ("bad_data", 1, "the data set holds no record", dict(dataset_name=self.rows([], "empty.jsonl"))),
                ("bad_data", 1, "no trained token", dict(dataset_name=self.rows([{"input_ids": [5, 6], "labels": [-100, -100]}], "masked.jsonl"))),
                ("bad_model", 1, "adapter_config.json", dict(adapter_name_or_path=self.scratch / "none")),
                ("usage", 2, "lora_r", dict(adapter_name_or_path=CASES / "lora-start", lora_r=3)),
                ("usage", 2, "remove it from 'evaluate'", dict(learning_rate=1)),
                ("usage", 2, "dataset_name", dict(dataset_name=None)),
                ("bad_storage", 1, "out-file", dict(output_dir=self.rows([], "out-file")))):
            with self.subTest(fragment=fragment):
                self.check_failed_cleanly(evaluate(2, **changes), code, error_class, [fragment])


if __name__ == "__main__":
    main()
