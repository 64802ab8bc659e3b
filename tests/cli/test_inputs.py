"""Broken or missing models, data and output folders: one line, exit code 1, no result, the same on every number of ranks."""

import json
import math
import os
import shutil
import struct

from support import CASES, RANKS, CliTest, in_parallel, lora_options, main, options, read_lines, rewrite_tensors, run


class Model(CliTest):
    def refuse(self, folder, *fragments, **keywords):
        self.check_refused(lora_options(model_name_or_path=folder), "bad_model", *fragments, **keywords)

    def with_tensor(self, tensor_name, change):
        """A copy of the model with `change(header entry, bytes)` made to one tensor: returns the folder."""
        folder = self.model_copy()
        rewrite_tensors(folder / "model.safetensors", lambda name, entry, data: change(entry, data) if name == tensor_name else data)
        return folder

    def test_missing_folder(self):
        self.refuse(self.scratch / "nowhere", str(self.scratch / "nowhere"), "--model_name_or_path")

    def test_missing_shards_are_all_named(self):
        folder = self.model_copy(source="base-sharded-mixed")
        for number in (1, 2):
            (folder / f"model-0000{number}-of-00002.safetensors").unlink()
        self.refuse(folder, "2 of the 2 files", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def test_case_a35_missing_shard(self):
        self.refuse(CASES / "base-index-missing-shard", "1 of the 2 files", "model-00002-of-00002.safetensors")

    def test_truncated_weights(self):
        folder = self.model_copy()
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])
        self.refuse(folder, "model.safetensors")

    def test_header_longer_than_the_file(self):
        folder = self.model_copy()
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", 1 << 20) + path.read_bytes()[8:])
        self.refuse(folder, "model.safetensors", "1048576")

    def test_integer_weights(self):
        def change(entry, data):
            entry["dtype"] = "I64"
            return data + data

        name = "model.layers.1.mlp.up_proj.weight"
        self.refuse(self.with_tensor(name, change), name, "I64", "F32, F16 or BF16")

    def test_shape_against_config(self):
        folder = self.model_copy()
        self.change_config(folder, intermediate_size=40)
        self.refuse(folder, "mlp", "[40, 32]", "config.json")

    def test_vocabulary_against_config(self):
        # Case A45 (c).
        folder = self.model_copy()
        self.change_config(folder, vocab_size=512)
        self.refuse(folder, "[520, 32]", "[512, 32]", ranks=(3,))

    def test_unknown_architecture(self):
        folder = self.model_copy()
        self.change_config(folder, architectures=["MambaForCausalLM"], model_type="mamba")
        self.refuse(folder, "MambaForCausalLM", "LlamaForCausalLM")

    def test_config_of_wrong_types(self):
        folder = self.model_copy()
        self.change_config(folder, model_type=3)
        self.refuse(folder, "config.json", "model_type", ranks=(3,))

    def test_weights_that_are_not_numbers(self):
        name = "model.layers.0.self_attn.v_proj.weight"
        folder = self.with_tensor(name, lambda entry, data: data[:400] + struct.pack("<f", math.nan) + data[404:])
        self.refuse(folder, name, "not finite", "element 100")

    def test_checkpoint_that_does_not_fit_is_told_before_weights_are_read(self):
        name = "model.layers.0.self_attn.v_proj.weight"
        folder = self.with_tensor(name, lambda entry, data: data[:400] + struct.pack("<f", math.nan) + data[404:])
        self.check_refused(lora_options(model_name_or_path=folder, resume_from_checkpoint=self.scratch / "nowhere/checkpoint-3"), "bad_checkpoint",
                           "nowhere/checkpoint-3", "no such folder", ranks=(2,))

    def test_missing_tokenizer(self):
        folder = self.model_copy()
        (folder / "tokenizer.json").unlink()
        self.refuse(folder, "tokenizer.json", ranks=(3,))


