#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "shardtune/core/error.h"
#include "shardtune/data/tokenizer.h"
#include "support/scratch.h"

namespace shardtune::data::testing {

using Ids = std::vector<std::int32_t>;

using shardtune::testing::data_folder;
inline std::filesystem::path cases() { return shardtune::testing::case_folder(); }
inline std::filesystem::path tiny_model() { return data_folder() / "models" / "tiny"; }

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("test data is missing: " + path.string());
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(read_file(path)); }

/// A folder that goes away with the object.
class TemporaryFolder : public shardtune::testing::Scratch {
 public:
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream stream(path() / name, std::ios::binary);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!stream.flush()) throw std::runtime_error("cannot write " + (path() / name).string());
    return path() / name;
  }
};

/// A tokenizer made of the two JSON texts; `config` null: no tokenizer_config.json.
inline Tokenizer tokenizer_of(const nlohmann::json& tokenizer, const nlohmann::json& config) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer.dump());
  if (!config.is_null()) folder.write("tokenizer_config.json", config.dump());
  return Tokenizer::load(folder.path());
}

/// A tokenizer folder of the acceptance cases or models with changes.
struct Files {
  nlohmann::json tokenizer;
  nlohmann::json config;

  explicit Files(const std::filesystem::path& folder)
      : tokenizer(read_json(folder / "tokenizer.json")), config(read_json(folder / "tokenizer_config.json")) {}
  Tokenizer load() const { return tokenizer_of(tokenizer, config); }
};

/// Runs `action`, which must throw Error of this class with every one of `parts` in its message.
template <typename Action>
void expect_error(ErrorClass error_class, const std::vector<std::string>& parts, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error_class_name(error.error_class()), error_class_name(error_class)) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is missing in: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with '" << (parts.empty() ? "" : parts.front()) << "'";
}

}  // namespace shardtune::data::testing
