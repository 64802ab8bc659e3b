// Written files have the bytes of the reference library.
#include "shardtune/io/files.h"
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

/// Reads a file and writes its content again.
std::string rewritten(const fs::path& source) {
  const TempFolder folder;
  const SafetensorsFile file(source);
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorView> views;
  for (const auto& [name, info] : file.tensors()) data.push_back(read_whole(file, name));
  std::size_t i = 0;
  for (const auto& [name, info] : file.tensors()) views.push_back({name, info.dtype, info.shape, data[i++]});
  write_safetensors(folder / "out.safetensors", views, file.metadata());
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out.safetensors"});
  return read_bytes(folder / "out.safetensors");
}

TEST(SafetensorsWriter, SameBytesAsTheReferenceLibrary) {
  for (const char* name :
       {"lora-start/adapter_model.safetensors", "base-gqa/model.safetensors",
        "base-sharded-mixed/model-00001-of-00002.safetensors", "base-sharded-mixed/model-00002-of-00002.safetensors",
        "safetensors-odd-writer/all-dtypes.safetensors", "safetensors-odd-writer/escapes.safetensors",
        "safetensors-odd-writer/nothing.safetensors"}) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(rewritten(case_file(name)) == read_bytes(case_file(name)));
  }
}

TEST(SafetensorsWriter, PiecesInTheStatedOrder) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "x.safetensors",
                           {{"b", Dtype::kU8, {3}}, {"a", Dtype::kF64, {}}, {"c", Dtype::kU8, {0}}}, {});
  ASSERT_EQ(writer.order().size(), 3u);
  EXPECT_EQ(writer.order()[0].name, "a");
  EXPECT_EQ(writer.order()[1].name, "b");
  EXPECT_EQ(writer.order()[2].name, "c");
  const std::vector<double> scalar{0.5};
  const std::vector<std::uint8_t> bytes{1, 2, 3};
  writer.append(bytes_of(scalar));
  writer.append(bytes_of(bytes).subspan(0, 1));
  expect_error(ErrorClass::kInternal, {"2 bytes of tensors were not written"}, [&] { writer.publish(); });
  EXPECT_FALSE(fs::exists(folder / "x.safetensors"));
  writer.append(bytes_of(bytes).subspan(1));
  expect_error(ErrorClass::kInternal, {"only 0 are left"}, [&] { writer.append(bytes_of(scalar)); });
  writer.publish();
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_EQ(widen(Dtype::kU8, read_whole(file, "b")), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(widen(Dtype::kF64, read_whole(file, "a")), std::vector<double>{0.5});
}

TEST(SafetensorsWriter, OurOwnMistakesAreCaught) {
  const TempFolder folder;
  const std::vector<float> one{1};
  const auto write = [&](std::vector<TensorView> views) { write_safetensors(folder / "x", views, {}); };
  expect_error(ErrorClass::kInternal, {"'a' is to be written twice"}, [&] {
    write({{"a", Dtype::kF32, {1}, bytes_of(one)}, {"a", Dtype::kI32, {1}, bytes_of(one)}});
  });
  expect_error(ErrorClass::kInternal, {"'a'", "needs 8 bytes, 4 given"}, [&] {
    write({{"a", Dtype::kF32, {2}, bytes_of(one)}});
  });
  expect_error(ErrorClass::kInternal, {"'a'", "bad dimension -1"}, [&] {
    write({{"a", Dtype::kF32, {-1}, bytes_of(one)}});
  });
  expect_error(ErrorClass::kInternal, {"not UTF-8"}, [&] { write({{"\xff", Dtype::kF32, {1}, bytes_of(one)}}); });
  expect_error(ErrorClass::kInternal, {"__metadata__"}, [&] {
    write({{"__metadata__", Dtype::kF32, {1}, bytes_of(one)}});
  });
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(SafetensorsWriter, FolderThatIsNotThere) {
  const TempFolder folder;
  expect_error(ErrorClass::kBadStorage, {"nowhere/x.safetensors", "No such file or directory"},
               [&] { write_safetensors(folder / "nowhere/x.safetensors", {}, {}); });
}

}  // namespace
}  // namespace shardtune::io