class Adapter(CliTest):
    def adapter_copy(self, **changes):
        folder = self.model_copy("adapter", "lora-start")
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return folder

    def test_missing_adapter(self):
        self.check_refused(lora_options(adapter_name_or_path=self.scratch / "nowhere"), "bad_model", str(self.scratch / "nowhere"), ranks=(3,))

    def test_adapter_of_another_rank(self):
        self.check_refused(lora_options(adapter_name_or_path=self.adapter_copy(r=8)), "bad_model", "[8, 32]", "[4, 32]", ranks=(3,))

    def test_adapter_config_of_wrong_types(self):
        for change in ({"peft_type": 3}, {"r": "4"}, {"target_modules": [3]}, {"use_rslora": "yes"}, {"peft_type": None}):
            with self.subTest(change=change):
                shutil.rmtree(self.scratch / "adapter", ignore_errors=True)
                self.check_refused(lora_options(adapter_name_or_path=self.adapter_copy(**change)), "bad_model", "adapter_config.json",
                                   next(iter(change)), ranks=(2,))

    def test_options_that_contradict_the_adapter(self):
        for change, found in ((dict(lora_r=8), "4"), (dict(lora_alpha=16), "8"), (dict(use_rslora=True), "False"),
                              (dict(lora_target_modules="q_proj"), "14 modules")):
            with self.subTest(change=change):
                name, value = next(iter(change.items()))
                self.check_refused(lora_options(**change), "usage", f"--{name} {value}", "adapter_config.json", found, code=2, ranks=(2,))

    def test_contradiction_from_the_environment(self):
        self.check_refused(lora_options(), "usage", "--lora_r 8", code=2, ranks_env={"SHARDTUNE_LORA_R": "8"}, ranks=(3,))

    def test_options_that_agree_with_the_adapter(self):
        done = run(2, options(lora_options(lora_r=4, lora_alpha=8, use_rslora=False, lora_target_modules="all-linear",
                                           output_dir=self.scratch / "out")))
        self.check_succeeded(done)

    def test_case_a50_targets(self):
        base = lora_options(adapter_name_or_path=None)
        for targets, fragments in (("q_proj,qproj", ["'qproj'", "'q_proj'"]), ("Q_PROJ", ["'Q_PROJ'", "q_proj"]),
                                   ("norm", ["'norm'", "not a linear layer"]), ("model.layers.[9].*", ["matches no"])):
            with self.subTest(targets=targets):
                self.check_refused({**base, "lora_target_modules": targets}, "usage", *fragments, code=2,
                                   ranks=RANKS if targets == "q_proj,qproj" else (3,))
        for targets, count in ((r".*layers\.[01]\.mlp.*_proj", 6), ("lm_head", 1)):
            with self.subTest(targets=targets):
                done = run(2, options(base, lora_target_modules=targets, output_dir=self.scratch / f"out-{count}"))
                self.check_succeeded(done)
                self.assertIn(f"on {count} module{'s' if count > 1 else ''}: ", done.out)


