"""Every --optim on the command line: runs, checkpoints and what of them is refused."""

import json

from support import CASES, CliTest, lora_options, main, options, read_lines, run

KINDS = ("adamw_torch", "adamw_bnb_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "sgd")
# The state of each kind beside the weights: fp32 moments, and those of 8 bits.
WIDE = ["exp_avg", "exp_avg_sq"]
NARROW = WIDE + ["state1", "absmax1", "state2", "absmax2"]
ROLES = {"adamw_torch": WIDE, "adamw_bnb_8bit": NARROW, "paged_adamw_32bit": WIDE, "paged_adamw_8bit": NARROW, "sgd": []}


def losses(folder):
    return [line["loss"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


class Optimizers(CliTest):
    # All weights of a model with tensors of more and of fewer than 4096 elements.
    FULL = lora_options(model_name_or_path=CASES.parent / "models" / "tiny", use_peft_lora=None, adapter_name_or_path=None,
                        lora_dropout=None, num_train_epochs=None, max_steps=4, learning_rate=1e-3, weight_decay=0.01,
                        save_strategy="steps", save_steps=2, shuffle=True)

    def train(self, ranks, folder, **changes):
        return run(ranks, options(self.FULL, **changes, output_dir=self.scratch / folder))

    def test_resumed_runs(self):
        curves = set()
        for optim in KINDS:
            with self.subTest(optim=optim):
                self.check_succeeded(self.train(2, optim, optim=optim))
                checkpoint = self.scratch / optim / "checkpoint-2"
                manifest = json.loads((checkpoint / "manifest.json").read_text())
                self.assertEqual(manifest["optim"], optim)
                self.assertEqual([role["name"] for role in manifest["roles"]], ["weight"] + ROLES[optim])
                self.assertEqual({role["dtype"] for role in manifest["roles"] if role["name"].startswith("state")},
                                 {"U8"} if optim.endswith("8bit") else set())
                self.check_succeeded(self.train(2, optim + "-resumed", optim=optim, resume_from_checkpoint=checkpoint))
                self.assertEqual(losses(self.scratch / (optim + "-resumed")), losses(self.scratch / optim)[2:])
                models = [(self.scratch / folder / "model.safetensors").read_bytes() for folder in (optim, optim + "-resumed")]
                self.assertEqual(*models)
                curves.add(tuple(losses(self.scratch / optim)))
        # Paged 8-bit computes what plain 8-bit does; bitsandbytes rounds otherwise than PyTorch, which a loss may not show.
        self.assertIn(len(curves), (3, 4))

    def test_checkpoint_of_another_kind(self):
        self.check_succeeded(self.train(2, "first", optim="adamw_8bit"))
        checkpoint = self.scratch / "first" / "checkpoint-2"
        done = self.train(2, "torch", resume_from_checkpoint=checkpoint)
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["checkpoint-2: --optim was adamw_bnb_8bit in the checkpoint's run and "
                                                              "is adamw_torch now", "must keep it"])
        self.check_succeeded(self.train(2, "alias", optim="adamw_bnb_8bit", resume_from_checkpoint=checkpoint))

    def test_other_number_of_ranks_is_refused_today(self):
        self.check_succeeded(self.train(2, "two", optim="paged_adamw_8bit"))
        done = self.train(1, "one", optim="paged_adamw_8bit", resume_from_checkpoint=self.scratch / "two" / "checkpoint-2")
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["written by 2 ranks, this run has 1"])

    def test_checkpoint_from_before_there_were_kinds(self):
        self.check_succeeded(self.train(2, "first"))
        manifest = self.scratch / "first" / "checkpoint-2" / "manifest.json"
        content = json.loads(manifest.read_text())
        for key in ("optim", "roles"):
            del content[key]
        manifest.write_text(json.dumps({**content, "schema": 1}))
        self.check_succeeded(self.train(2, "second", resume_from_checkpoint=manifest.parent))
        self.assertEqual(losses(self.scratch / "second"), losses(self.scratch / "first")[2:])
        done = self.train(2, "third", optim="adamw_8bit", resume_from_checkpoint=manifest.parent)
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["--optim was adamw_torch in the checkpoint's run and is adamw_bnb_8bit now"])

    def test_8bit_checkpoint_is_smaller(self):
        """8 bytes of state a weight become 2.03, but for the embedding and small tensors; state has no padding."""
        narrow = 4 * (2 * 64 * 64 + 3 * 160 * 64) + 512 * 64
        wide = 512 * 64 + 4 * (2 * 32 * 64 + 2 * 64) + 64
        for optim, state in (("adamw_torch", 8 * (narrow + wide)), ("adamw_8bit", 8 * wide + 2 * narrow + 8 * narrow // 256)):
            self.check_succeeded(self.train(1, optim, optim=optim))
            size = (self.scratch / optim / "checkpoint-2" / "rank-00000.h5").stat().st_size
            self.assertGreater(size, 4 * (narrow + wide) + state)
            # Shards are padded to 256 elements a tensor (9 norms of 64); the format itself takes some kB.
            self.assertLess(size, 4 * (narrow + wide) + state + 9 * 192 * 12 + 8192, optim)


if __name__ == "__main__":
    main()
