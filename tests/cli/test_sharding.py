"""Sharding, memory and precision options on the command line: refusals, and runs that give the numbers of a plain run."""

from support import CliTest, lora_options, main, options, read_lines, run


def losses(folder):
    return [line["loss"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


class Refused(CliTest):
    def refuse(self, base, *fragments, ranks):
        # The mesh needs the number of ranks, so the output folder has been looked at already.
        self.check_refused(base, "usage", *fragments, code=2, ranks=ranks)

    def test_group_that_does_not_divide_the_ranks(self):
        self.refuse(lora_options(fsdp_sharding_strategy="HYBRID_SHARD", shard_group_size=3), "--shard_group_size: 3 ranks do not divide",
                    ranks=(4,))

    def test_group_without_a_hybrid_strategy(self):
        self.refuse(lora_options(shard_group_size=1), "needs --fsdp_sharding_strategy HYBRID_SHARD", ranks=(2,))

    def test_reshard_number_that_does_not_divide(self):
        self.refuse(lora_options(fsdp_reshard_after_forward=2), "--fsdp_reshard_after_forward 2 does not divide the 3", ranks=(3,))

    def test_strategy_that_version_2_has_not(self):
        self.refuse(lora_options(fsdp_version=2, fsdp_sharding_strategy="NO_SHARD"), "--fsdp_version 2 has no such strategy", ranks=(1, 2))

    def test_unit_smaller_than_a_layer(self):
        self.refuse(lora_options(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params=100), "--fsdp_min_num_params 100",
                    "give at least that", ranks=(1, 2))

    def test_budget_below_the_least(self):
        for n in (1, 3):
            with self.subTest(ranks=n):
                done = run(n, options(lora_options(output_dir=self.scratch / f"out-{n}", activation_policy="auto", memory_budget_gib=0.01)))
                self.check_failed_cleanly(done, 2, "usage", ["--memory_budget_gib 0.01: a rank needs about", "GiB", "give at least that"])

    def test_budget_without_auto(self):
        self.refuse(lora_options(activation_policy="keep", memory_budget_gib=4), "--memory_budget_gib is for --activation_policy auto",
                    ranks=(2,))

    def test_shared_base_without_a_frozen_one(self):
        self.refuse(lora_options(use_peft_lora=None, adapter_name_or_path=None, lora_dropout=None, share_base_on_node="true"),
                    "--share_base_on_node true: full fine-tuning has no frozen base", ranks=(1, 2))

    def test_checkpoint_of_other_shard_groups(self):
        saved = self.scratch / "saved"
        base = lora_options(num_train_epochs=None, max_steps=2, save_strategy="steps", save_steps=1)
        self.check_succeeded(run(2, options(base, output_dir=saved)))
        done = run(2, options(base, output_dir=self.scratch / "out", resume_from_checkpoint=saved / "checkpoint-1",
                              fsdp_sharding_strategy="NO_SHARD"))
        self.check_failed_cleanly(done, 1, "bad_checkpoint", ["--shard_group_size was 2 in the checkpoint's run and is 1 now"])

    def test_openblas_that_cannot_be_loaded(self):
        # An empty file where the library is looked for first.
        for name in ("libopenblas.so.0", "libopenblas.so"):
            (self.scratch / name).write_bytes(b"")
        done = run(2, options(lora_options(output_dir=self.scratch / "out", blas="openblas")),
                   ranks_env={"LD_LIBRARY_PATH": str(self.scratch)})
        self.check_failed_cleanly(done, 2, "usage", ["--blas openblas: ", "libopenblas", "install libopenblas0-pthread"])

    def test_unknown_activation_policy(self):
        for value in ("every_0", "last_", "some", "every_1.5"):
            with self.subTest(value=value):
                self.refuse(lora_options(activation_policy=value), f"--activation_policy '{value}'", "last_K", ranks=(2,))

    def test_policy_that_contradicts_checkpointing(self):
        self.refuse(lora_options(activation_policy="recompute", gradient_checkpointing="False"), "contradicts --gradient_checkpointing False",
                    ranks=(2,))
        for policy in ("auto", "last_99", "every_2", "keep"):
            with self.subTest(policy=policy):
                self.refuse(lora_options(activation_policy=policy, gradient_checkpointing="True"),
                            f"--activation_policy {policy} contradicts --gradient_checkpointing True", ranks=(2,))


class SameNumbers(CliTest):
    """The whole program, not only its engine: the losses of a run are those of a plain one."""

    PLAIN = lora_options(lora_dropout=0.1, gradient_accumulation_steps=2, shuffle=True)

    def test_choices_that_change_nothing(self):
        plain = self.scratch / "plain"
        self.check_succeeded(run(2, options(self.PLAIN, output_dir=plain)))
        adapter = (plain / "adapter_model.safetensors").read_bytes()
        for number, choice in enumerate((
                dict(fsdp_sharding_strategy="SHARD_GRAD_OP", fsdp_backward_prefetch="BACKWARD_POST", share_base_on_node="false"),
                dict(accumulation_order="layer_first", activation_policy="every_2"),
                dict(fsdp_auto_wrap_policy="NO_WRAP", gradient_checkpointing="True", use_reentrant="True"),
                dict(fsdp_version=2, fsdp_reshard_after_forward="false"),
                dict(fsdp_sharding_strategy="NO_SHARD"))):
            with self.subTest(**choice):
                output = self.scratch / f"out-{number}"
                self.check_succeeded(run(2, options(self.PLAIN, **choice, output_dir=output)))
                self.assertEqual(losses(output), losses(plain))
                self.assertEqual((output / "adapter_model.safetensors").read_bytes(), adapter)

    def test_openblas_serves_when_asked(self):
        """Another library rounds otherwise: fp32 sums of 32 to 64 products."""
        found = {}
        for blas, line in (("mkl", "MKL (LibTorch's own)"), ("openblas", "OpenBLAS 0.")):
            output = self.scratch / blas
            done = run(2, options(self.PLAIN, output_dir=output, blas=blas))
            self.check_succeeded(done)
            self.assertIn(line, done.out)
            found[blas] = losses(output)
        for one, other in zip(found["mkl"], found["openblas"]):
            self.assertAlmostEqual(one, other, delta=1e-5 * one)

    def test_resumed_with_fp16_and_another_order(self):
        """The loss scale and the number of updates are part of a checkpoint."""
        base = {**self.PLAIN, "mixed_precision": "fp16", "num_train_epochs": None, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
        straight, resumed = self.scratch / "straight", self.scratch / "resumed"
        self.check_succeeded(run(2, options(base, output_dir=straight)))
        self.check_succeeded(run(2, options(base, output_dir=resumed, resume_from_checkpoint=straight / "checkpoint-2",
                                            accumulation_order="layer_first", fsdp_sharding_strategy="SHARD_GRAD_OP")))
        self.assertEqual(losses(resumed), losses(straight)[2:])
        self.assertEqual((resumed / "checkpoint-4/manifest.json").read_bytes(), (straight / "checkpoint-4/manifest.json").read_bytes())


if __name__ == "__main__":
    main()