class Data(CliTest):
    def refuse(self, path, *fragments, ranks=RANKS, **changes):
        self.check_refused(lora_options(dataset_name=path, **changes), "bad_data", *fragments, ranks=ranks)

    def test_missing_file(self):
        self.refuse(self.scratch / "nowhere.jsonl", "nowhere.jsonl", "--dataset_name")

    def test_empty_file(self):
        self.refuse(self.rows([]), "holds no record")

    def test_invalid_json_names_the_line(self):
        self.refuse(self.rows([{"text": "one"}, {"text": "two"}, '{"text": "three"', {"text": "four"}]), "rows.jsonl line 3")

    def test_unknown_column_names_line_and_columns(self):
        self.refuse(self.rows([{"text": "one"}, {"prompt": "two"}]), "line 2", "'prompt'", "--dataset_text_field", ranks=(3,))

    def test_case_a45_id_at_the_end_of_the_vocabulary(self):
        good = {"input_ids": [1, 2, 519, 4]}
        self.refuse(self.rows([good, {"input_ids": [1, 520, 3]}]), "line 2", "520", "519")
        done = run(2, options(lora_options(dataset_name=self.rows([good]), output_dir=self.scratch / "out")))
        self.check_succeeded(done)

    def test_missing_evaluation_split(self):
        self.refuse(CASES / "rows-uneven.jsonl", "evaluation", "'test'", eval_strategy="epoch", ranks=(3,))

    def test_rows_without_a_trained_token_are_left_out_and_counted(self):
        """They would be steps with nothing to learn from: with and without packing."""
        ignored = {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12], "labels": [-100] * 8}
        trained = {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12]}
        rows = self.rows([ignored] * 4 + [trained] * 4)

        def one(case):
            n, packing = case
            base = lora_options(dataset_name=rows, max_length=8, packing=packing, num_train_epochs=1)
            return run(n, options(base, output_dir=self.scratch / f"out-{n}-{packing}"))

        for (n, packing), done in in_parallel(one, [(1, True), (2, True), (3, True), (4, True), (4, None)]).items():
            with self.subTest(ranks=n, packing=packing):
                self.check_succeeded(done)
                self.assertIn("training data: 4 rows from 8 examples, 32 tokens", done.out)
                self.assertIn("4 rows hold no trained token and are left out", done.out)
                self.assertEqual(read_lines(self.scratch / f"out-{n}-{packing}" / "metrics.jsonl")[-1]["num_tokens"], 32)

    def test_nothing_to_train_on(self):
        self.refuse(self.rows([{"input_ids": [5, 6], "labels": [-100, -100]}]), "rows.jsonl: no trained token within --max_length 1024 in 1 example;", ranks=(3,))

    def test_nothing_to_evaluate_on(self):
        folder = self.scratch / "data"
        folder.mkdir()
        self.rows([{"input_ids": [5, 6]}], "data/train.jsonl")
        self.rows([{"input_ids": [5, 6], "labels": [-100, -100]}], "data/test.jsonl")
        self.refuse(folder, "test.jsonl (evaluation): no trained token", eval_strategy="epoch", ranks=(3,))

    def test_ids_train_with_a_tokenizer_that_cannot_be_followed(self):
        model = self.model_copy()
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        # As Llama 2's.
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]}
        tokenizer["model"]["byte_fallback"] = True
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        base = lora_options(model_name_or_path=model)
        self.check_refused(base, "bad_model", "tokenizer.json: normalizer Sequence", ranks=(3,))
        rows = self.rows([{"input_ids": [5, 6, 7, 8]}] * 4)
        self.check_succeeded(run(2, options(base, dataset_name=rows, output_dir=self.scratch / "out")))

    def test_long_samples_are_cut_counted_and_trained(self):
        base = lora_options(max_length=16)
        for n, done in in_parallel(lambda n: run(n, options(base, output_dir=self.scratch / f"out-{n}")), RANKS).items():
            with self.subTest(ranks=n):
                self.check_succeeded(done)
                # 52 and 27 tokens are cut to 16: 36 + 11 are dropped, 112 - 47 stay.
                self.assertIn("6 rows from 6 examples, 65 tokens; 2 examples cut at --max_length, 47 tokens dropped", done.out)
                self.assertEqual(read_lines(self.scratch / f"out-{n}" / "metrics.jsonl")[-2]["num_tokens"], 2 * 65)


class NonFinite(CliTest):
    def test_learning_rate_too_high(self):
        """Stops on all ranks before the weights change: the last checkpoint is that of the step before."""
        base = lora_options(learning_rate=1e30, save_strategy="steps", save_steps=1)
        for n, done in in_parallel(lambda n: run(n, options(base, output_dir=self.scratch / f"out-{n}")), RANKS).items():
            with self.subTest(ranks=n):
                output = self.scratch / f"out-{n}"
                message = self.check_failed_cleanly(done, 1, "non_finite", ["of step 2 is", "--learning_rate"])
                names = {path.name for path in output.iterdir()}
                self.assertEqual(names, {"metrics.jsonl", "run_options.json", "checkpoint-1"})
                lines = read_lines(output / "metrics.jsonl")
                self.assertEqual([line.get("step") for line in lines], [1, None])
                self.assertEqual(lines[-1], {"error_class": "non_finite", "error": message})


