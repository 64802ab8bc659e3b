#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace shardtune::testing {

/// Folder of the stored reference data.
inline std::filesystem::path data_folder() {
  const char* folder = std::getenv("SHARDTUNE_TEST_DATA");
  if (folder == nullptr) throw std::runtime_error("SHARDTUNE_TEST_DATA is not set: run the tests through ctest");
  return folder;
}
inline std::filesystem::path case_folder() { return data_folder() / "cases"; }

/// A folder of its own that goes away with the object.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "shardtune-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace shardtune::testing
