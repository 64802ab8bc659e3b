// What may stand in an output folder, and what an overwriting run removes from it.
#include "../../../src/train/output_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "shardtune/core/error.h"
#include "support/scratch.h"

namespace shardtune::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetricsOfARun = R"({"step":1,"loss":2.0})";
constexpr const char* kMetricsOfAFailedStart = R"({"error_class":"bad_data","error":"no such file"})";

void write(const fs::path& file, const std::string& text = "mine") {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

std::string mark(bool lora) {
  return options::effective_as_json(
      {{"output_dir", "o", "command line"}, {"use_peft_lora", lora ? "True" : "False", "default"}});
}

void write_checkpoint(const fs::path& folder) {
  write(folder / "manifest.json", "{}");
  write(folder / "rank-00000.h5");
}

/// A finished run of the kind, with a checkpoint.
void write_run(const fs::path& folder, bool lora) {
  write(folder / "run_options.json", mark(lora));
  write(folder / "metrics.jsonl", kMetricsOfARun);
  write(folder / "README.md");
  write(folder / (lora ? "adapter_model.safetensors" : "model.safetensors"));
  write(folder / (lora ? "adapter_config.json" : "config.json"));
  write_checkpoint(folder / "checkpoint-3");
}

class OutputFolder : public ::testing::Test {
 protected:
  /// A run into the folder "out"; model and data lie beside it.
  OutputFolder() {
    fs::create_directories(out_);
    fs::create_directories(scratch_ / "model");
    write(scratch_ / "rows.jsonl", "{}");
    options_.model.model_name_or_path = scratch_ / "model";
    options_.data.dataset_name = scratch_ / "rows.jsonl";
    options_.train.output_dir = out_;
    options_.adapter.use_peft_lora = true;
  }

  bool prepare() { return train::prepare_output_folder(options_); }

  void expect_refused(ErrorClass error_class, const std::vector<std::string>& parts) {
    try {
      prepare();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.error_class(), error_class) << error.what();
      for (const std::string& part : parts)
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no '" << part << "' in " << error.what();
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& entry : fs::directory_iterator(out_)) list.push_back(entry.path().filename().string());
    std::sort(list.begin(), list.end());
    return list;
  }

  Scratch scratch_;
  fs::path out_ = scratch_ / "out";
  options::RunOptions options_;
};

TEST_F(OutputFolder, FilesThatNoRunLeftAreRefused) {
  const std::vector<std::string> both = {"README.md",       "tokenizer.json",          "tokenizer_config.json",
                                         "metrics.jsonl",   "special_tokens_map.json", "chat_template.jinja",
                                         "run_options.json"};
  const std::vector<std::string> lora = {"adapter_model.safetensors", "adapter_config.json", "shardtune_base.json"};
  const std::vector<std::string> full = {"model.safetensors", "config.json", "generation_config.json"};
  for (const auto& [group, with_lora, with_full] :
       {std::tuple(both, true, true), std::tuple(lora, true, false), std::tuple(full, false, true)})
    for (const std::string& name : group)
      for (const bool is_lora : {true, false})
        for (const bool overwrite : {true, false}) {
          write(out_ / name);
          options_.adapter.use_peft_lora = is_lora;
          options_.train.overwrite_output_dir = overwrite;
          if (is_lora ? with_lora : with_full)
            expect_refused(ErrorClass::kBadStorage,
                           {"'" + name + "'", out_.string(), "another folder", "move that file"});
          else EXPECT_FALSE(prepare()) << name;
          EXPECT_EQ(names(), std::vector<std::string>{name});
          fs::remove(out_ / name);
        }
}

TEST_F(OutputFolder, OtherFilesAreNoMatter) {
  for (const char* name : {"train.jsonl", "notes.txt", "checkpoint-important/weights", "checkpoint-7/weights",
                           "checkpoint-/manifest.json", "checkpoint-7x/manifest.json"})
    write(out_ / name);
  const auto before = names();
  options_.train.save_strategy = "no";
  options_.data.dataset_name = out_ / "train.jsonl";
  EXPECT_FALSE(prepare());
  options_.train.overwrite_output_dir = true;
  EXPECT_FALSE(prepare());
  train::remove_old_run(options_);
  EXPECT_EQ(names(), before);
}

// They would meet a checkpoint of this run when it is saved, hours later; what a run left is set aside instead.
TEST_F(OutputFolder, ForeignCheckpointsAreInTheWayOfARunThatSaves) {
  for (const char* name : {"checkpoint-7/weights", "checkpoint-7"}) {
    write(out_ / name);
    expect_refused(ErrorClass::kBadStorage, {"'checkpoint-7'", "another folder", "move that file"});
    fs::remove_all(out_ / "checkpoint-7");
  }
  write(out_ / "checkpoint-7/rank-00001.h5");
  EXPECT_FALSE(prepare());
}

