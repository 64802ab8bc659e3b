"""The plan that a run makes of itself before it starts: a job that does not fit is refused."""

import json
import math
import struct
import unittest

from support import CASES, SANITIZER, CliTest, main, options, read_lines, run


class RunThatDoesNotFit(CliTest):
    """config.json of a model that no test machine holds, and no weights: what is refused was refused before they were looked at."""

    def setUp(self):
        super().setUp()
        self.folder = self.scratch / "huge"
        self.folder.mkdir()
        (self.folder / "config.json").write_text((CASES / "base-gqa" / "config.json").read_text())
        self.change_config(self.folder, hidden_size=65536, intermediate_size=262144, num_hidden_layers=200)
        self.data = self.rows([{"input_ids": list(range(1, 40))}] * 8)

    def job(self, **changes):
        return {**dict(model_name_or_path=self.folder, dataset_name=self.data, use_peft_lora=True, max_length=64, dtype="float32",
                       per_device_train_batch_size=1, save_strategy="no", max_steps=1), **changes}

    def test_refused_on_all_ranks(self):
        for ranks in (1, 3):
            out = self.scratch / f"out-{ranks}"
            done = run(ranks, options(self.job(), output_dir=out))
            message = self.check_failed_cleanly(done, 2, "usage", ["does not fit", "GiB at most", f"the {ranks} rank", "--ignore_plan"])
            self.check_nothing_written(out, ("usage", message))

    def forward(self, ranks, command, **changes):
        """evaluate or generate, which have no options of training."""
        own = dict(dataset_name=self.data) if command == "evaluate" else dict(prompt="Once", max_new_tokens=8)
        return run(ranks, [command] + options({**dict(model_name_or_path=self.folder, dtype="float32", per_device_eval_batch_size=1),
                                               **own, **changes})[1:])

    def test_evaluation_and_generation_are_refused_too(self):
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (self.folder / name).write_bytes((CASES.parent / "models" / "tiny" / name).read_bytes())
        for command, parts in (("evaluate", ["this evaluation does not fit"]), ("generate", ["this generation does not fit", "keys and values"])):
            for ranks in (1, 3):
                with self.subTest(command=command, ranks=ranks):
                    self.check_failed_cleanly(self.forward(ranks, command), 2, "usage",
                                              [*parts, f"the {ranks} rank", "weight shards", "gather buffers", "are free there",
                                               "start more ranks", "--ignore_plan"])
            # What then stops it are the weights, which are not there.
            self.check_failed_cleanly(self.forward(2, command, ignore_plan=True), 1, "bad_model", ["holds no weights"])

    def test_a_cache_that_does_not_fit(self):
        """Small weights, and keys and values of 2^20 tokens in every layer: 2 * 64 * 2^20 * 2048 * 4 bytes are 1 TiB."""
        self.change_config(self.folder, hidden_size=32, intermediate_size=32, num_hidden_layers=64, num_attention_heads=64, num_key_value_heads=64,
                           head_dim=32, max_position_embeddings=1 << 21)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (self.folder / name).write_bytes((CASES.parent / "models" / "tiny" / name).read_bytes())
        done = self.forward(2, "generate", max_new_tokens=1 << 20)
        message = self.check_failed_cleanly(done, 2, "usage", ["keys and values 1024.0", "lower --per_device_eval_batch_size or --max_new_tokens"])
        self.assertIn("does not fit", message)

    def test_ignored_plan_without_weights(self):
        """Nothing is allocated for a model whose files are not there."""
        done = run(2, options(self.job(), output_dir=self.scratch / "out", ignore_plan=True))
        self.check_failed_cleanly(done, 1, "bad_model", ["holds no weights"])

    @unittest.skipIf(SANITIZER, "the sanitizer reserves more addresses than the limit leaves")
    def test_ignored_plan(self):
        # The memory is not there all the same; the limit on addresses keeps the machine out of it.
        width, words, wide, narrow, layers = 65536, 1 << 20, 32, 16, 1
        self.change_config(self.folder, hidden_size=width, vocab_size=words, head_dim=8, num_attention_heads=4, num_key_value_heads=2,
                           intermediate_size=64, num_hidden_layers=layers, tie_word_embeddings=False)
        layer = {"self_attn.q_proj": (wide, width), "self_attn.k_proj": (narrow, width), "self_attn.v_proj": (narrow, width),
                 "self_attn.o_proj": (width, wide), "mlp.gate_proj": (64, width), "mlp.up_proj": (64, width), "mlp.down_proj": (width, 64),
                 "input_layernorm": (width,), "post_attention_layernorm": (width,)}
        tensors = {"model.embed_tokens": (words, width), "model.norm": (width,), "lm_head": (words, width),
                   **{f"model.layers.0.{name}": shape for name, shape in layer.items()}}
        self.write_holes({f"{name}.weight": shape for name, shape in tensors.items()})
        # In one piece the table meets the limit at once; in many it would fill all that the limit allows before.
        done = run(1, options(self.job(), output_dir=self.scratch / "out", ignore_plan=True, table_pieces=1), before="ulimit -v 16000000")
        self.check_failed_cleanly(done, 1, "out_of_memory", [])

    def write_holes(self, shapes):
        """A safetensors file of zeros that takes no room on the disk."""
        header, at = {}, 0
        for name, shape in shapes.items():
            size = 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with open(self.folder / "model.safetensors", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)

    def test_numbers_do_not_change(self):
        found = []
        for number, ignore in enumerate((None, True)):
            out = self.scratch / f"same-{number}"
            done = run(2, options(self.job(model_name_or_path=CASES / "base-gqa", max_steps=3), output_dir=out, logging_steps=1,
                                  ignore_plan=ignore))
            self.check_succeeded(done)
            lines = read_lines(out / "metrics.jsonl")
            found.append(([(line["loss"], line["grad_norm"]) for line in lines if "loss" in line],
                          lines[-1]["step_ledger"], (out / "adapter_model.safetensors").read_bytes()))
        self.assertEqual(found[0], found[1])

    def test_auto_counts_as_recompute(self):
        # A budget that only recomputation meets must reach the run's own choice of layers.
        done = run(1, options(self.job(model_name_or_path=CASES / "base-gqa"), output_dir=self.scratch / "out",
                              activation_policy="auto", memory_budget_gib=4))
        self.check_succeeded(done)


if __name__ == "__main__":
    main()
