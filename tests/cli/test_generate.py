"""`shardtune generate` as a user starts it: the reference's tokens, prompts and results in files, and what is refused."""

import json

from support import CASES, CliTest, in_parallel, main, options, read_lines, run

DATA = CASES.parent
TINY = DATA / "models" / "tiny"
ADAPTER = DATA / "numerics" / "tiny" / "lora" / "adapter"
CHAT = [{"role": "user", "content": "How are you?"}]


def generate(ranks, **changes):
    base = dict(model_name_or_path=TINY, prompt="Once upon a time", max_new_tokens=8)
    return run(ranks, ["generate"] + options(base, **changes)[1:])


class Generate(CliTest):
    def from_file(self, ranks, records, name, **changes):
        output = self.scratch / f"{name}-{ranks}.jsonl"
        done = generate(ranks, prompt=None, prompts=self.rows(records, f"prompts-{name}-{ranks}.jsonl"), output=output, **changes)
        self.check_succeeded(done)
        self.assertEqual(done.out, "")
        return read_lines(output)

    def test_one_prompt_is_printed_once(self):
        outputs = set()
        for ranks, done in in_parallel(lambda n: generate(n), (1, 2, 3)).items():
            self.check_succeeded(done)
            self.assertRegex(done.err, r"(?m)^1 prompt, 8 tokens in [0-9.]+ s, [0-9.]+ tokens/s$")
            outputs.add(done.out)
        self.assertEqual(len(outputs), 1, outputs)

    def test_files_are_the_same_on_any_number_of_ranks(self):
        records = [{"prompt": "The"}, {"messages": CHAT, "id": "b"}, {"prompt": "A much longer prompt, with a few more words in it."},
                   {"prompt": "x", "id": 4}, {"messages": CHAT + [{"role": "assistant", "content": "Well."}] + CHAT}]
        for name, changes in {"greedy": {}, "adapter": dict(adapter_name_or_path=ADAPTER), "nf4": dict(use_4bit_quantization=True),
                              "bf16": dict(dtype="bfloat16"),
                              "sampled": dict(do_sample=True, temperature=0.8, top_p=0.9, top_k=20, seed=3, per_device_eval_batch_size=1)}.items():
            lines = in_parallel(lambda n: self.from_file(n, records, name, **changes), (1, 2, 3))
            self.assertEqual(lines[1], lines[2], name)
            self.assertEqual(lines[1], lines[3], name)
            for record, line in zip(records, lines[1]):
                self.assertEqual({key: line[key] for key in record}, record)
                self.assertEqual(set(line) - set(record), {"completion", "finish_reason", "prompt_tokens", "token_ids"})
                stopped = line["token_ids"][-1] == 2
                self.assertEqual(line["finish_reason"], "stop" if stopped else "length")
                self.assertTrue(stopped or len(line["token_ids"]) == 8)

    def test_without_output_the_lines_are_printed(self):
        done = generate(2, prompt=None, prompts=self.rows([{"prompt": "a"}, {"prompt": "b"}]))
        self.check_succeeded(done)
        self.assertEqual([json.loads(line)["prompt"] for line in done.out.splitlines()], ["a", "b"])

    def test_seeds_differ(self):
        sampled = {seed: generate(1, do_sample=True, seed=seed).out for seed in (1, 2)}
        self.assertNotEqual(sampled[1], sampled[2])
        self.assertEqual(generate(2, do_sample=True, seed=1).out, sampled[1])

    def test_conversations_end_with_the_message(self):
        """The model's own end is another token than the template's end of a message."""
        model = self.model_copy(source="../models/tiny")
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
        prompts = self.rows([{"messages": CHAT}] * 8 + [{"prompt": "Hi"}] * 8)
        done = generate(1, model_name_or_path=model, prompt=None, prompts=prompts, do_sample=True, max_new_tokens=200,
                        temperature=30, seed=5)
        self.check_succeeded(done)
        lines = [json.loads(line) for line in done.out.splitlines()]
        ended = [line for line in lines if line["token_ids"][-1] == 2]
        # 512 tokens that are about equally likely, 200 times: of eight conversations one is enough.
        self.assertTrue(ended)
        for line in ended:
            self.assertEqual(line["finish_reason"], "stop")
            self.assertNotIn("<|im_end|>", line["completion"])
        for line in lines:
            self.assertEqual(line["finish_reason"], "stop" if line["token_ids"][-1] in ((0, 2) if "messages" in line else (0,)) else "length")
            if "messages" in line:
                self.assertNotIn(2, line["token_ids"][:-1])
        self.assertTrue(any(2 in line["token_ids"][:-1] for line in lines), "a text goes on behind it")

    def test_what_is_refused(self):
        short = self.model_copy("short", source="../models/tiny")
        self.change_config(short, max_position_embeddings=16)
        endless = self.model_copy("endless", source="../models/tiny")
        self.change_config(endless, eos_token_id=None)
        (endless / "generation_config.json").unlink()
        tokenizer = json.loads((endless / "tokenizer_config.json").read_text())
        del tokenizer["eos_token"]
        (endless / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        file = dict(prompt=None)
        for error_class, code, fragment, changes in (
                ("usage", 2, "nothing to continue", dict(prompt=None)),
                ("usage", 2, "'0' is not allowed", dict(do_sample=True, temperature=0)),
                ("usage", 2, "'1.01' is not allowed", dict(do_sample=True, top_p=1.01)),
                ("usage", 2, "does nothing while do_sample is False", dict(temperature=0.5)),
                ("bad_data", 1, "the prompt is empty", dict(file, prompts=self.rows([{"prompt": ""}], "empty.jsonl"))),
                ("bad_data", 1, "field 'promt' is not known", dict(file, prompts=self.rows([{"promt": "a"}], "field.jsonl"))),
                ("bad_data", 1, "none.jsonl", dict(file, prompts=self.scratch / "none.jsonl")),
                ("bad_data", 1, "holds no prompt", dict(file, prompts=self.rows([], "no.jsonl"))),
                ("usage", 2, "--max_new_tokens 16 leaves no prompt a place among the model's 16 positions",
                 dict(model_name_or_path=short, max_new_tokens=16, prompt="1")),
                ("bad_data", 1, "--prompt: the prompt has 7 tokens, and the model 16 positions",
                 dict(model_name_or_path=short, max_new_tokens=10, prompt="1234567")),
                ("bad_model", 1, "no token is known that ends a text", dict(model_name_or_path=endless)),
                ("bad_storage", 1, "nowhere", dict(output=self.scratch / "nowhere" / "out.jsonl"))):
            with self.subTest(fragment=fragment):
                self.check_failed_cleanly(generate(2, **changes), code, error_class, [fragment])
        self.check_succeeded(generate(2, model_name_or_path=short, max_new_tokens=9, prompt="1234567"))

    def test_a_failed_run_leaves_the_old_results(self):
        output = self.rows(['{"completion": "old"}'], "out.jsonl")
        done = generate(2, output=output, prompt=None, prompts=self.scratch / "none.jsonl")
        self.assertEqual(done.code, 1)
        self.assertEqual(output.read_text(), '{"completion": "old"}\n')
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["out.jsonl"])
        self.check_succeeded(generate(1, output=output))
        self.assertNotIn("old", output.read_text())

    def test_output_replaces_results_and_nothing_else(self):
        mine = self.rows(['{"prompt": "a"}'], "mine.jsonl")
        config = self.scratch / "config.json"
        config.write_text('{\n  "completion": 1\n}\n')
        for code, error_class, fragment, changes in (
                (1, "bad_storage", "mine.jsonl' exists and holds no results", dict(output=mine)),
                (1, "bad_storage", "config.json' exists and holds no results", dict(output=config)),
                (2, "usage", "is the file of --prompts", dict(output=mine, prompts=mine, prompt=None))):
            with self.subTest(fragment=fragment):
                self.check_failed_cleanly(generate(1, **changes), code, error_class, [fragment])
        self.assertEqual(mine.read_text(), '{"prompt": "a"}\n')
        self.assertEqual(config.read_text(), '{\n  "completion": 1\n}\n')


if __name__ == "__main__":
    main()
