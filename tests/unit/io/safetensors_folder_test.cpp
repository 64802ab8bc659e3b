// Case A35 (what the files alone can show) and the rules of the index file.
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

TEST(CaseA35, MissingShardIsNamedBeforeAnythingIsRead) {
  expect_error(ErrorClass::kBadModel,
               {"model.safetensors.index.json", "1 of the 2 files", "missing", "model-00002-of-00002.safetensors"},
               [] { SafetensorsFolder folder(case_file("base-index-missing-shard")); });
}

TEST(CaseA35, AllMissingShardsAreNamedTogether) {
  const TempFolder folder;
  write_bytes(folder / "model.safetensors.index.json",
              R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"}})");
  write_bytes(folder / "two.safetensors", "damaged, but the missing ones are told first");
  const std::string text =
      expect_error(ErrorClass::kBadModel, {"2 of the 3 files", "one.safetensors", "three.safetensors"},
                   [&] { SafetensorsFolder model(folder.path()); });
  EXPECT_EQ(text.find("two.safetensors"), std::string::npos) << text;
}

TEST(CaseA35, ShardsOfMixedTypes) {
  const SafetensorsFolder folder(case_file("base-sharded-mixed"));
  EXPECT_EQ(folder.names().size(), 21u);
  EXPECT_TRUE(folder.unlisted().empty());
  for (const std::string& name : folder.names()) {
    const Dtype wanted = name.find(".mlp.") != std::string::npos         ? Dtype::kBF16
                         : name.find(".self_attn.") != std::string::npos ? Dtype::kF16
                                                                         : Dtype::kF32;
    EXPECT_EQ(folder.tensor(name).dtype, wanted) << name;
  }
  // Sums of the widened values in file order, computed apart from this program with Python's struct module.
  const std::map<std::string, double> sums{{"model.layers.0.mlp.down_proj.weight", 2.672114372253418},
                                           {"model.layers.1.self_attn.q_proj.weight", -4.980396270751953},
                                           {"lm_head.weight", -27.86445583503246}};
  for (const auto& [name, wanted] : sums) {
    double sum = 0;
    for (const double value : widen(folder.tensor(name).dtype, read_whole(folder, name))) sum += value;
    EXPECT_EQ(sum, wanted) << name;
  }
  EXPECT_EQ(folder.tensor("lm_head.weight").shape, (std::vector<std::int64_t>{520, 32}));
  EXPECT_EQ(folder.file_of("lm_head.weight").filename(), "model-00002-of-00002.safetensors");
  EXPECT_FALSE(folder.contains("lm_head.bias"));
}

TEST(SafetensorsFolder, SingleFileAndOtherStem) {
  EXPECT_EQ(SafetensorsFolder(case_file("base-gqa")).names().size(), 21u);
  EXPECT_EQ(SafetensorsFolder(case_file("lora-start"), "adapter_model").names().size(), 28u);
}

TEST(SafetensorsFolder, WithoutWeights) {
  const TempFolder folder;
  expect_error(ErrorClass::kBadModel, {"no weights", "model.safetensors.index.json"},
               [&] { SafetensorsFolder x(folder.path()); });
  expect_error(ErrorClass::kBadModel, {"nowhere", "no such folder"}, [&] { SafetensorsFolder x(folder / "nowhere"); });
  write_bytes(folder / "pytorch_model.bin", "x");
  expect_error(ErrorClass::kBadModel, {"pytorch_model.bin", "pickle", "Convert"},
               [&] { SafetensorsFolder x(folder.path()); });
}

