#include "support.h"

// The INI file: comments, sections, and errors with file and line.
namespace shardtune::options::test {
namespace {

ParseResult with_file(const std::string& text) {
  const TemporaryFile file(text);
  return run(train({"--config", file.path()}));
}

/// The refusal of a file, which must name the line.
std::string refused_at(int line, const std::string& text) {
  const TemporaryFile file(text);
  const std::string message = refusal(train({"--config", file.path()}));
  EXPECT_TRUE(says(message, {fmt::format("{}:{}:", file.path(), line)}));
  return message;
}

TEST(Ini, CommentsBlanksSectionsAndLineEnds) {
  const auto options = with_file(
                           "# a comment = 1\n; another\n\n[data]\r\n  max_length=64\r\n\tseed =  7  # why\n"
                           "[ adapter ]\nuse_peft_lora = True ; yes\nlora_target_modules = a#b;c\nlora_r = 4")
                           .options;
  EXPECT_EQ(options.data.max_length, 64);
  EXPECT_EQ(options.data.seed, 7u);
  EXPECT_TRUE(options.adapter.use_peft_lora);
  EXPECT_EQ(options.adapter.lora_target_modules, "a#b;c");
  EXPECT_EQ(options.adapter.lora_r, 4);
}

TEST(Ini, ValuesMayHoldBlanksAndEqualSigns) {
  EXPECT_EQ(with_file("dataset_text_field = my text = here\n").options.data.dataset_text_field, "my text = here");
}

TEST(Ini, AnEmptyValueMeansNoneWhereNoneIsTheDefault) {
  EXPECT_EQ(with_file("adapter_name_or_path =\n").options.adapter.adapter_name_or_path, "");
  EXPECT_TRUE(says(refused_at(1, "max_length =\n"), {"max_length", "''"}));
  EXPECT_TRUE(says(refused_at(1, "packing =\n"), {"packing", "''"}));
  EXPECT_TRUE(says(refused_at(1, "dataset_test_split =\n"), {"dataset_test_split", "''"}));
}

TEST(Ini, RelativePathsStayAsWritten) {
  EXPECT_EQ(with_file("adapter_name_or_path = ../a\nuse_peft_lora = 1\n").options.adapter.adapter_name_or_path, "../a");
}

TEST(Ini, UnknownNamesComeWithLineAndNearestName) {
  EXPECT_TRUE(says(refused_at(3, "\n# x\nlora_rank = 4\n"), {"unknown option 'lora_rank'", "'lora_r'"}));
  EXPECT_TRUE(says(refused_at(1, "--lora_r = 4\n"), {"unknown option '--lora_r'", "'lora_r'"}));
  EXPECT_TRUE(says(refused_at(1, "adapter.lora_r = 4\n"), {"unknown option 'adapter.lora_r'"}));
  EXPECT_TRUE(says(refused_at(2, "[train]\nmax_seq_length = 4\n"), {"'max_length'"}));
}

TEST(Ini, ANameTwiceIsRefusedEvenInAnotherSection) {
  EXPECT_TRUE(says(refused_at(4, "[a]\nseed = 1\n[b]\nseed = 2\n"), {"seed", "twice", ":2", "'1'", "'2'"}));
}

TEST(Ini, WrongValuesNameTheLine) {
  EXPECT_TRUE(says(refused_at(2, "\nmax_length = 1e3\n"), {"max_length", "'1e3'", "an integer from 2"}));
  EXPECT_TRUE(says(refused_at(1, "learning_rate = nan\n"), {"learning_rate", "'nan'", "from 1e-30 to 1e+30"}));
}

TEST(Ini, LinesThatAreNoOptionAreRefused) {
  EXPECT_TRUE(says(refused_at(1, "packing\n"), {"'packing'", "NAME = VALUE"}));
  EXPECT_TRUE(says(refused_at(1, "= 4\n"), {"NAME = VALUE"}));
  EXPECT_TRUE(says(refused_at(2, "\n[data\n"), {"'[data'", "section"}));
  EXPECT_TRUE(says(refused_at(1, "[]\n"), {"section"}));
  EXPECT_TRUE(says(refused_at(1, "output_dir = \"runs/x\"\n"), {"quoted"}));
  EXPECT_TRUE(says(refused_at(1, "output_dir = 'runs/x'\n"), {"quoted"}));
  EXPECT_TRUE(says(refused_at(1, "\xEF\xBB\xBFseed = 1\n"), {"byte order mark"}));
  EXPECT_TRUE(says(refused_at(1, std::string("dataset_text_field = a\0b\n", 25)), {"dataset_text_field", "\\x00"}));
}

TEST(Ini, OnlyTheCommandLineAsksForHelpOrAnotherFile) {
  EXPECT_TRUE(says(refused_at(1, "config = other.ini\n"), {"config", "not allowed"}));
  EXPECT_TRUE(says(refused_at(1, "help = True\n"), {"help", "not allowed"}));
  EXPECT_TRUE(says(refused_at(1, "version = True\n"), {"version", "not allowed"}));
}

TEST(Ini, AFileThatCannotBeReadIsNamed) {
  EXPECT_TRUE(says(refusal(train({"--config", "/nowhere/x.ini"})), {"/nowhere/x.ini", "No such file"}));
  EXPECT_TRUE(says(refusal(train({"--config", "/tmp"})), {"'/tmp'", "folder"}));
  EXPECT_TRUE(says(refusal(train({"--config", "/dev/null"})), {"'/dev/null'", "not a regular file"}));
  EXPECT_TRUE(says(refusal(train({"--config", ""})), {"config", "''"}));
  EXPECT_TRUE(says(refusal(train(), {"SHARDTUNE_CONFIG="}), {"config", "''"}));
}

TEST(Ini, AnEmptyFileIsFine) { EXPECT_EQ(with_file("").options.data.max_length, 1024); }

}  // namespace
}  // namespace shardtune::options::test
