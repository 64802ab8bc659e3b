// Acceptance case A42: NF4 of sizes that no block divides, scales recomputed by hand, values by bitsandbytes.
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/quant/arrays.h"
#include "shardtune/quant/dequantise.h"
#include "support.h"

namespace shardtune::quant {
namespace {

TEST(CaseA42, SizesThatNoBlockDivides) {
  const auto folder = shardtune::testing::data_folder() / "cases";
  const io::SafetensorsFile inputs(folder / "nf4-input.safetensors");
  std::ifstream text(folder / "nf4-expected.json");
  const nlohmann::json expected = nlohmann::json::parse(text);
  EXPECT_EQ(inputs.tensors().size(), 6u);
  for (const auto& [name, info] : inputs.tensors()) {
    SCOPED_TRACE(name);
    std::vector<float> weight(static_cast<std::size_t>(info.elements()));
    inputs.read(name, 0, std::as_writable_bytes(std::span(weight)));
    const RecordLayout layout({Kind::kNf4, /*double_quantisation=*/false, 64}, info.shape[0], info.shape[1]);
    const auto records = testing::quantised(layout, {weight.data(), Dtype::kF32, info.elements()}, 0);
    const FourBitArrays made = arrays_from_records(layout, records);
    const auto& wanted = expected.at(name);
    const auto absmax = wanted.at("absmax").get<std::vector<float>>();
    ASSERT_EQ(made.absmax.size(), absmax.size());
    for (std::size_t block = 0; block < absmax.size(); ++block) EXPECT_EQ(made.absmax[block], absmax[block]) << block;
    const auto codes = wanted.at("indices_high_nibble_first").get<std::vector<int>>();
    for (std::size_t i = 0; i < codes.size(); ++i)
      EXPECT_EQ(i % 2 == 0 ? made.packed[i / 2] >> 4 : made.packed[i / 2] & 15, codes[i]) << "element " << i;
    std::vector<float> values(weight.size());
    dequantise(layout, records, {values.data(), Dtype::kF32, info.elements()});
    // The file has seven decimals of the exact product; ours is rounded to fp32.
    const auto dense = wanted.at("dequantised").get<std::vector<double>>();
    for (std::size_t i = 0; i < dense.size(); ++i)
      EXPECT_NEAR(static_cast<double>(values[i]), dense[i], 5e-8 + 6e-8 * std::abs(dense[i])) << "element " << i;
  }
}

}  // namespace
}  // namespace shardtune::quant