/// A folder with one.safetensors {a, b}, two.safetensors {c, b or d} and this weight_map.
void make_folder(const TempFolder& folder, const std::string& last_of_two, const std::string& weight_map) {
  const std::vector<float> value{1};
  const auto view = [&](const std::string& name) { return TensorView{name, Dtype::kF32, {1}, bytes_of(value)}; };
  write_safetensors(folder / "one.safetensors", {view("a"), view("b")}, {});
  write_safetensors(folder / "two.safetensors", {view("c"), view(last_of_two)}, {});
  write_bytes(folder / "model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
}

TEST(SafetensorsIndex, ListedTensorThatIsNotInItsFile) {
  const TempFolder folder;
  make_folder(folder, "d", R"({"a":"one.safetensors","c":"two.safetensors","e":"two.safetensors"})");
  expect_error(ErrorClass::kBadModel, {"tensor 'e'", "not in two.safetensors"},
               [&] { SafetensorsFolder x(folder.path()); });
}

TEST(SafetensorsIndex, UnlistedTensorIsLeftOut) {
  const TempFolder folder;
  make_folder(folder, "d", R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  const SafetensorsFolder model(folder.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(model.unlisted(), std::vector<std::string>{"d"});
}

TEST(SafetensorsIndex, TensorInTwoFilesIsAConflict) {
  const TempFolder folder;
  make_folder(folder, "b", R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  expect_error(ErrorClass::kBadModel, {"tensor 'b'", "two files", "one.safetensors", "two.safetensors"},
               [&] { SafetensorsFolder x(folder.path()); });
}

TEST(SafetensorsIndex, OnlyPlainFileNames) {
  const TempFolder folder;
  for (const std::string name :
       {R"("../secret.safetensors")", R"("/etc/passwd")", R"("sub/one.safetensors")", R"("..")", R"("")",
        R"("a b.safetensors")", R"("a\\b.safetensors")", R"("a\u0000.safetensors")", "7", "null"}) {
    make_folder(folder, "d", R"({"a":)" + name + "}");
    expect_error(ErrorClass::kBadModel, {"tensor 'a'", "plain file name"}, [&] { SafetensorsFolder x(folder.path()); });
  }
  for (const std::string map : {"[]", "7"}) {
    make_folder(folder, "d", map);
    expect_error(ErrorClass::kBadModel, {"weight_map"}, [&] { SafetensorsFolder x(folder.path()); });
  }
  make_folder(folder, "d", "{}");
  expect_error(ErrorClass::kBadModel, {"names no tensor"}, [&] { SafetensorsFolder x(folder.path()); });
  make_folder(folder, "d", R"({"a":"one.safetensors","a":"two.safetensors"})");
  expect_error(ErrorClass::kBadModel, {"'a' is given twice"}, [&] { SafetensorsFolder x(folder.path()); });
}

TEST(SafetensorsFolder, LinksOnlyInsideOrIntoADownloadCache) {
  const TempFolder root;
  const fs::path weights = case_file("safetensors-odd/scalar.safetensors");
  const fs::path model = root / "hub/snapshots/abc";
  fs::create_directories(model);
  fs::create_directories(root / "hub/blobs");
  fs::copy_file(weights, root / "hub/blobs/0123");
  fs::copy_file(weights, root / "outside.safetensors");
  fs::create_symlink("../../blobs/0123", model / "model.safetensors");
  EXPECT_TRUE(SafetensorsFolder(model).contains("s"));

  fs::remove(model / "model.safetensors");
  fs::create_symlink(root / "outside.safetensors", model / "model.safetensors");
  expect_error(ErrorClass::kBadModel, {"model.safetensors", "outside.safetensors", "outside the model folder"},
               [&] { SafetensorsFolder x(model); });

  // Another revision of the same cache may be gone or changed any time.
  fs::create_directories(root / "hub/snapshots/def");
  fs::copy_file(weights, root / "hub/snapshots/def/model.safetensors");
  fs::remove(model / "model.safetensors");
  fs::create_symlink("../def/model.safetensors", model / "model.safetensors");
  expect_error(ErrorClass::kBadModel, {"snapshots/def", "outside the model folder"},
               [&] { SafetensorsFolder x(model); });

  fs::remove(model / "model.safetensors");
  fs::copy_file(weights, model / "real");
  fs::create_symlink("real", model / "model.safetensors");
  EXPECT_TRUE(SafetensorsFolder(model).contains("s"));
}

}  // namespace
}  // namespace shardtune::io
