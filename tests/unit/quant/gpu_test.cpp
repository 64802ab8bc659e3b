// The kernels on a real device give the bits of the host.
#include <cuda_runtime_api.h>

#include "shardtune/quant/blockwise.h"
#include "shardtune/quant/cuda.h"
#include "shardtune/quant/dequantise.h"
#include "support.h"
#include "support/device_array.h"

namespace shardtune::quant {
namespace {

using shardtune::testing::DeviceArray;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = shardtune::testing::no_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

void expect_dequantised(const RecordLayout& layout, const std::vector<std::byte>& records, Dtype dtype) {
  std::vector<std::byte> host(static_cast<std::size_t>(layout.elements()) * dtype_bytes(dtype));
  dequantise(layout, records, {host.data(), dtype, layout.elements()});
  DeviceArray<std::byte> given(records), made(host.size());
  cuda::dequantise(layout, layout.all_records(), given.bytes(), {made.bytes().data(), dtype, layout.elements()},
                   nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(made.values() == host);
}

TEST_F(Gpu, DequantisesAsTheHostDoes) {
  for (const Format& format : {Format{}, Format{Kind::kFp4, false, 128}, Format{Kind::kNf4, true, 4096}, kInt8Format})
    for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 5}, {37, 54}, {509, 96}, {256, 1024}}) {
      const RecordLayout layout(format, rows, columns);
      const auto bytes = testing::wild_values(Dtype::kBF16, layout.elements(), 5);
      const ConstElements values{bytes.data(), Dtype::kBF16, layout.elements()};
      std::vector<std::byte> records = testing::room_for(layout, layout.all_records());
      if (format.four_bit()) records = testing::quantised(layout, values, format.double_quantisation ? 1e30F : 0.0F);
      else quantise_rows(layout, layout.all_records(), values, records);
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) expect_dequantised(layout, records, dtype);
    }
}

TEST_F(Gpu, StatesAsTheHostHasThem) {
  for (const StateCode code : {StateCode::kSigned, StateCode::kUnsigned})
    for (const std::int64_t count : {1, 256, 257, 3'000'001}) {
      const auto bytes = testing::wild_values(Dtype::kF32, count, 9);
      std::vector<float> values(static_cast<std::size_t>(count));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      std::vector<float> absmax((values.size() + 255) / 256), back(values.size());
      std::vector<std::uint8_t> codes(values.size());
      quantise_blockwise(code, values, absmax, codes);
      dequantise_blockwise(code, codes, absmax, back);
      DeviceArray<float> given(values), made_absmax(absmax.size()), made_back(values.size());
      DeviceArray<std::uint8_t> made(values.size());
      cuda::quantise_blockwise(code, given.span(), made_absmax.span(), made.span(), nullptr);
      cuda::dequantise_blockwise(code, made.span(), made_absmax.span(), made_back.span(), nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_TRUE(made.values() == codes);
      EXPECT_EQ(testing::bytes_of(made_absmax.values()), testing::bytes_of(absmax));
      EXPECT_EQ(testing::bytes_of(made_back.values()), testing::bytes_of(back));
    }
}

}  // namespace
}  // namespace shardtune::quant