class Paths(CliTest):
    """Paths that cannot be reached: the line names the option, and the class is that of what the path stands for."""

    OPTIONS = {"model_name_or_path": "bad_model", "adapter_name_or_path": "bad_model", "dataset_name": "bad_data",
               "output_dir": "bad_storage", "resume_from_checkpoint": "bad_checkpoint"}

    def refuse(self, path, code, fragments, error_classes=OPTIONS, ranks=(2,)):
        for n in ranks:
            for name, error_class in error_classes.items():
                with self.subTest(option=name, ranks=n):
                    done = run(n, options(lora_options(output_dir=self.scratch / "out"), **{name: path}))
                    message = self.check_failed_cleanly(done, code, error_class, [name, *fragments])
                    self.assertFalse(message.startswith("rank "), message)

    def test_loop_of_links(self):
        (self.scratch / "loop").symlink_to("loop")
        self.refuse(self.scratch / "loop", 1, [str(self.scratch / "loop"), "Too many levels of symbolic links"])

    def test_name_too_long(self):
        self.refuse(self.scratch / ("x" * 300), 1, ["File name too long"])

    def test_line_break_and_invalid_bytes(self):
        usage = dict.fromkeys(self.OPTIONS, "usage")
        self.refuse(f"{self.scratch}/a\nb", 2, ["a\\nb", "is not allowed"], usage)
        # A byte that is no UTF-8, and half a surrogate pair, which is none either.
        self.refuse(os.fsdecode(os.fsencode(self.scratch) + b"/\xff"), 2, ["\\xff", "is not allowed"], usage)
        self.refuse(os.fsdecode(os.fsencode(self.scratch) + b"/\xed\xa0\x80"), 2, ["is not allowed"], usage)


class CarriedFiles(CliTest):
    """What a result takes over from the base's folder is looked at before the work: nobody could load it otherwise."""

    FULL = dict(use_peft_lora=None, adapter_name_or_path=None, lora_dropout=None)

    def refuse(self, name, content, fragments):
        model = self.model_copy(f"model-{content}-{name}".replace("/", "_"))
        if content == "link":
            (model / name).unlink(missing_ok=True)
            (model / name).symlink_to("lost")
        else:
            (model / name).write_text(content)
        changes = self.FULL if name == "generation_config.json" else {}
        output = self.scratch / "out"
        arguments = {"train": options(lora_options(**changes), model_name_or_path=model, output_dir=output),
                     "merge": ["merge", "--model_name_or_path", str(model), "--adapter_name_or_path",
                               str(CASES / "lora-plain"), "--output_dir", str(self.scratch / "merged")]}
        for command, given in arguments.items():
            with self.subTest(command=command, name=name, content=content):
                message = self.check_failed_cleanly(run(2, given), 1, "bad_model", [str(model / name), *fragments])
                self.assertFalse(message.startswith("rank "), "rank 0 alone looks")
        self.assertFalse((self.scratch / "merged").exists())
        self.assertEqual({path.name for path in output.iterdir()}, {"metrics.jsonl"})

    def test_damaged(self):
        for name in ("generation_config.json", "special_tokens_map.json"):
            for content, fragment in (("", "not valid JSON"), ('{"eos_token_id": ', "not valid JSON"),
                                      ("[]", "expected a JSON object, found array"), ("link", "No such file")):
                self.refuse(name, content, [fragment])

    def test_template_behind_a_lost_link(self):
        self.refuse("chat_template.jinja", "link", ["No such file"])


