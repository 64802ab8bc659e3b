"""`shardtune merge`: the same files on any number of ranks, and clean refusals."""

import json
import math
import os
import re
import shutil
import struct
import unittest.mock

from support import CASES, RANKS, SANITIZER, CliTest, in_parallel, lora_options, main, options, rewrite_tensors, run

NUMBERS = dict(model_name_or_path=CASES / "base-gqa", adapter_name_or_path=CASES / "lora-plain")
MERGED = CASES.parent / "merged"


def arguments(base=(), **changes):
    return ["merge"] + options(base, **changes)[1:]


def write_zeros(path, shapes, dtype, width):
    """A safetensors file of these tensors, all 0, with no room on the disk."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = width * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


class Merge(CliTest):
    def merge(self, name, ranks=1, **changes):
        output = self.scratch / name
        done = run(ranks, arguments(NUMBERS, output_dir=output, **changes))
        self.check_succeeded(done)
        return output, done.out

    def files(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def check_same_on_any_number_of_ranks(self, **changes):
        folders = in_parallel(lambda n: self.merge(f"out-{n}", n, **changes)[0], RANKS)
        first = self.files(folders[1])
        for ranks, folder in folders.items():
            self.assertEqual(self.files(folder).keys(), first.keys())
            for name, content in self.files(folder).items():
                self.assertTrue(content == first[name], f"{name} differs on {ranks} ranks")
        return folders[1]

    def values(self, folder, wanted):
        content = (folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        begin, end = json.loads(content[8:8 + length])[wanted]["data_offsets"]
        return [value for value, in struct.iter_unpack("<f", content[8 + length + begin:8 + length + end])]

    def check_refused(self, error_class, *fragments, code=1, ranks=(1, 3), **changes):
        def one(n):
            return run(n, arguments({**NUMBERS, "output_dir": self.scratch / "refused", **changes}))

        for n, done in in_parallel(one, ranks).items():
            with self.subTest(ranks=n, fragments=fragments):
                self.check_failed_cleanly(done, code, error_class, fragments)
        self.assertFalse((self.scratch / "refused").exists())
        self.assertFalse(list(self.scratch.glob(".tmp-*")))

    def test_the_same_bytes_on_any_number_of_ranks(self):
        folder = self.check_same_on_any_number_of_ranks(max_shard_size="40KB")
        self.assertGreater(len(list(folder.glob("model-*-of-*.safetensors"))), 3)
        self.assertFalse(list(self.scratch.glob(".tmp-*")))

    def test_quantised_base_on_any_number_of_ranks(self):
        self.check_same_on_any_number_of_ranks(model_name_or_path=CASES.parent / "models/tiny",
                                               adapter_name_or_path=MERGED / "tiny-qlora", use_4bit_quantization=True,
                                               use_nested_quant=True)

    def test_result_of_a_run_knows_its_base(self):
        adapter = self.scratch / "adapter"
        self.check_succeeded(run(2, options(lora_options(use_4bit_quantization=True, output_dir=adapter))))
        record = json.loads((adapter / "shardtune_base.json").read_text())
        self.assertEqual(record["quantisation"], {"quant_type": "nf4", "double_quantisation": False, "block_size": 64})
        trained, text = self.merge("trained", 2, adapter_name_or_path=adapter)
        self.assertIn("merged into dequantised weights of nf4 in blocks of 64", text)
        self.assertNotIn("notice", text)
        original, text = self.merge("original", adapter_name_or_path=adapter, merge_base="original")
        self.assertIn("merged into the weights of the files", text)
        self.assertNotEqual(self.files(trained)["model.safetensors"], self.files(original)["model.safetensors"])
        # One weight that differs makes another base.
        changed = self.model_copy()
        rewrite_tensors(changed / "model.safetensors",
                        lambda name, _, data: struct.pack("<f", 0.25) + data[4:] if name == "model.norm.weight" else data)
        self.check_refused("bad_model", "was trained on another base", record["base_fingerprint"], model_name_or_path=changed,
                           adapter_name_or_path=adapter)
        # The merged model is one that this program trains.
        self.check_succeeded(run(1, options(lora_options(model_name_or_path=trained, output_dir=self.scratch / "again"))))

    def test_weighted_sum(self):
        name = "model.layers.1.mlp.up_proj.weight"
        once, _ = self.merge("once", adapter_weights="2")
        twice, text = self.merge("twice", adapter_name_or_path=f"{CASES / 'lora-plain'},{CASES / 'lora-plain'}")
        self.assertIn("changed 14 of 21 tensors", text)
        plain, _ = self.merge("plain")
        base, one, two, sum_of_two = (self.values(folder, name) for folder in (CASES / "base-gqa", plain, once, twice))
        self.assertLess(max(abs(x - y) for x, y in zip(two, sum_of_two)), 1e-6)
        self.assertLess(max(abs(b + 2 * (x - b) - y) for b, x, y in zip(base, one, two)), 1e-6)
        self.assertGreater(max(abs(x - y) for x, y in zip(one, two)), 1e-2)

    def large_model(self):
        """1.06 GB in bf16 that take no room on the disk: all weights are 0."""
        folder, hidden, vocabulary = self.model_copy("large"), 2048, 124_000
        self.change_config(folder, hidden_size=hidden, vocab_size=vocabulary, num_hidden_layers=1, num_attention_heads=16, head_dim=128,
                           num_key_value_heads=8, intermediate_size=5632, torch_dtype="bfloat16", dtype="bfloat16")
        shapes = {"model.embed_tokens": [vocabulary, hidden], "lm_head": [vocabulary, hidden], "model.norm": [hidden]}
        layer = {"self_attn.q_proj": [2048, hidden], "self_attn.k_proj": [1024, hidden], "self_attn.v_proj": [1024, hidden],
                 "self_attn.o_proj": [hidden, 2048], "mlp.gate_proj": [5632, hidden], "mlp.up_proj": [5632, hidden],
                 "mlp.down_proj": [hidden, 5632], "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
        shapes |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
        write_zeros(folder / "model.safetensors", {f"{name}.weight": shape for name, shape in shapes.items()}, "BF16", 2)
        adapter = self.scratch / "large-adapter"
        adapter.mkdir()
        config = json.loads((CASES / "lora-plain/adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 64, "target_modules": ["lm_head", "gate_proj"]}))
        wanted = {"lm_head": [vocabulary, hidden], "model.layers.0.mlp.gate_proj": [5632, hidden]}
        tensors = {}
        for name, (rows, columns) in wanted.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = [64, columns]
            tensors[f"base_model.model.{name}.lora_B.weight"] = [rows, 64]
        write_zeros(adapter / "adapter_model.safetensors", tensors, "F32", 4)
        return folder, adapter

    def test_memory_of_a_large_model(self):
        model, adapter = self.large_model()
        # The address sanitizer keeps 256 MB of freed memory on every rank, which is none of the merge's.
        quarantine = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"} if SANITIZER else {}
        for ranks, quant in ((1, {}), (4, {}), (2, dict(use_4bit_quantization=True, use_nested_quant=True))):
            with self.subTest(ranks=ranks, quant=quant), unittest.mock.patch.dict(os.environ, quarantine):
                output, text = self.merge(f"large-out-{ranks}", ranks, model_name_or_path=model, adapter_name_or_path=adapter,
                                          **quant)
                self.assertGreater((output / "model.safetensors").stat().st_size, 1e9)
                megabytes = float(re.search(r"memory above that of the start: ([0-9.]+) MB", text).group(1))
                self.assertLess(megabytes, 512, text)
                self.assertGreater(megabytes, 1, "nothing was measured")
                shutil.rmtree(output)

    def test_refused(self):
        self.check_refused("usage", "required option missing: adapter_name_or_path", code=2, adapter_name_or_path=None)
        self.check_refused("usage", "learning_rate is for 'shardtune train'", code=2, learning_rate=1e-4)
        self.check_refused("usage", "--max_shard_size '5GiB' is not a size", code=2, max_shard_size="5GiB")
        self.check_refused("usage", "2 weights for 1 adapter", code=2, adapter_weights="1,2")
        self.check_refused("usage", "'x' is not a number", code=2, adapter_weights="x")
        self.check_refused("bad_model", "adapter folder '/nowhere' does not exist", adapter_name_or_path="/nowhere")
        self.check_refused("bad_model", "14 tensors fit nothing", adapter_name_or_path=CASES / "lora-badprefix")
        self.check_refused("bad_model", "of another shape or type", model_name_or_path=CASES.parent / "models/tiny-odd",
                           adapter_name_or_path=MERGED / "tiny-lora")
        self.check_refused("bad_model", "model folder '/nowhere' does not exist", model_name_or_path="/nowhere")

    def test_adapter_that_is_not_a_number(self):
        adapter = self.scratch / "adapter"
        shutil.copytree(CASES / "lora-plain", adapter)
        wanted = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
        rewrite_tensors(adapter / "adapter_model.safetensors",
                        lambda name, _, data: struct.pack("<f", float("nan")) + data[4:] if name == wanted else data)
        self.check_refused("bad_model", wanted, "not finite at element 0", adapter_name_or_path=adapter)

    def test_what_a_killed_merge_left_is_told(self):
        left = self.scratch / ".tmp-out.1.0.0123abcd"
        left.mkdir()
        self.assertIn(f"notice: {left} was left by a merge that was killed", self.merge("out", 2)[1])
        self.assertTrue(left.exists())
        self.assertNotIn("was left by", self.merge("other")[1])

    def test_existing_folder(self):
        output, _ = self.merge("there")
        before = self.files(output)
        done = run(2, arguments(NUMBERS, output_dir=output))
        self.check_failed_cleanly(done, 1, "bad_storage", ["exists already"])
        self.assertEqual(self.files(output), before)


if __name__ == "__main__":
    main()
