// `shardtune merge` against what PEFT merged.
#include "shardtune/export/merge.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "merge_plan.h"
#include "shardtune/checkpoint/base_fingerprint.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using exporting::MergeRequest;
using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path model(const std::string& name) { return data_folder() / "models" / name; }
fs::path merged(const std::string& name) { return data_folder() / "merged" / name; }

std::string file_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

MergeRequest request_of(const fs::path& base, const std::string& adapters, const fs::path& output) {
  MergeRequest request;
  request.base = base;
  request.adapters = adapters;
  request.output = output;
  return request;
}

exporting::MergeReport merge(const MergeRequest& request) {
  return exporting::merge(request, *comm::make_self_communicator());
}

/// The message of the error that must come.
std::string refusal(const MergeRequest& request, ErrorClass wanted) {
  try {
    merge(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), wanted) << error.what();
    EXPECT_FALSE(fs::exists(request.output));
    return error.what();
  }
  ADD_FAILURE() << "merged";
  return "";
}

void quantise(MergeRequest& request, bool nested) {
  request.quantised_by_option = true;
  request.quant.use_4bit_quantization = true;
  request.quant.use_nested_quant = nested;
}

std::map<std::string, at::Tensor> tensors_of(const fs::path& folder) {
  std::map<std::string, at::Tensor> all;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") all.merge(read_tensors(entry.path()));
  return all;
}

/// Blocks of 64 rows while it lives.
class SmallBlocks {
 public:
  SmallBlocks() { exporting::block_elements = 1; }
  ~SmallBlocks() { exporting::block_elements = 1 << 20; }
};

struct PeftCase {
  const char* name;
  const char* base;
  bool quantised;
};

class MergeRuns : public ::testing::TestWithParam<PeftCase> {};

TEST_P(MergeRuns, EveryBit) {
  Scratch scratch;
  MergeRequest request = request_of(model(GetParam().base), merged(GetParam().name), scratch / "out");
  if (GetParam().quantised) quantise(request, true);
  EXPECT_EQ(merge(request).changed, 3);
  const auto before = tensors_of(request.base), after = tensors_of(request.output);
  const auto wanted = read_tensors(merged(GetParam().name) / "merged.safetensors");
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
  EXPECT_TRUE(at::equal(after.at("model.embed_tokens.weight"), before.at("model.embed_tokens.weight")));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before)
    if (!GetParam().quantised && !wanted.contains(name)) {
      EXPECT_TRUE(at::equal(after.at(name), tensor)) << name;
    }

  const SmallBlocks blocks;
  request.output = scratch / "by rows";
  merge(request);
  EXPECT_EQ(file_bytes(request.output / "model.safetensors"), file_bytes(scratch / "out/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Peft, MergeRuns,
                         ::testing::Values(PeftCase{"tiny-lora", "tiny", false}, PeftCase{"tiny-dora", "tiny", false},
                                           PeftCase{"tiny-llama3-dora", "tiny-llama3", false},
                                           PeftCase{"tiny-odd-lora", "tiny-odd", false},
                                           PeftCase{"tiny-qlora", "tiny", true}, PeftCase{"tiny-qdora", "tiny", true}),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::erase(name, '-');
                           return name;
                         });