class Output(CliTest):
    def test_names_that_runs_write(self):
        """The lists of tests/unit/train/output_folder_test.cpp, whose files are safe from a run: nothing else may be written."""
        common = {"metrics.jsonl", "run_options.json", "README.md", "tokenizer.json", "tokenizer_config.json",
                  "special_tokens_map.json", "chat_template.jinja"}
        model = self.model_copy()
        for name in ("special_tokens_map.json", "generation_config.json"):
            (model / name).write_text("{}")
        (model / "chat_template.jinja").write_text("{{ messages }}")
        full = dict(use_peft_lora=None, adapter_name_or_path=None, lora_dropout=None)
        for kind, changes, own in (("lora", {}, {"adapter_model.safetensors", "adapter_config.json", "shardtune_base.json"}),
                                   ("full", full, {"model.safetensors", "config.json", "generation_config.json"})):
            with self.subTest(kind=kind):
                output = self.scratch / kind
                self.check_succeeded(run(1, options(lora_options(**changes), model_name_or_path=model, output_dir=output)))
                self.assertEqual({path.name for path in output.iterdir()}, common | own)

    def test_file_of_the_user_is_refused(self):
        output = self.scratch / "out"
        output.mkdir()
        (output / "README.md").write_text("my notes")
        for n, done in in_parallel(lambda n: run(n, options(lora_options(output_dir=output))), (1, 3)).items():
            with self.subTest(ranks=n):
                message = self.check_failed_cleanly(done, 1, "bad_storage", ["'README.md'", str(output)])
                self.assertTrue(message.startswith("--output_dir"), "rank 0 alone looks, so no rank is named")
        self.assertEqual({path.name: path.read_text() for path in output.iterdir()}, {"README.md": "my notes"})
        (output / "README.md").unlink()
        (output / "train.jsonl").write_bytes((CASES / "rows-uneven.jsonl").read_bytes())
        self.check_succeeded(run(2, options(lora_options(output_dir=output, dataset_name=output / "train.jsonl"))))

    def test_metrics_file_that_is_a_pipe(self):
        output = self.scratch / "out"
        self.check_succeeded(run(1, options(lora_options(output_dir=output))))
        (output / "metrics.jsonl").unlink()
        os.mkfifo(output / "metrics.jsonl")
        done = run(2, options(lora_options(output_dir=output, overwrite_output_dir=True)))
        self.check_failed_cleanly(done, 1, "bad_storage", ["'metrics.jsonl'"])

    def test_input_in_what_an_overwriting_run_removes(self):
        output = self.scratch / "out"
        base = lora_options(output_dir=output, save_strategy="epoch", num_train_epochs=1)
        self.check_succeeded(run(1, options(base)))
        checkpoint = next(output.glob("checkpoint-*"))
        shutil.copyfile(CASES / "rows-uneven.jsonl", checkpoint / "rows.jsonl")
        done = run(2, options(base, overwrite_output_dir=True, dataset_name=checkpoint / "rows.jsonl"))
        self.check_failed_cleanly(done, 2, "usage", ["--dataset_name", checkpoint.name])
        self.assertTrue((checkpoint / "rows.jsonl").exists())

    def test_overwriting_leaves_folders_of_the_user(self):
        output = self.scratch / "out"
        base = lora_options(output_dir=output, save_strategy="epoch", num_train_epochs=1)
        self.check_succeeded(run(1, options(base)))
        kept = output / "checkpoint-important" / "weights"
        kept.parent.mkdir()
        kept.write_text("mine")
        self.check_succeeded(run(2, options(base, overwrite_output_dir=True)))
        self.assertEqual(sorted(path.name for path in output.glob("checkpoint-*")), ["checkpoint-3", "checkpoint-important"])
        self.assertEqual(kept.read_text(), "mine")

    def test_below_a_file(self):
        (self.scratch / "file").write_text("")
        base = lora_options(output_dir=self.scratch / "file" / "out")
        for n, done in in_parallel(lambda n: run(n, options(base)), RANKS).items():
            with self.subTest(ranks=n):
                self.check_failed_cleanly(done, 1, "bad_storage", [str(self.scratch / "file" / "out")])

    def test_folder_of_another_run(self):
        output = self.scratch / "out"
        base = lora_options(output_dir=output)
        self.check_succeeded(run(1, options(base)))
        before = {path.name: path.read_bytes() for path in output.iterdir()}
        for n, done in in_parallel(lambda n: run(n, options(base)), RANKS).items():
            with self.subTest(ranks=n):
                self.check_failed_cleanly(done, 1, "bad_storage", ["--overwrite_output_dir", "--resume_from_checkpoint", str(output)])
        self.assertEqual({path.name: path.read_bytes() for path in output.iterdir()}, before)
        self.check_succeeded(run(2, options(base, overwrite_output_dir=True)))
        self.assertEqual(read_lines(output / "metrics.jsonl")[0]["step"], 1)

    def test_refused_replacement_leaves_the_old_run(self):
        output = self.scratch / "out"
        self.check_succeeded(run(1, options(lora_options(output_dir=output))))
        before = {path.name: path.read_bytes() for path in output.iterdir()}
        done = run(2, options(lora_options(output_dir=output, overwrite_output_dir=True, dataset_name="/nowhere")))
        self.check_failed_cleanly(done, 1, "bad_data", ["/nowhere"])
        self.assertEqual({path.name: path.read_bytes() for path in output.iterdir()}, before)

    def test_corrected_command_may_use_the_folder_of_a_failed_start(self):
        output = self.scratch / "out"
        self.check_failed_cleanly(run(2, options(lora_options(output_dir=output, dataset_name="/nowhere"))), 1, "bad_data", [])
        self.check_succeeded(run(2, options(lora_options(output_dir=output))))
        lines = read_lines(output / "metrics.jsonl")
        self.assertEqual(lines[0]["error_class"], "bad_data")
        self.assertEqual(lines[1]["step"], 1)


if __name__ == "__main__":
    main()
