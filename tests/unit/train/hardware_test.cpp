// Hardware files: every refusal names file and key; the files of configs/hardware are complete and say where figures come from.
#include "../../../src/train/plan/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "shardtune/core/error.h"
#include "support/scratch.h"

namespace shardtune::train::plan {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kFiles = SHARDTUNE_SOURCE_DIR "/configs/hardware";

constexpr const char* kComplete = R"(# no real device
device = Slide Rule 9  # quick
gpus_per_node = 4
bf16_tflops = 100
fp16_tflops = 90
fp32_tflops = 12.5
[memory]
memory_gb = 16
memory_gb_per_second = 1e3
link_gb_per_second = 300
network_gb_per_second = 0.5
pcie_gb_per_second = 32
collective_launch_microseconds = 20
kernel_launch_microseconds = 4
matmul_efficiency = 1
attention_efficiency = 0.5
memory_efficiency = 0.75
intra_node_efficiency = 0.625
inter_node_efficiency = 0.875
pcie_efficiency = 0.25
)";

class HardwareFile : public ::testing::Test {
 protected:
  Hardware read(const std::string& text) {
    std::ofstream(path()) << text;
    return read_hardware(path());
  }
  std::string path() const { return scratch_ / "device.ini"; }

  /// The complete file with the line of `key` replaced.
  static std::string with(const std::string& key, const std::string& line) {
    std::string text = kComplete;
    const std::size_t begin = text.find("\n" + key + " =") + 1, end = text.find('\n', begin);
    return text.replace(begin, end - begin, line);
  }

  void expect_refused(const std::string& text, const std::vector<std::string>& parts) {
    try {
      read(text);
      ADD_FAILURE() << "accepted:\n" << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(path()));
      for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }

 private:
  shardtune::testing::Scratch scratch_;
};

TEST_F(HardwareFile, FiguresComeInBaseUnits) {
  const Hardware hardware = read(kComplete);
  EXPECT_EQ(hardware.device, "Slide Rule 9");
  EXPECT_EQ(hardware.gpus_per_node, 4);
  EXPECT_DOUBLE_EQ(hardware.bf16_flops_per_second, 100e12);
  EXPECT_DOUBLE_EQ(hardware.fp16_flops_per_second, 90e12);
  EXPECT_DOUBLE_EQ(hardware.fp32_flops_per_second, 12.5e12);
  EXPECT_DOUBLE_EQ(hardware.memory_bytes, 16e9);
  EXPECT_DOUBLE_EQ(hardware.memory_bytes_per_second, 1e12);
  EXPECT_DOUBLE_EQ(hardware.link_bytes_per_second, 300e9);
  EXPECT_DOUBLE_EQ(hardware.network_bytes_per_second, 0.5e9);
  EXPECT_DOUBLE_EQ(hardware.pcie_bytes_per_second, 32e9);
  EXPECT_DOUBLE_EQ(hardware.collective_launch_seconds, 20e-6);
  EXPECT_DOUBLE_EQ(hardware.kernel_launch_seconds, 4e-6);
  EXPECT_EQ(hardware.matmul_efficiency, 1);
  EXPECT_EQ(hardware.attention_efficiency, 0.5);
  EXPECT_EQ(hardware.memory_efficiency, 0.75);
  EXPECT_EQ(hardware.intra_node_efficiency, 0.625);
  EXPECT_EQ(hardware.inter_node_efficiency, 0.875);
  EXPECT_EQ(hardware.pcie_efficiency, 0.25);
}

TEST_F(HardwareFile, AnUnknownKeyComesWithTheNearestOne) {
  expect_refused(std::string(kComplete) + "memory_gbs = 3\n", {":21:", "unknown key 'memory_gbs'", "'memory_gb'"});
  expect_refused(with("matmul_efficiency", "matmull_efficiency = 1"), {"'matmull_efficiency'", "'matmul_efficiency'"});
  expect_refused("price = 1\n", {":1:", "unknown key 'price'", "the known ones are device, gpus_per_node"});
}