/// A base in bf16: adapters in fp32, one rounding.
TEST(MergeAsPeft, BfloatBase) {
  Scratch scratch;
  for (const char* kind : {"plain", "dora"}) {
    const MergeRequest request =
        request_of(merged("base-gqa-bf16"), case_folder() / ("lora-" + std::string(kind)), scratch / kind);
    merge(request);
    const auto found = tensors_of(request.output);
    for (const auto& [name, tensor] : read_tensors(merged("gqa-bf16-" + std::string(kind)) / "merged.safetensors"))
      EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

/// Writes a folder's tensors again with row 3 of one as zeros.
void zero_row(const fs::path& file, const std::string& name) {
  std::map<std::string, at::Tensor> tensors = read_tensors(file);
  tensors.at(name)[3].zero_();
  std::vector<io::TensorView> views;
  for (const auto& [key, tensor] : tensors)
    views.push_back({key, ops::dtype_of(tensor.scalar_type()), tensor.sizes().vec(), ops::bytes_of(tensor)});
  io::write_safetensors(file, views, {{"format", "pt"}});
}

/// As in training: nothing comes out of a row without a direction. The other rows are those of the model that has it.
TEST(MergeDora, ARowOfZerosStaysOne) {
  Scratch scratch;
  const fs::path base = case_folder() / "base-gqa", adapter = case_folder() / "lora-dora";
  merge(request_of(base, adapter, scratch / "whole"));
  fs::copy(base, scratch / "base", fs::copy_options::recursive);
  fs::copy(adapter, scratch / "adapter", fs::copy_options::recursive);
  const std::string module = "model.layers.0.mlp.gate_proj";
  zero_row(scratch / "base/model.safetensors", module + ".weight");
  zero_row(scratch / "adapter/adapter_model.safetensors", "base_model.model." + module + ".lora_B.weight");
  merge(request_of(scratch / "base", scratch / "adapter", scratch / "out"));
  at::Tensor wanted = tensors_of(scratch / "whole").at(module + ".weight").clone();
  wanted[3].zero_();
  EXPECT_TRUE(at::equal(tensors_of(scratch / "out").at(module + ".weight"), wanted));
}

TEST(MergeAsPeft, WeightedSum) {
  Scratch scratch;
  MergeRequest request = request_of(
      case_folder() / "base-gqa",
      fmt::format("{}, {}", (case_folder() / "lora-plain").string(), (case_folder() / "lora-rslora").string()),
      scratch / "out");
  request.merge.adapter_weights = "0.7,-0.3";
  merge(request);
  const auto found = tensors_of(request.output);
  for (const auto& [name, tensor] : read_tensors(merged("gqa-sum") / "merged.safetensors"))
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  request.adapters = (case_folder() / "lora-dora").string();
  request.merge.adapter_weights = "0.5";
  request.output = scratch / "no";
  EXPECT_THAT(refusal(request, ErrorClass::kBadModel), HasSubstr("is a DoRA adapter"));
}

struct ModuleCase {
  const char* name;
  const char* base;
  bool untied;
};

/// Adapters on embedding and head, and modules that are saved whole.
class MergeModules : public ::testing::TestWithParam<ModuleCase> {};

TEST_P(MergeModules, AsPeft) {
  Scratch scratch;
  MergeRequest request = request_of(case_folder() / GetParam().base, merged(GetParam().name), scratch / "out");
  EXPECT_EQ(merge(request).untied, GetParam().untied);
  const auto found = tensors_of(request.output), before = tensors_of(request.base);
  const auto wanted = read_tensors(merged(GetParam().name) / "merged.safetensors");
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  EXPECT_EQ(found.size(), before.size() + (GetParam().untied ? 1u : 0u));
  if (GetParam().untied && !wanted.contains("lm_head.weight")) {
    EXPECT_TRUE(at::equal(found.at("lm_head.weight"), before.at("model.embed_tokens.weight")));
  }
  const SmallBlocks blocks;
  request.output = scratch / "by rows";
  merge(request);
  EXPECT_EQ(file_bytes(request.output / "model.safetensors"), file_bytes(scratch / "out/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Runs, MergeModules,
                         ::testing::Values(ModuleCase{"gqa-embedding", "base-gqa", false},
                                           ModuleCase{"tied-embedding", "base-tied", true},
                                           ModuleCase{"tied-saved", "base-tied", true},
                                           ModuleCase{"gqa-tokens", "base-gqa", false},
                                           ModuleCase{"tied-tokens", "base-tied", false}),
                         [](const auto& one) {
                           std::string name = one.param.name;
                           std::erase(name, '-');
                           return name;
                         });

/// Model sizes at which a product is cut into many blocks, for ranks up to those of the library's own inner blocks.
TEST(MergeBlocks, ProductsOfBlocksHaveTheBitsOfTheWhole) {
  struct Size {
    std::int64_t out, in, rank;
  };
  for (const auto& [out, in, rank] :
       {Size{4096, 2048, 16}, Size{2048, 5632, 64}, Size{1030, 4096, 8}, Size{3000, 1000, 256}, Size{700, 2000, 500}}) {
    const at::Tensor a = at::randn({rank, in}), b = at::randn({out, rank}), whole = at::mm(b, a);
    const at::Tensor norms = at::linalg_vector_norm(whole, 2, 1);
    exporting::block_elements = 1 << 17;
    const std::int64_t each = exporting::rows_of_block(in), blocks = std::max<std::int64_t>(1, out / each);
    exporting::block_elements = 1 << 20;
    EXPECT_GT(blocks, 1);
    EXPECT_EQ(each % 64, 0);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t rows = i + 1 == blocks ? out - i * each : each;
      const at::Tensor part = at::mm(b.narrow(0, i * each, rows), a);
      ASSERT_TRUE(at::equal(part, whole.narrow(0, i * each, rows))) << out << " x " << in << ", rank " << rank;
      ASSERT_TRUE(at::equal(at::linalg_vector_norm(part, 2, 1), norms.narrow(0, i * each, rows)));
    }
  }
}

void write_random(const fs::path& file, const std::map<std::string, std::vector<std::int64_t>>& shapes) {
  std::vector<at::Tensor> values;
  std::vector<io::TensorView> views;
  for (const auto& [name, shape] : shapes) {
    values.push_back(at::randn(shape));
    views.push_back({name, Dtype::kF32, shape, ops::bytes_of(values.back())});
  }
  io::write_safetensors(file, views, {{"format", "pt"}});
}

/// A model of one layer whose matrices have several quantisation records each, and an adapter on one of them.
void write_wide_model(const fs::path& base, const fs::path& adapter) {
  for (const fs::path& folder : {base, adapter}) fs::create_directory(folder);
  json config = read_json(case_folder() / "base-gqa/config.json");
  config.update({{"hidden_size", 128},
                 {"intermediate_size", 512},
                 {"num_hidden_layers", 1},
                 {"vocab_size", 64},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 32},
                 {"pad_token_id", nullptr}});
  std::ofstream(base / "config.json") << config;
  const std::string layer = "model.layers.0.";
  write_random(base / "model.safetensors", {{"model.embed_tokens.weight", {64, 128}},
                                            {"lm_head.weight", {64, 128}},
                                            {"model.norm.weight", {128}},
                                            {layer + "input_layernorm.weight", {128}},
                                            {layer + "post_attention_layernorm.weight", {128}},
                                            {layer + "self_attn.q_proj.weight", {128, 128}},
                                            {layer + "self_attn.k_proj.weight", {64, 128}},
                                            {layer + "self_attn.v_proj.weight", {64, 128}},
                                            {layer + "self_attn.o_proj.weight", {128, 128}},
                                            {layer + "mlp.gate_proj.weight", {512, 128}},
                                            {layer + "mlp.up_proj.weight", {512, 128}},
                                            {layer + "mlp.down_proj.weight", {128, 512}}});
  json lora = read_json(case_folder() / "lora-plain/adapter_config.json");
  lora.update({{"target_modules", {"up_proj"}}, {"r", 4}});
  std::ofstream(adapter / "adapter_config.json") << lora;
  write_random(adapter / "adapter_model.safetensors",
               {{"base_model.model." + layer + "mlp.up_proj.lora_A.weight", {4, 128}},
                {"base_model.model." + layer + "mlp.up_proj.lora_B.weight", {512, 4}}});
}

/// Blocks that begin inside a record, or with a later one, find the scales of their own rows.
TEST(MergeBlocks, QuantisedMatricesOfSeveralRecords) {
  Scratch scratch;
  write_wide_model(scratch / "base", scratch / "adapter");
  for (const bool nested : {true, false}) {
    MergeRequest request = request_of(scratch / "base", scratch / "adapter", scratch / fmt::format("whole-{}", nested));
    quantise(request, nested);
    merge(request);
    const std::string whole = file_bytes(request.output / "model.safetensors");
    const SmallBlocks blocks;
    request.output = scratch / fmt::format("rows-{}", nested);
    merge(request);
    EXPECT_TRUE(file_bytes(request.output / "model.safetensors") == whole) << "double quantisation: " << nested;
  }
}

TEST(MergeFiles, CutAsTransformersCutsThem) {
  Scratch scratch;
  MergeRequest request = request_of(model("tiny"), merged("tiny-lora"), scratch / "out");
  request.merge.max_shard_size = "200KB";
  EXPECT_EQ(merge(request).files, 6u);
  const json index = read_json(request.output / "model.safetensors.index.json");
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_of(request.output)) {
    bytes += tensor.nbytes();
    const auto in_file = read_tensors(request.output / index["weight_map"][name].get<std::string>());
    EXPECT_TRUE(in_file.contains(name)) << name;
  }
  // What save_pretrained(max_shard_size="200KB") of Transformers 5.24 made of the same model.
  for (const auto& [name, number] : std::map<std::string, int>{{"lm_head", 1},
                                                               {"model.embed_tokens", 2},
                                                               {"model.layers.0.mlp.down_proj", 2},
                                                               {"model.layers.0.mlp.gate_proj", 3},
                                                               {"model.layers.1.mlp.down_proj", 3},
                                                               {"model.layers.1.self_attn.v_proj", 4},
                                                               {"model.layers.3.mlp.down_proj", 5},
                                                               {"model.layers.3.mlp.gate_proj", 6},
                                                               {"model.norm", 6}})
    EXPECT_EQ(index["weight_map"][name + ".weight"], fmt::format("model-{:05}-of-00006.safetensors", number)) << name;
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(index["metadata"]["total_parameters"], bytes / 4);
  for (const auto& [name, tensor] : tensors_of(model("tiny"))) EXPECT_TRUE(index["weight_map"].contains(name)) << name;
}

TEST(BaseFingerprint, OfTheTensorsAndNotOfTheFiles) {
  const auto communicator = comm::make_self_communicator();
  const auto fingerprint = [&](const fs::path& folder) {
    return checkpoint::base_fingerprint(io::SafetensorsFolder(folder), *communicator);
  };
  // By Python's xxhash over the file.
  EXPECT_EQ(fingerprint(case_folder() / "base-gqa"), "5589b378d6c2e2889f2471772c0d79ad");
  Scratch scratch;
  MergeRequest request = request_of(case_folder() / "base-gqa", case_folder() / "lora-plain", scratch / "whole");
  merge(request);
  request.output = scratch / "cut";
  request.merge.max_shard_size = "30KB";
  EXPECT_GT(merge(request).files, 3u);
  EXPECT_EQ(fingerprint(scratch / "whole"), fingerprint(scratch / "cut"));
  EXPECT_NE(fingerprint(scratch / "whole"), fingerprint(case_folder() / "base-gqa"));
}

TEST(MergeFiles, SizesInUnitsOf1000) {
  EXPECT_EQ(exporting::parse_shard_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(exporting::parse_shard_size("1.5 mb"), 1'500'000u);
  EXPECT_EQ(exporting::parse_shard_size("4096"), 4096u);
  for (const char* bad : {"", "GB", "5GiB", "-1GB", "0", "1e3MB", "inf", "nanGB"})
    EXPECT_THROW(exporting::parse_shard_size(bad), Error) << bad;
}

TEST(MergeOutput, BfloatAndWhatTheFolderTells) {
  Scratch scratch;
  MergeRequest request = request_of(model("tiny"), merged("tiny-lora"), scratch / "out");
  request.dtype = "bfloat16";
  merge(request);
  const auto wanted = read_tensors(merged("tiny-lora") / "merged.safetensors"), found = tensors_of(request.output);
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor.to(at::kBFloat16))) << name;
  const json config = read_json(request.output / "config.json"), record = read_json(request.output / "merge.json");
  EXPECT_EQ(config["dtype"], "bfloat16");
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(record["merge_base"], "trained");
  EXPECT_EQ(record["dtype"], "bfloat16");
  EXPECT_EQ(record["base_fingerprint"].get<std::string>().size(), 32u);
  EXPECT_TRUE(fs::exists(request.output / "tokenizer.json"));
}