TEST_F(OutputFolder, IsHeldByOneRun) {
  std::optional<io::FolderLock> first, second;
  EXPECT_FALSE(train::prepare_output_folder(options_, &first));
  EXPECT_EQ(first->problem(), "");
  try {
    train::prepare_output_folder(options_, &second);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadStorage);
    EXPECT_NE(std::string(error.what()).find("in use by another run"), std::string::npos) << error.what();
  }
  first.reset();
  EXPECT_FALSE(train::prepare_output_folder(options_, &second));
}

TEST_F(OutputFolder, AFailedStartDoesNotBlockTheFolder) {
  write(out_ / "metrics.jsonl", std::string(kMetricsOfAFailedStart) + "\n" + kMetricsOfAFailedStart);
  EXPECT_FALSE(prepare());
  write(out_ / "metrics.jsonl", std::string(kMetricsOfAFailedStart) + "\n" + kMetricsOfARun);
  expect_refused(ErrorClass::kBadStorage, {"'metrics.jsonl'"});
}

TEST_F(OutputFolder, ARunIsReplacedOnlyWhenAskedFor) {
  write_run(out_, true);
  expect_refused(ErrorClass::kBadStorage, {"already holds a run (run_options.json)", "--overwrite_output_dir"});
  options_.train.overwrite_output_dir = true;
  EXPECT_TRUE(prepare());
  fs::remove(out_ / "run_options.json");
  for (const char* name : {"metrics.jsonl", "README.md", "adapter_model.safetensors", "adapter_config.json"})
    fs::remove(out_ / name);
  options_.train.overwrite_output_dir = false;
  expect_refused(ErrorClass::kBadStorage, {"already holds a run (checkpoint-3)"});
}

TEST_F(OutputFolder, OverwritingRemovesTheRunAndNothingElse) {
  write_run(out_, true);
  write_checkpoint(scratch_ / "elsewhere");
  fs::create_directory_symlink(scratch_ / "elsewhere", out_ / "checkpoint-9");
  write(out_ / ".tmp-checkpoint-40.123.0.0a1b2c3d/rank-00000.h5");
  write(out_ / ".tmp-checkpoint-40.mine/x");
  write(out_ / "checkpoint-important/manifest.json");
  write(out_ / "checkpoint-5/weights");
  write(out_ / "config.json");  // no run of adapters writes one
  write(out_ / "train.jsonl");
  options_.train.overwrite_output_dir = true;
  options_.train.save_strategy = "no";
  EXPECT_TRUE(prepare());
  train::remove_old_run(options_);
  EXPECT_EQ(names(), (std::vector<std::string>{".tmp-checkpoint-40.mine", "checkpoint-5", "checkpoint-important",
                                               "config.json", "train.jsonl"}));
  EXPECT_TRUE(fs::exists(scratch_ / "elsewhere/manifest.json"));
}

TEST_F(OutputFolder, ARunOfTheOtherKindIsRemovedWhole) {
  write_run(out_, false);
  options_.train.overwrite_output_dir = true;
  EXPECT_TRUE(prepare());
  train::remove_old_run(options_);
  EXPECT_TRUE(names().empty());
  write_run(out_, true);
  write(out_ / "config.json");
  options_.adapter.use_peft_lora = false;
  expect_refused(ErrorClass::kBadStorage, {"'config.json'"});
}

TEST_F(OutputFolder, ResumingGoesOnInTheFolderOfItsCheckpointOnly) {
  write_run(out_, true);
  write_checkpoint(scratch_ / "other/checkpoint-3");
  for (const std::string& place :
       {std::string("true"), (out_ / "checkpoint-3").string(), (out_ / "checkpoint-3/").string(),
        (scratch_ / "other/../out/checkpoint-3").string()}) {
    options_.train.resume_from_checkpoint = place;
    options_.train.overwrite_output_dir = false;
    EXPECT_FALSE(prepare()) << place;
    options_.train.overwrite_output_dir = true;
    expect_refused(ErrorClass::kUsage, {place, "--overwrite_output_dir"});
  }
  options_.train.resume_from_checkpoint = scratch_ / "other/checkpoint-3";
  EXPECT_TRUE(prepare());
  options_.train.overwrite_output_dir = false;
  expect_refused(ErrorClass::kBadStorage, {"already holds a run", "one of its own checkpoints"});
}