TEST_F(HardwareFile, MissingKeysAreNamed) {
  expect_refused(with("pcie_gb_per_second", ""), {"missing: pcie_gb_per_second;"});
  expect_refused("device = x\n", {"missing: gpus_per_node, bf16_tflops", "pcie_efficiency"});
}

TEST_F(HardwareFile, AKeyTwiceIsRefused) {
  expect_refused(std::string(kComplete) + "memory_gb = 16\n", {":21:", "memory_gb", "twice"});
}

TEST_F(HardwareFile, AmountsAreNumbersAboveZero) {
  for (const std::string value : {"0", "-1", "nan", "inf", "1e300", "1e999", "12,5", "12 GB", "+3", ""})
    expect_refused(with("bf16_tflops", "bf16_tflops = " + value),
                   {":4:", "bf16_tflops", "'" + value + "'", "from 1e-6 to 1e9"});
}

TEST_F(HardwareFile, EfficienciesAreShares) {
  for (const std::string value : {"0", "-0.5", "1.0001", "80", "nan", "80%"})
    expect_refused(with("memory_efficiency", "memory_efficiency = " + value),
                   {":17:", "memory_efficiency", "'" + value + "'", "from 0.001 to 1"});
}

TEST_F(HardwareFile, CountsAreIntegersAndNamesAreText) {
  for (const std::string value : {"0", "-8", "2.5", "8x", "99999999999"})
    expect_refused(with("gpus_per_node", "gpus_per_node = " + value),
                   {":3:", "gpus_per_node", "'" + value + "'", "integer"});
  expect_refused(with("device", "device ="), {":2:", "device", "not empty"});
  expect_refused(with("device", "device = a\x1b[1mb"), {":2:", "device"});
  expect_refused(with("device", "device = a\xff"), {":2:", "device"});
}

TEST_F(HardwareFile, AFileThatCannotBeReadIsNamed) {
  try {
    read_hardware(path());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("hardware file '" + path() + "': there is no such file"));
    EXPECT_THAT(error.what(), HasSubstr("configs/hardware/*.ini"));
  }
}

TEST(HardwareFiles, AllAreCompleteAndEveryFigureHasASource) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFiles)) {
    ++count;
    const Hardware hardware = read_hardware(entry.path().string());
    EXPECT_GE(hardware.bf16_flops_per_second, hardware.fp32_flops_per_second) << entry.path();
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const bool figure = !line.empty() && line.front() != '#';
      EXPECT_TRUE(!figure || line.find("  # ") != std::string::npos) << entry.path() << ": " << line;
    }
  }
  EXPECT_GE(count, 6);
}

TEST(HardwareFiles, FiguresOfTheDataSheets) {
  struct Row {
    const char* file;
    double tflops, memory_gb, memory_gb_per_second, link_gb_per_second, pcie_gb_per_second;
  };
  for (const Row& row : {Row{"h100_sxm", 989, 80, 3350, 450, 64}, Row{"h200_sxm", 989, 141, 4800, 450, 64},
                         Row{"a100_sxm_80gb", 312, 80, 2039, 300, 32}, Row{"rtx_4090", 165, 24, 1008, 32, 32},
                         Row{"rtx_3090", 71, 24, 936, 32, 32}, Row{"l40s", 362, 48, 864, 32, 32}}) {
    const Hardware hardware = read_hardware(kFiles / (std::string(row.file) + ".ini"));
    EXPECT_DOUBLE_EQ(hardware.bf16_flops_per_second, row.tflops * 1e12) << row.file;
    EXPECT_DOUBLE_EQ(hardware.memory_bytes, row.memory_gb * 1e9) << row.file;
    EXPECT_DOUBLE_EQ(hardware.memory_bytes_per_second, row.memory_gb_per_second * 1e9) << row.file;
    EXPECT_DOUBLE_EQ(hardware.link_bytes_per_second, row.link_gb_per_second * 1e9) << row.file;
    EXPECT_DOUBLE_EQ(hardware.pcie_bytes_per_second, row.pcie_gb_per_second * 1e9) << row.file;
  }
}

}  // namespace
}  // namespace shardtune::train::plan
