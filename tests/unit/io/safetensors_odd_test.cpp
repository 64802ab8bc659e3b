// Case A34: unusual but legal safetensors files load with the dtypes, shapes and values of the file.
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

const std::map<std::string, Dtype> kTypes{
    {"float32", Dtype::kF32}, {"float16", Dtype::kF16}, {"bfloat16", Dtype::kBF16}, {"float64", Dtype::kF64},
    {"int64", Dtype::kI64},   {"uint8", Dtype::kU8},    {"bool", Dtype::kBool}};

TEST(CaseA34, DtypesShapesAndValues) {
  const auto expected = nlohmann::json::parse(read_bytes(case_file("safetensors-odd-expected.json")));
  ASSERT_EQ(expected.size(), 12u);
  for (const auto& [name, tensors] : expected.items()) {
    SCOPED_TRACE(name);
    const SafetensorsFile file(case_file("safetensors-odd/" + name + ".safetensors"));
    EXPECT_EQ(file.tensors().size(), tensors.size());
    for (const auto& [tensor, wanted] : tensors.items()) {
      SCOPED_TRACE(tensor);
      const TensorInfo& info = file.tensor(tensor);
      EXPECT_EQ(info.dtype, kTypes.at(wanted["dtype"].get<std::string>()));
      EXPECT_EQ(info.shape, wanted["shape"].get<std::vector<std::int64_t>>());
      const auto values = wanted["values"].get<std::vector<double>>();
      EXPECT_EQ(info.elements(), static_cast<std::int64_t>(values.size()));
      EXPECT_EQ(widen(info.dtype, read_whole(file, tensor)), values);
    }
  }
}

TEST(CaseA34, Metadata) {
  const std::map<std::string, std::string> wanted{{"crc", "12"}};
  EXPECT_EQ(SafetensorsFile(case_file("safetensors-odd/only-metadata.safetensors")).metadata(), wanted);
  EXPECT_TRUE(SafetensorsFile(case_file("safetensors-odd/empty-metadata.safetensors")).metadata().empty());
}

TEST(Safetensors, ReadsPartsOfATensor) {
  const SafetensorsFile file(case_file("safetensors-odd/unaligned-data.safetensors"));
  std::vector<std::byte> part(4);
  file.read("f", 4, part);
  EXPECT_EQ(widen(Dtype::kF32, part), std::vector<double>{-0.5});
  file.read("f", 8, {});
  expect_error(ErrorClass::kInternal, {"tensor f has 8 bytes"}, [&] { file.read("f", 5, part); });
  expect_error(ErrorClass::kInternal, {"tensor f has 8 bytes"}, [&] { file.read("f", ~0ull, part); });
}

TEST(Safetensors, UnknownNameTellsTheNearest) {
  const SafetensorsFile file(case_file("base-gqa/model.safetensors"));
  expect_error(ErrorClass::kBadModel,
               {"base-gqa", "no tensor 'model.norm.weights'", "nearest name is 'model.norm.weight'"},
               [&] { file.tensor("model.norm.weights"); });
}

TEST(Safetensors, MovedFileStillReads) {
  SafetensorsFile first(case_file("safetensors-odd/scalar.safetensors"));
  SafetensorsFile second(std::move(first));
  SafetensorsFile third(case_file("safetensors-odd/no-tensors.safetensors"));
  third = std::move(second);
  EXPECT_EQ(widen(Dtype::kF32, read_whole(third, "s")), std::vector<double>{2.5});
}

}  // namespace
}  // namespace shardtune::io
