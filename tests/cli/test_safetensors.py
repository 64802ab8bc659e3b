"""Case A33 end to end: each broken file as the model of a run on two ranks."""

import shutil

from support import CASES, CliTest, in_parallel, lora_options, main, options, run


class CaseA33(CliTest):
    def test_every_broken_file_is_refused_on_all_ranks(self):
        files = sorted((CASES / "safetensors-bad").glob("*.safetensors"))
        self.assertEqual(len(files), 22)

        def one(path):
            folder = self.model_copy(path.stem)
            shutil.copyfile(path, folder / "model.safetensors")
            return run(2, options(lora_options(model_name_or_path=folder, output_dir=self.scratch / f"out-{path.stem}")))

        for path, done in in_parallel(one, files).items():
            with self.subTest(file=path.name):
                message = self.check_failed_cleanly(done, 1, "bad_model", [f"{path.stem}/model.safetensors"])
                self.assertFalse(message.startswith("rank"), "all ranks see the same fault")
                self.check_nothing_written(self.scratch / f"out-{path.stem}", ("bad_model", message))


if __name__ == "__main__":
    main()
