#include "hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "shardtune/core/error.h"
#include "shardtune/options/ini_file.h"

namespace shardtune::train::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

/// Above 0, in the file's unit, which is `unit` times that of the struct.
struct Amount {
  double Hardware::*slot;
  double unit;
};
/// Above 0 and up to 1.
struct Share {
  double Hardware::*slot;
};
struct Count {
  int Hardware::*slot;
};
struct Name {
  std::string Hardware::*slot;
};

struct Key {
  std::string_view name;
  std::variant<Amount, Share, Count, Name> kind;
};

/// The file's keys: reading, suggestions and the check for missing ones all use this table.
constexpr std::array<Key, 18> kKeys = {{
    {"device", Name{&Hardware::device}},
    {"gpus_per_node", Count{&Hardware::gpus_per_node}},
    {"bf16_tflops", Amount{&Hardware::bf16_flops_per_second, kTera}},
    {"fp16_tflops", Amount{&Hardware::fp16_flops_per_second, kTera}},
    {"fp32_tflops", Amount{&Hardware::fp32_flops_per_second, kTera}},
    {"memory_gb", Amount{&Hardware::memory_bytes, kGiga}},
    {"memory_gb_per_second", Amount{&Hardware::memory_bytes_per_second, kGiga}},
    {"link_gb_per_second", Amount{&Hardware::link_bytes_per_second, kGiga}},
    {"network_gb_per_second", Amount{&Hardware::network_bytes_per_second, kGiga}},
    {"pcie_gb_per_second", Amount{&Hardware::pcie_bytes_per_second, kGiga}},
    {"collective_launch_microseconds", Amount{&Hardware::collective_launch_seconds, kMicro}},
    {"kernel_launch_microseconds", Amount{&Hardware::kernel_launch_seconds, kMicro}},
    {"matmul_efficiency", Share{&Hardware::matmul_efficiency}},
    {"attention_efficiency", Share{&Hardware::attention_efficiency}},
    {"memory_efficiency", Share{&Hardware::memory_efficiency}},
    {"intra_node_efficiency", Share{&Hardware::intra_node_efficiency}},
    {"inter_node_efficiency", Share{&Hardware::inter_node_efficiency}},
    {"pcie_efficiency", Share{&Hardware::pcie_efficiency}},
}};

[[noreturn]] void refuse(const options::IniLine& line, std::string_view expected) {
  fail(ErrorClass::kUsage, "{}: key {}: '{}' is not allowed; expected {}", line.place, line.name, line.value, expected);
}

/// The whole text as one number, or nothing.
template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

void assign(const options::IniLine& line, const Amount& amount, Hardware& hardware) {
  const auto number = parse_number<double>(line.value);
  // The scaled value is checked: a number that is finite in the file may not be in bytes.
  if (!number || !(*number >= 1e-6) || !(*number <= 1e9)) refuse(line, "a number from 1e-6 to 1e9");
  hardware.*amount.slot = *number * amount.unit;
}

void assign(const options::IniLine& line, const Share& share, Hardware& hardware) {
  const auto number = parse_number<double>(line.value);
  if (!number || !(*number >= 1e-3) || !(*number <= 1)) refuse(line, "a number from 0.001 to 1");
  hardware.*share.slot = *number;
}

void assign(const options::IniLine& line, const Count& count, Hardware& hardware) {
  const auto number = parse_number<int>(line.value);
  if (!number || *number < 1) refuse(line, "an integer above 0 in digits");
  hardware.*count.slot = *number;
}

void assign(const options::IniLine& line, const Name& name, Hardware& hardware) {
  // It is printed and goes into JSON.
  if (line.value.empty() || escape_control(line.value) != line.value) refuse(line, "text, not empty");
  hardware.*name.slot = line.value;
}

const Key& known_key(const options::IniLine& line) {
  const auto key = std::ranges::find(kKeys, line.name, &Key::name);
  if (key != kKeys.end()) return *key;
  std::vector<std::string_view> names;
  names.reserve(kKeys.size());
  for (const Key& known : kKeys) names.push_back(known.name);
  const std::string nearest = nearest_name(line.name, names);
  fail(ErrorClass::kUsage, "{}: unknown key '{}', {}", line.place, line.name,
       nearest.empty() ? fmt::format("the known ones are {}", fmt::join(names, ", "))
                       : fmt::format("the nearest known one is '{}'", nearest));
}

/// A name alone is often meant as one of the project's files.
void check_is_there(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // what cannot be examined cannot be opened either, and the reader says why
  if (fs::exists(path, ignored) || ignored) return;
  const fs::path own = fs::path("configs/hardware") / (fs::path(path).stem().string() + ".ini");
  fail(ErrorClass::kUsage, "hardware file '{}': there is no such file; {}", path,
       fs::exists(own, ignored) ? fmt::format("did you mean {}?", own.string())
                                : "the project's own are configs/hardware/*.ini, see docs/planning.md");
}

}  // namespace

Hardware read_hardware(const std::string& path) {
  check_is_there(path);
  Hardware hardware;
  std::vector<std::string_view> seen;
  for (const options::IniLine& line : options::read_ini_lines(path, "hardware file")) {
    const Key& key = known_key(line);
    if (std::ranges::find(seen, key.name) != seen.end())
      fail(ErrorClass::kUsage, "{}: key {} is given twice; remove one", line.place, line.name);
    seen.push_back(key.name);
    std::visit([&](const auto& kind) { assign(line, kind, hardware); }, key.kind);
  }
  std::vector<std::string_view> missing;
  for (const Key& key : kKeys)
    if (std::ranges::find(seen, key.name) == seen.end()) missing.push_back(key.name);
  if (!missing.empty())
    fail(ErrorClass::kUsage, "hardware file '{}': missing: {}; every key must be there", path,
         fmt::join(missing, ", "));
  return hardware;
}

}  // namespace shardtune::train::plan
