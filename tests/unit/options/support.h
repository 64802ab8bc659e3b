#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "shardtune/core/error.h"
#include "shardtune/options/run_options.h"

namespace shardtune::options::test {

using Strings = std::vector<std::string>;

/// parse_options on "shardtune" + arguments with this environment only.
inline ParseResult run(const Strings& arguments, const Strings& environment = {}) {
  std::vector<const char*> argv = {"shardtune"};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  std::vector<const char*> variables;
  for (const auto& variable : environment) variables.push_back(variable.c_str());
  variables.push_back(nullptr);
  return parse_options(static_cast<int>(argv.size()), argv.data(), variables.data());
}

/// `train` with the three required options and more.
inline Strings train(const Strings& more = {}) {
  Strings all = {"train", "--model_name_or_path", "m", "--dataset_name", "d", "--output_dir", "o"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The message of the kUsage error that must come; another class or no error fails the test.
inline std::string refusal(const Strings& arguments, const Strings& environment = {}) {
  try {
    run(arguments, environment);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage) << error.what();
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << fmt::format("{}", fmt::join(arguments, " "));
  return "";
}

/// True when all parts occur in the text.
inline ::testing::AssertionResult says(const std::string& text, const Strings& parts) {
  for (const auto& part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
  return ::testing::AssertionSuccess();
}

inline EffectiveOption effective(const ParseResult& result, const std::string& name) {
  for (const auto& option : result.effective)
    if (option.name == name) return option;
  ADD_FAILURE() << "no effective option " << name;
  return {};
}

/// A file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() / fmt::format("shardtune-options-{}-{}.ini", ::getpid(), ++count))
                .string();
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace shardtune::options::test
