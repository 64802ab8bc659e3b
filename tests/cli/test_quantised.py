"""A quantised base on the command line: runs that go on after a stop, what is refused."""

import json
import shutil
import struct

from support import CASES, CliTest, lora_options, main, options, read_lines, rewrite_tensors, run

NF4 = dict(use_4bit_quantization=True, use_nested_quant=True)


def losses(folder):
    return [line["loss"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


class Runs(CliTest):
    PLAIN = lora_options(lora_dropout=0.1, num_train_epochs=None, max_steps=4, shuffle=True)

    def test_the_guides_options_and_a_resumed_run(self):
        base = {**self.PLAIN, **NF4, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float32",
                "bnb_4bit_quant_storage_dtype": "float32", "save_strategy": "steps", "save_steps": 2}
        straight, resumed = self.scratch / "straight", self.scratch / "resumed"
        done = run(2, options(base, output_dir=straight))
        self.check_succeeded(done)
        self.assertIn("base in float32, the layers' linears as nf4 in blocks of 64, double quantisation", done.out)
        self.check_succeeded(run(2, options(base, output_dir=resumed, resume_from_checkpoint=straight / "checkpoint-2",
                                            share_base_on_node="false", accumulation_order="layer_first")))
        self.assertEqual(losses(resumed), losses(straight)[2:])
        self.assertEqual((resumed / "adapter_model.safetensors").read_bytes(), (straight / "adapter_model.safetensors").read_bytes())
        done = run(2, options({**base, "use_nested_quant": None}, output_dir=self.scratch / "other",
                              resume_from_checkpoint=straight / "checkpoint-2"))
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["--use_4bit_quantization", "nf4 in blocks of 64"])

    def test_formats_differ_and_ranks_do_not(self):
        found = {}
        for name, quant in (("dense", {}), ("nf4", dict(use_4bit_quantization=True)), ("nested", NF4),
                            ("fp4", dict(use_4bit_quantization=True, bnb_4bit_quant_type="fp4")),
                            ("blocks of 256", dict(use_4bit_quantization=True, bnb_4bit_blocksize=256)),
                            ("int8", dict(use_8bit_quantization=True))):
            for ranks, accumulation in ((1, 2), (2, 1)):
                output = self.scratch / f"{name}-{ranks}"
                self.check_succeeded(run(ranks, options(self.PLAIN, **quant, gradient_accumulation_steps=accumulation, output_dir=output)))
                found.setdefault(name, losses(output))
                self.assertEqual(found[name], losses(output), name)
        self.assertEqual(len({tuple(curve) for curve in found.values()}), len(found))


class Cache(CliTest):
    """--quantised_cache: whatever it holds, the run is that of a start without it."""

    BASE = lora_options(**NF4, num_train_epochs=None, max_steps=2, share_base_on_node="false")

    def setUp(self):
        super().setUp()
        self.plain = self.scratch / "plain"
        self.check_succeeded(run(2, options(self.BASE, output_dir=self.plain)))
        self.cache = self.scratch / "cache"
        self.start("kept in")

    def start(self, *words, ranks=2, **changes):
        output = self.scratch / "out"
        done = run(ranks, options(self.BASE, quantised_cache=self.cache, output_dir=output, overwrite_output_dir=True, **changes))
        self.check_succeeded(done)
        for word in words:
            self.assertIn(word, done.out)
        if not changes and ranks == 2:
            self.assertEqual(losses(output), losses(self.plain))
        return done.out

    def folder(self):
        folders = list(self.cache.iterdir())
        self.assertEqual(len(folders), 1, folders)
        return folders[0]

    def test_next_start_on_any_number_of_ranks(self):
        shards = {path.name: path.read_bytes() for path in self.folder().iterdir()}
        for ranks in (2, 1, 3, 4):
            self.assertNotIn("warning", self.start("quantised weights read from", ranks=ranks))
        self.start("quantised weights read from", share_base_on_node="true")
        self.assertEqual({path.name: path.read_bytes() for path in self.folder().iterdir()}, shards)

    def test_another_format_and_dtype(self):
        self.start("quantised weights kept in", use_nested_quant=None)
        self.assertEqual(len(list(self.cache.iterdir())), 2)
        self.start("warning: quantised cache not used", "made from other files or with other options", "kept in", dtype="bfloat16")

    def test_damaged(self):
        part = sorted(self.folder().glob("part-*.h5"))[1]
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
        self.start("warning: quantised cache not used: ", "is damaged in its MiB 0", "quantised weights kept in")
        self.assertNotIn("warning", self.start("quantised weights read from"))

    def test_missing_and_short_files(self):
        parts = sorted(self.folder().glob("part-*.h5"))
        parts[0].unlink()
        self.start("warning: quantised cache not used", "part-00000.h5", "kept in")
        parts[1].write_bytes(parts[1].read_bytes()[:3000])
        self.start("warning: quantised cache not used", "part-00001.h5", "kept in")
        (self.folder() / "manifest.json").write_text("{}")
        self.start("warning: quantised cache not used", "kept in")
        (self.folder() / "manifest.json").write_text("")
        self.start("warning: quantised cache not used: ", "manifest.json: no manifest, or an empty one", "kept in")
        self.assertNotIn("warning", self.start("quantised weights read from"))

    def test_what_no_run_left_stays(self):
        folder = self.folder()
        notes = folder / "notes.txt"
        notes.write_text("mine")
        refused = lora_options(**NF4, quantised_cache=self.cache)
        self.check_refused(refused, "bad_storage", str(notes), "was left by no run and would be lost", ranks=(2,))
        self.assertEqual(notes.read_text(), "mine")
        shutil.rmtree(folder)
        folder.write_text("mine")
        self.check_refused(refused, "bad_storage", str(folder), "was left by no run", ranks=(2,))
        self.assertEqual(folder.read_text(), "mine")

    def test_model_that_has_changed(self):
        model = self.model_copy()
        self.start("kept in", model_name_or_path=model)
        self.start("read from", model_name_or_path=model)

        def twice(name, entry, data):
            if name != "model.layers.1.mlp.up_proj.weight":
                return data
            return b"".join(struct.pack("<f", 2 * value) for value, in struct.iter_unpack("<f", data))

        for path in model.glob("*.safetensors"):
            rewrite_tensors(path, twice)
        self.start("warning: quantised cache not used", "made from other files", "kept in", model_name_or_path=model)
        stale = losses(self.scratch / "out")
        fresh = self.scratch / "fresh"
        self.check_succeeded(run(2, options({**self.BASE, "model_name_or_path": model}, output_dir=fresh)))
        self.assertEqual(stale, losses(fresh))

    def test_refused(self):
        self.check_refused(lora_options(quantised_cache=self.cache), "usage", "does nothing while the base is not quantised", code=2, ranks=(2,),
                           recorded=False)
        self.check_refused(lora_options(**NF4, quantised_cache="/proc/nowhere"), "bad_storage", "--quantised_cache: /proc/nowhere cannot be made", ranks=(2,))


class Refused(CliTest):
    def test_both_widths(self):
        self.check_refused(lora_options(use_4bit_quantization=True, use_8bit_quantization=True), "usage", "contradict each other; remove one",
                           code=2, ranks=(2,), recorded=False)

    def test_training_what_is_quantised(self):
        self.check_refused(lora_options(use_peft_lora=None, adapter_name_or_path=None, lora_dropout=None, use_8bit_quantization=True),
                           "usage", "quantised weights cannot be trained; give use_peft_lora", code=2, ranks=(2,), recorded=False)

    def test_unknown_type(self):
        self.check_refused(lora_options(**NF4, bnb_4bit_quant_type="nf5"), "usage", "bnb_4bit_quant_type: 'nf5' is not allowed",
                           "nf4 or fp4", code=2, ranks=(2,), recorded=False)

    def test_block_size(self):
        for size in ("32", "8192"):
            self.check_refused(lora_options(**NF4, bnb_4bit_blocksize=size), "usage", f"bnb_4bit_blocksize: '{size}' is not allowed",
                               code=2, ranks=(2,), recorded=False)
        self.check_refused(lora_options(**NF4, bnb_4bit_blocksize=100), "usage", "--bnb_4bit_blocksize 100", "power of two from 64 to 4096",
                           code=2, ranks=(2,))

    def test_compute_type_of_another_run(self):
        self.check_refused(lora_options(**NF4, bnb_4bit_compute_dtype="bfloat16"), "usage",
                           "--bnb_4bit_compute_dtype bfloat16: this run computes in float32", code=2, ranks=(2,))

    def test_option_without_its_condition(self):
        self.check_refused(lora_options(use_nested_quant=True), "usage", "use_nested_quant = True does nothing while use_4bit_quantization is False",
                           code=2, ranks=(2,), recorded=False)

    def change_weight(self, value):
        """Element 100 of a linear of the layers; the other ranks wait for this one when scales come together."""
        folder = self.model_copy()
        wanted = "model.layers.1.mlp.up_proj.weight"

        def change(name, entry, data):
            if name != wanted:
                return data
            self.assertEqual(entry["dtype"], "F32")
            return data[:400] + struct.pack("<f", value) + data[404:]

        for path in folder.glob("*.safetensors"):
            rewrite_tensors(path, change)
        return folder, wanted

    def test_weight_that_is_not_a_number(self):
        folder, name = self.change_weight(float("nan"))
        for quant in (NF4, dict(use_8bit_quantization=True)):
            self.check_refused(lora_options(model_name_or_path=folder, **quant), "bad_model", name, "not finite", "element 100")

    def stored(self, name):
        """A model that Transformers has saved quantised, to be changed, with rows that fit its vocabulary."""
        folder = self.scratch / name
        shutil.copytree(CASES.parent / "models" / name, folder)
        return folder, lora_options(model_name_or_path=folder, adapter_name_or_path=None, dataset_name=self.rows(
            [{"input_ids": [5 * i + j for j in range(20)]} for i in range(8)]))

    def without(self, folder, wanted):
        """Takes one tensor out of the file."""
        path = folder / "model.safetensors"
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8:8 + length]), content[8 + length:]
        parts, at = [], 0
        del header[wanted]
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            parts.append(data[begin:end])
            tensor["data_offsets"] = [at, at + end - begin]
            at += end - begin
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))

    def test_stored_model_without_a_scale(self):
        for model, name in (("tiny-nf4", "model.layers.2.mlp.up_proj.weight.absmax"),
                            ("tiny-nf4", "model.layers.0.self_attn.q_proj.weight.nested_absmax"),
                            ("tiny-nf4", "model.layers.1.self_attn.v_proj.weight.quant_state.bitsandbytes__nf4"),
                            ("tiny-int8", "model.layers.3.self_attn.o_proj.SCB")):
            with self.subTest(name=name):
                folder, base = self.stored(model)
                self.without(folder, name)
                self.check_refused(base, "bad_model", f"'{name}'", "quantised weight", ranks=(1, 2))
                shutil.rmtree(folder)

    def test_stored_model_with_a_scale_that_is_not_a_number(self):
        folder, base = self.stored("tiny-nf4")
        wanted = "model.layers.2.mlp.up_proj.weight.nested_absmax"
        rewrite_tensors(folder / "model.safetensors", lambda name, _, data: struct.pack("<f", float("inf")) if name == wanted else data)
        self.check_refused(base, "bad_model", wanted, "not finite at element 0")

    def test_stored_model_and_other_wishes(self):
        folder, base = self.stored("tiny-nf4")
        self.check_refused({**base, "use_8bit_quantization": True}, "usage", "quantised already, as nf4 in blocks of 64, double quantisation",
                           code=2, ranks=(2,))
        self.check_refused({**base, "use_peft_lora": None, "lora_dropout": None}, "usage", "cannot be trained themselves; give --use_peft_lora",
                           code=2, ranks=(2,))

    def test_weight_beyond_half_precision(self):
        folder, name = self.change_weight(1e6)
        self.check_refused(lora_options(model_name_or_path=folder, use_8bit_quantization=True), "bad_model", name, "beyond the range of float16",
                           "--use_4bit_quantization", ranks=(2,))


if __name__ == "__main__":
    main()
