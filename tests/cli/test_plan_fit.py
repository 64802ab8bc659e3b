"""`shardtune plan --fit`: the search for the fastest choice that the memory allows."""

import json

from plan_support import HARDWARE, LENGTH, plan
from support import CASES, CliTest, main, options


class Fit(CliTest):
    """The search on the small model, whose memory without kept layers is some 100 KB. --plan_device cpu: no allowance is added."""

    def setUp(self):
        super().setUp()
        self.hardware = self.scratch / "hardware.ini"
        self.hardware.write_text(HARDWARE)
        self.json = self.scratch / "plan.json"

    def job(self, **changes):
        given = dict(model_name_or_path=CASES / "base-gqa", use_peft_lora=True, lora_r=4, max_length=LENGTH, dtype="float32",
                     per_device_train_batch_size=4, gradient_accumulation_steps=2)
        return options({**given, **changes})[1:]

    def planning(self, **changes):
        return options({**dict(world_size=4, ranks_per_node=2, plan_device="cpu", hardware=self.hardware, plan_json=self.json),
                        **changes})[1:]

    def figures(self, arguments):
        done = plan(arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = json.loads(self.json.read_text())
        device, host = (max(made[part][where] for part in ("load", "step", "save")) for where in ("bytes", "host_bytes"))
        return device + host // 2, made["time"]["seconds"], done.stdout

    def ini(self, text):
        return text[text.index("#---- the fastest"):text.index("#---- end")]

    def keys(self, text):
        return dict(line.split(" = ", 1) for line in self.ini(text).splitlines() if not line.startswith("#"))

    def test_fastest_that_fits(self):
        given = self.planning()
        held = dict(activation_policy="recompute", ffn_chunk_tokens=64, per_device_train_batch_size=1, gradient_accumulation_steps=8)
        small, slow, _ = self.figures(self.job(**held) + given)
        budget = 1.5 * small / 1e9
        peak, seconds, text = self.figures(self.job() + given + ["--fit", f"{budget:.9f}"])
        self.assertLessEqual(peak, 1e9 * budget)
        self.assertLess(seconds, slow)
        self.assertIn("looked at", text)
        keys = self.keys(text)
        # What the search sets and what was given, and nothing of the group Planning.
        self.assertEqual(set(keys), {"fsdp_sharding_strategy", "accumulation_order", "per_device_train_batch_size",
                                     "gradient_accumulation_steps", "ffn_chunk_tokens", "activation_policy", "model_name_or_path",
                                     "use_peft_lora", "lora_r", "max_length", "dtype"})
        rows = int(keys["per_device_train_batch_size"]) * int(keys["gradient_accumulation_steps"])
        self.assertEqual(rows, 8)
        # With room for everything, all layers keep their intermediates, and it is faster still.
        _, fastest, text = self.figures(self.job() + given + ["--fit", "1"])
        self.assertLess(fastest, seconds)
        self.assertEqual(self.keys(text)["activation_policy"], "keep")

    def test_printed_file_gives_the_same_plan(self):
        peak, seconds, text = self.figures(self.job() + self.planning(fit=0.0008))
        file = self.scratch / "fit.ini"
        file.write_text(self.ini(text))
        self.assertEqual(self.figures(["--config", str(file)] + self.planning())[:2], (peak, seconds))

    def test_given_options_are_held(self):
        changes = dict(activation_policy="every_2", accumulation_order="layer_first", fsdp_sharding_strategy="SHARD_GRAD_OP")
        _, _, text = self.figures(self.job(**changes) + self.planning(fit=1))
        keys = self.keys(text)
        for name, value in changes.items():
            self.assertEqual(keys[name], value)
        self.assertIn("ffn_chunk_tokens", keys)

    def test_allowance_of_gpus(self):
        # The small model with the 1.5 GB of a CUDA context beside it.
        done = plan(self.job() + self.planning(plan_device="cuda", fit=1.499))
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        done = plan(self.job() + self.planning(plan_device="cuda", fit=1.51))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1.50 GB in it for the CUDA context", done.stdout)

    def refuse(self, arguments, *words):
        done = plan(arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_nothing_fits(self):
        self.refuse(self.job() + self.planning(fit=1e-5), "--fit 1e-05: nothing fits; the least is 0.001 GB a device",
                    "--per_device_train_batch_size 1 --gradient_accumulation_steps 8", "--activation_policy recompute",
                    "--fsdp_sharding_strategy")

    def test_more_than_the_device_has(self):
        self.refuse(self.job() + self.planning(fit=2.5), "option fit = 2.5 GB is more than the 2 GB of a small one", "give at most that")

    def test_wants_hardware(self):
        self.refuse(self.job() + self.planning(hardware=None, fit=1), "option fit needs a device: give hardware")

    def test_budget_given_twice(self):
        self.refuse(self.job(memory_budget_gib=1) + self.planning(fit=1), "fit and memory_budget_gib", "remove memory_budget_gib")


if __name__ == "__main__":
    main()
