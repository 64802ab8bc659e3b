"""What is wrong in the options alone: exit code 2, before any file is opened."""

import subprocess

from support import BINARY, CASES, CliTest, environment, lora_options, main, options, run, in_parallel, RANKS


class Usage(CliTest):
    def refuse(self, base, *fragments, **keywords):
        self.check_refused(base, "usage", *fragments, code=2, recorded=False, **keywords)

    def test_unknown_option_names_the_near_one(self):
        self.refuse(lora_options(learnin_rate=1), "learnin_rate", "'--learning_rate'")

    def test_wrong_value_names_what_is_allowed(self):
        self.refuse(lora_options(lora_r="eight"), "lora_r", "'eight'", "integer")

    def test_value_out_of_range(self):
        self.refuse(lora_options(lora_dropout=1.5), "lora_dropout", "1.5", "from 0 to 0.999999", ranks=(3,))

    def test_contradicting_options(self):
        self.refuse(lora_options(overwrite_output_dir=True, resume_from_checkpoint=True), "overwrite_output_dir",
                    "resume_from_checkpoint", "contradict")

    def test_option_that_would_be_ignored(self):
        self.refuse(lora_options(use_peft_lora=None), "use_peft_lora", "does nothing", ranks=(3,))

    def test_optimizer_that_is_not_there(self):
        self.refuse(lora_options(optim="adafactor"), "option optim: 'adafactor' is not allowed", "adamw_bnb_8bit", "paged_adamw_8bit",
                    "sgd", ranks=(3,))

    def test_option_of_another_optimizer(self):
        self.refuse(lora_options(optim="sgd", adam_beta1=0.8), "adam_beta1 = 0.8 does nothing while optim is sgd", ranks=(3,))

    def test_missing_required_options_are_named_together(self):
        self.refuse({}, "model_name_or_path", "dataset_name")

    def test_environment_is_checked_like_the_command_line(self):
        self.refuse(lora_options(), "SHARDTUNE_LERNING_RATE", "learning_rate", ranks=(3,), ranks_env={"SHARDTUNE_LERNING_RATE": "1"})

    def test_unknown_command(self):
        for n, done in in_parallel(lambda n: run(n, ["tune"]), RANKS).items():
            with self.subTest(ranks=n):
                self.check_failed_cleanly(done, 2, "usage", ["'tune'", "train"])

    def test_common_slips(self):
        self.refuse(lora_options(dtype="bf16"), "'bf16' is not allowed", "did you mean 'bfloat16'?", ranks=(2,))
        self.refuse(lora_options(adapter_name_or_path=None, lora_target_modules="all_linear"), "'all_linear' matches no module",
                    "all-linear", ranks=(2,))

    def test_switch_of_the_file_is_turned_off(self):
        config = self.scratch / "run.ini"
        config.write_text("save_strategy = steps\nsave_steps = 1\nlr_scheduler_type = cosine\nwarmup_steps = 2\n")
        base = {name: value for name, value in lora_options().items() if name not in ("save_strategy", "lr_scheduler_type")}
        out = self.scratch / "out"
        done = run(2, options(base, config=config, save_strategy="no", lr_scheduler_type="constant", output_dir=out))
        self.check_succeeded(done)
        self.assertRegex(done.out, r"save_steps +1 +\(config .*, without effect\)")
        self.assertRegex(done.out, r"warmup_steps +2 +\(config .*, without effect\)")
        self.assertEqual(list(out.glob("checkpoint-*")), [])
        self.assertNotIn("warmup_steps", (out / "README.md").read_text())

    def test_variables_of_the_tools_are_left_alone(self):
        done = run(2, options(lora_options(output_dir=self.scratch / "out")), ranks_env={"SHARDTUNE_SKIP_PACKAGES": "1"})
        self.check_succeeded(done)

    def test_help_comes_once(self):
        for n, done in in_parallel(lambda n: run(n, ["train", "--help"]), RANKS).items():
            with self.subTest(ranks=n):
                self.check_succeeded(done)
                self.assertEqual(done.out.count("Usage:"), 1)


class FullOutput(CliTest):
    def test_output_that_does_not_arrive_is_a_failure(self):
        """One process each, whose standard output is the full device itself; mpirun would take it over."""
        model = CASES / "base-gqa"
        for arguments in (["--help"], ["generate", "--model_name_or_path", model, "--prompt", "a", "--max_new_tokens", "1"],
                          ["evaluate", "--model_name_or_path", model, "--dataset_name", CASES / "rows-uneven.jsonl"]):
            with self.subTest(command=arguments[0]), open("/dev/full", "wb") as full:
                done = subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                      text=True, env=environment(), check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("shardtune: error (bad_storage): standard output could not be written to its end", done.stderr)


class DifferentOptions(CliTest):
    """Ranks that were started differently must not run: they would wait for each other."""

    def refuse(self, before, *fragments):
        # One rank alone cannot differ.
        self.check_refused(lora_options(), "usage", *fragments, code=2, recorded=False, ranks=(2, 3, 4), before=before)

    def test_environment_of_one_rank(self):
        self.refuse('[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export SHARDTUNE_SEED=7', "rank 1", "option seed is '7' (environment)",
                    "'42' (default)")

    def test_first_of_several(self):
        self.refuse('[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export SHARDTUNE_SEED=7 SHARDTUNE_MAX_LENGTH=64', "rank 1",
                    "option max_length is '64'")

    def test_same_value_from_another_place_is_fine(self):
        done = run(2, options(lora_options(output_dir=self.scratch / "out")),
                   before='[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export SHARDTUNE_SEED=42')
        self.check_succeeded(done)

    def test_one_rank_with_a_wrong_option(self):
        self.refuse('[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export SHARDTUNE_SEED=x', "rank 1", "SHARDTUNE_SEED", "'x'")


if __name__ == "__main__":
    main()