TEST_F(OutputFolder, FilesOfARunAreRegularFiles) {
  write_run(out_, true);
  options_.train.overwrite_output_dir = true;
  fs::remove(out_ / "metrics.jsonl");
  ASSERT_EQ(::mkfifo((out_ / "metrics.jsonl").c_str(), 0666), 0);
  expect_refused(ErrorClass::kBadStorage, {"'metrics.jsonl'"});
  fs::remove(out_ / "metrics.jsonl");
  write(out_ / "tokenizer.json/x");
  expect_refused(ErrorClass::kBadStorage, {"'tokenizer.json'"});
  fs::remove_all(out_ / "tokenizer.json");
  fs::create_symlink(scratch_ / "nowhere", out_ / "README.tmp");
  fs::rename(out_ / "README.tmp", out_ / "README.md");
  expect_refused(ErrorClass::kBadStorage, {"'README.md'"});
}

TEST_F(OutputFolder, InputsAreNeitherTheFolderNorWhatRunsReplace) {
  write_checkpoint(out_ / "checkpoint-3");
  options_.adapter.adapter_name_or_path = out_ / "checkpoint-3";
  expect_refused(ErrorClass::kUsage, {"--adapter_name_or_path", "checkpoint-3", "another output folder"});
  options_.adapter.adapter_name_or_path.clear();
  write(out_ / "checkpoint-3/data/rows.jsonl");
  options_.data.dataset_name = out_ / "checkpoint-3/data/rows.jsonl";
  expect_refused(ErrorClass::kUsage, {"--dataset_name", "'checkpoint-3'"});
  options_.data.dataset_name = out_;
  expect_refused(ErrorClass::kUsage, {"--output_dir", "is the folder of --dataset_name"});
  write_run(out_, true);
  options_.train.overwrite_output_dir = true;
  options_.data.dataset_name = out_ / "metrics.jsonl";
  expect_refused(ErrorClass::kUsage, {"--dataset_name", "'metrics.jsonl'"});
}

TEST_F(OutputFolder, FormsOfOneFolderAreTheSame) {
  fs::create_directory_symlink(out_, scratch_ / "link");
  fs::create_directories(out_ / "sub");
  const fs::path before = fs::current_path();
  fs::current_path(out_);
  options_.train.output_dir = out_;
  for (const std::string& form : {std::string("."), std::string("./"), std::string("../out"), std::string("sub/.."),
                                  out_.string() + "/", (scratch_ / "link").string(), (scratch_ / "link/").string()}) {
    options_.train.output_dir = form;
    options_.model.model_name_or_path = out_;
    expect_refused(ErrorClass::kUsage, {"is the folder of --model_name_or_path"});
    options_.model.model_name_or_path = scratch_ / "model";
    write_run(out_, true);
    options_.train.resume_from_checkpoint = out_ / "checkpoint-3";
    EXPECT_FALSE(prepare()) << form;
    options_.train.resume_from_checkpoint.clear();
    expect_refused(ErrorClass::kBadStorage, {"already holds a run"});
    options_.train.overwrite_output_dir = true;
    EXPECT_TRUE(prepare()) << form;
    train::remove_old_run(options_);
    EXPECT_EQ(names(), std::vector<std::string>{"sub"}) << form;
    options_.train.overwrite_output_dir = false;
  }
  fs::current_path(before);
}

TEST_F(OutputFolder, PathsThatCannotBeReachedNameTheirOption) {
  fs::create_symlink("loop", scratch_ / "loop");
  const auto refused = [&](std::string& slot, const char* option, ErrorClass error_class) {
    const std::string good = slot;
    slot = scratch_ / "loop";
    expect_refused(error_class, {option, slot, "Too many levels of symbolic links"});
    slot = scratch_ / std::string(300, 'x');
    expect_refused(error_class, {option, "File name too long"});
    slot = good;
  };
  refused(options_.train.output_dir, "--output_dir", ErrorClass::kBadStorage);
  refused(options_.model.model_name_or_path, "--model_name_or_path", ErrorClass::kBadModel);
  refused(options_.adapter.adapter_name_or_path, "--adapter_name_or_path", ErrorClass::kBadModel);
  refused(options_.data.dataset_name, "--dataset_name", ErrorClass::kBadData);
  refused(options_.train.resume_from_checkpoint, "--resume_from_checkpoint", ErrorClass::kBadCheckpoint);
  options_.train.output_dir = scratch_ / "rows.jsonl/out";
  expect_refused(ErrorClass::kBadStorage, {options_.train.output_dir, "Not a directory"});
}

TEST_F(OutputFolder, TheRootIsNoExceptionToTheRules) {
  options_.train.output_dir = "/";
  options_.data.dataset_name = "/";
  expect_refused(ErrorClass::kUsage, {"--output_dir '/'", "--dataset_name"});
}

}  // namespace
}  // namespace shardtune::testing