TEST(MergeOutput, AnExistingFolderIsRefused) {
  Scratch scratch;
  MergeRequest request = request_of(model("tiny"), merged("tiny-lora"), scratch.path());
  try {
    merge(request);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kBadStorage);
    EXPECT_THAT(error.what(), HasSubstr("exists already"));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(MergeRefused, AdapterOfAnotherModel) {
  Scratch scratch;
  EXPECT_THAT(
      refusal(request_of(model("tiny-odd"), merged("tiny-lora"), scratch / "out"), ErrorClass::kBadModel),
      ::testing::AllOf(HasSubstr("6 tensors of another shape or type (first: "), HasSubstr("[8, 64] and not [8, 96]")));
}

TEST(MergeRefused, NamesWithAForeignPrefix) {
  Scratch scratch;
  EXPECT_THAT(refusal(request_of(case_folder() / "base-gqa", case_folder() / "lora-badprefix", scratch / "out"),
                      ErrorClass::kBadModel),
              ::testing::AllOf(HasSubstr("14 tensors fit nothing (first: "),
                               HasSubstr("missing (first: base_model.model.model.layers.0")));
}

TEST(MergeRefused, AnotherBaseByItsFingerprint) {
  Scratch scratch;
  make_adapter_folder(scratch / "adapter", merged("tiny-lora") / "adapter_model.safetensors",
                      merged("tiny-lora") / "adapter_config.json");
  exporting::BaseRecord record{.fingerprint = std::string(32, 'a'), .type = at::kFloat, .compute_type = at::kFloat};
  exporting::write_base_record(scratch / "adapter", record);
  const MergeRequest request = request_of(model("tiny"), scratch / "adapter", scratch / "out");
  const std::string message = refusal(request, ErrorClass::kBadModel);
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr(record.fingerprint), HasSubstr("was trained on another base")));
  // The right one is in the message, too.
  record.fingerprint = message.substr(message.find("--model_name_or_path is ") + 24, 32);
  exporting::write_base_record(scratch / "adapter", record);
  EXPECT_EQ(merge(request).notices.size(), 0u);
  MergeRequest narrow = request;
  narrow.output = scratch / "narrow";
  narrow.dtype = "bfloat16";
  EXPECT_THAT(merge(narrow).notices, ::testing::ElementsAre(HasSubstr("--dtype float32 keeps them")));
}

