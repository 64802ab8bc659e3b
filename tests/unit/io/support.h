#pragma once
// What the tests of the io module share: a temporary folder, test data, expected errors.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardtune/core/error.h"
#include "shardtune/io/safetensors.h"
#include "support/scratch.h"

namespace shardtune::io::testing {

namespace fs = std::filesystem;

using TempFolder = shardtune::testing::Scratch;

/// Sets a variable until the end of the scope.
template <typename T>
class Restored {
 public:
  Restored(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Restored() { variable_ = before_; }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& variable_;
  T before_;
};

inline fs::path case_file(const std::string& name) { return shardtune::testing::case_folder() / name; }

inline std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Runs `action`, which must throw Error of this class with all these words in one line. Returns the message.
template <typename Action>
std::string expect_error(ErrorClass error_class, std::initializer_list<std::string> words, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error_class_name(error.error_class()), error_class_name(error_class)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string& word : words)
      EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
    return text;
  }
  ADD_FAILURE() << "no error";
  return "";
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

inline std::vector<std::byte> read_whole(const auto& source, const std::string& name) {
  std::vector<std::byte> data(source.tensor(name).bytes);
  source.read(name, 0, data);
  return data;
}

/// IEEE half, widened by arithmetic.
inline double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// The elements as double; only the types of the test files.
inline std::vector<double> widen(Dtype dtype, std::span<const std::byte> data) {
  std::vector<double> out;
  const std::size_t step = dtype_bytes(dtype);
  for (std::size_t at = 0; at + step <= data.size(); at += step) {
    const auto load = [&](auto value) {
      std::memcpy(&value, data.data() + at, sizeof value);
      return value;
    };
    switch (dtype) {
      case Dtype::kBool:
      case Dtype::kU8: out.push_back(load(std::uint8_t{})); break;
      case Dtype::kF16: out.push_back(half_value(load(std::uint16_t{}))); break;
      case Dtype::kBF16: {
        const std::uint32_t bits = static_cast<std::uint32_t>(load(std::uint16_t{})) << 16;
        float value = 0;
        std::memcpy(&value, &bits, sizeof value);
        out.push_back(static_cast<double>(value));
        break;
      }
      case Dtype::kF32: out.push_back(static_cast<double>(load(float{}))); break;
      case Dtype::kF64: out.push_back(load(double{})); break;
      case Dtype::kI64: out.push_back(static_cast<double>(load(std::int64_t{}))); break;
      default: throw std::runtime_error("widen: type not used by the test files");
    }
  }
  return out;
}

}  // namespace shardtune::io::testing