/// Weights of a run's record: dequantised by default, the files' on request; options may not contradict it.
TEST(MergeBase, AsTheRecordSays) {
  Scratch scratch;
  make_adapter_folder(scratch / "adapter", merged("tiny-qlora") / "adapter_model.safetensors",
                      merged("tiny-qlora") / "adapter_config.json");
  MergeRequest request = request_of(model("tiny"), scratch / "adapter", scratch / "plain");
  EXPECT_THAT(merge(request).notices, ::testing::ElementsAre(HasSubstr("its base is taken as not quantised")));
  exporting::BaseRecord record{.fingerprint = read_json(scratch / "plain/merge.json")["base_fingerprint"],
                               .type = at::kFloat,
                               .compute_type = at::kFloat,
                               .quantisation = quant::Format{quant::Kind::kNf4, true, 64}};
  exporting::write_base_record(scratch / "adapter", record);
  request.output = scratch / "trained";
  EXPECT_THAT(merge(request).base, HasSubstr("dequantised weights of nf4 in blocks of 64, double quantisation"));
  const auto wanted = read_tensors(merged("tiny-qlora") / "merged.safetensors"), found = tensors_of(request.output);
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;

  request.output = scratch / "original";
  request.merge.merge_base = "original";
  merge(request);
  EXPECT_EQ(file_bytes(scratch / "original/model.safetensors"), file_bytes(scratch / "plain/model.safetensors"));
  EXPECT_EQ(read_json(scratch / "original/merge.json")["merge_base"], "original");

  request.output = scratch / "no";
  quantise(request, false);
  EXPECT_THAT(refusal(request, ErrorClass::kUsage), HasSubstr("leave the options of the quantised base out"));
}

/// Files that bitsandbytes has quantised hold the same values as quantising the original here.
TEST(MergeBase, StoredQuantised) {
  Scratch scratch;
  MergeRequest request = request_of(model("tiny-nf4"), merged("tiny-qlora"), scratch / "out");
  merge(request);
  const auto wanted = read_tensors(merged("tiny-qlora") / "merged.safetensors"), found = tensors_of(request.output);
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  EXPECT_FALSE(read_json(request.output / "config.json").contains("quantization_config"));
  request.output = scratch / "no";
  request.merge.merge_base = "original";
  EXPECT_THAT(refusal(request, ErrorClass::kUsage), HasSubstr("the model's files are quantised"));
}

}  // namespace
}  // namespace shardtune::testing
