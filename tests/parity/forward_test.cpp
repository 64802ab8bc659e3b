// Logits and losses of the tiny models against Transformers 5.24 (tests/parity/data/numerics; bounds: docs/parity.md).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

/// A run over rows of ids, without an adapter that changes anything.
struct Model {
  Model(const std::string& name, const at::Tensor& ids, const at::Tensor& labels, const std::string& dtype = "float32",
        std::int64_t pieces = 1) {
    write_rows(scratch / "rows.jsonl", ids, labels);
    options::RunOptions options = plain_options(data_folder() / "models" / name, scratch / "rows.jsonl");
    options.model.dtype = dtype;
    options.model.table_pieces = pieces;
    run = train::build_run(options, *communicator);
  }
  data::MicroBatch batch(std::vector<std::int64_t> rows) const { return data::collate(run->train_rows, rows); }

  Scratch scratch;
  std::unique_ptr<comm::Communicator> communicator = comm::make_self_communicator();
  std::unique_ptr<train::Run> run;
};

double max_difference(const at::Tensor& a, const at::Tensor& b) { return at::max(at::abs(a - b)).item<double>(); }

/// A model, and the pieces of rows in which its embedding and head are used.
class Forward : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(Forward, Fp32LogitsAndLosses) {
  const auto [name, pieces] = GetParam();
  const auto folder = data_folder() / "numerics" / name;
  auto batches = read_tensors(folder / "batches.safetensors");
  auto expected = read_tensors(folder / "forward.safetensors");
  const auto losses = read_json(folder / "forward.json");
  const at::Tensor ids = batches["train.input_ids"][0];

  Model model(name, ids, ids, "float32", pieces);
  const data::MicroBatch batch = model.batch({0, 1});
  const at::Tensor logits = model.run->engine->logits(batch).view({2, 48, -1});
  EXPECT_LE(max_difference(logits, expected["fp32.plain.logits"]), 2e-5);
  EXPECT_NEAR(model.run->engine->evaluate(batch) / static_cast<double>(batch.target_count),
              losses["fp32.eager.plain.loss"].get<double>(), 1e-5);
  const at::Tensor largest = at::argmax(logits.view({96, -1}), 1);
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < 96; ++i)
    correct += largest[i].item<std::int64_t>() == batch.targets[static_cast<std::size_t>(i)];
  EXPECT_EQ(model.run->engine->evaluate_tokens(batch).correct, correct);

  Model masked(name, ids, batches["train.labels"][0], "float32", pieces);
  const data::MicroBatch masked_batch = masked.batch({0, 1});
  EXPECT_NEAR(masked.run->engine->evaluate(masked_batch) / static_cast<double>(masked_batch.target_count),
              losses["fp32.eager.masked.loss"].get<double>(), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, Forward,
                         ::testing::Combine(::testing::Values("tiny", "tiny-llama3", "tiny-odd"),
                                            ::testing::Values(1, 3)));

class Bf16Forward : public ::testing::TestWithParam<int> {};

TEST_P(Bf16Forward, LogitsAndLoss) {
  const auto folder = data_folder() / "numerics/tiny";
  auto batches = read_tensors(folder / "batches.safetensors");
  auto expected = read_tensors(folder / "forward.safetensors");
  const at::Tensor ids = batches["train.input_ids"][0];
  Model model("tiny", ids, ids, "bfloat16", GetParam());
  const data::MicroBatch batch = model.batch({0, 1});
  const at::Tensor logits = model.run->engine->logits(batch).view({2, 48, -1});
  EXPECT_LE(max_difference(logits, expected["bf16.plain.logits"].to(at::kFloat)), 0.15);
  EXPECT_NEAR(model.run->engine->evaluate(batch) / static_cast<double>(batch.target_count),
              read_json(folder / "forward.json")["bf16.eager.plain.loss"].get<double>(), 5e-3);
}

INSTANTIATE_TEST_SUITE_P(Pieces, Bf16Forward, ::testing::Values(1, 3));

TEST(Forward, PaddedRowsGiveTheLossOfTheirTokens) {
  const auto folder = data_folder() / "numerics/tiny";
  auto batches = read_tensors(folder / "batches.safetensors");
  auto expected = read_tensors(folder / "forward.safetensors");
  Scratch scratch;
  // Rows without their padding: what the padded batch means.
  std::vector<std::int64_t> lengths;
  std::string text;
  for (std::int64_t row = 0; row < 2; ++row) {
    const auto length = batches["padded.attention_mask"][row].sum().item<std::int64_t>();
    lengths.push_back(length);
    write_rows(scratch / "row.jsonl", batches["padded.input_ids"].narrow(0, row, 1).narrow(1, 0, length),
               batches["padded.labels"].narrow(0, row, 1).narrow(1, 0, length));
    std::ifstream in(scratch / "row.jsonl");
    text += std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::ofstream(scratch / "rows.jsonl") << text;
  const auto communicator = comm::make_self_communicator();
  const auto run =
      train::build_run(plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl"), *communicator);
  const data::MicroBatch batch = data::collate(run->train_rows, {0, 1});
  const at::Tensor logits = run->engine->logits(batch);
  for (std::int64_t row = 0, first = 0; row < 2; first += lengths[static_cast<std::size_t>(row++)]) {
    const std::int64_t length = lengths[static_cast<std::size_t>(row)];
    EXPECT_LE(max_difference(logits.narrow(0, first, length), expected["fp32.padded.logits"][row].narrow(0, 0, length)),
              2e-5);
  }
  EXPECT_NEAR(run->engine->evaluate(batch) / static_cast<double>(batch.target_count),
              read_json(folder / "forward.json")["fp32.eager.padded.loss"].get<double>(), 1e-5);
}

TEST(Forward, PackedDocumentsDoNotSeeEachOther) {
  const auto folder = data_folder() / "numerics/tiny";
  auto batches = read_tensors(folder / "batches.safetensors");
  auto expected = read_tensors(folder / "forward.safetensors");
  Model model("tiny", batches["packed.input_ids"], batches["packed.labels"]);
  // The row's documents, as its restarting positions tell.
  data::Row row = model.run->train_rows[0];
  row.segments.clear();
  const at::Tensor positions = batches["packed.position_ids"][0].contiguous();
  for (std::int64_t i = 0; i < positions.numel(); ++i) {
    if (positions[i].item<std::int64_t>() == 0) row.segments.push_back(0);
    ++row.segments.back();
  }
  ASSERT_EQ(row.segments.size(), 3u);
  const data::MicroBatch batch = data::collate({row}, {0});
  const at::Tensor logits = model.run->engine->logits(batch);
  EXPECT_LE(max_difference(logits, expected["fp32.packed.logits"][0]), 2e-5);
  EXPECT_NEAR(model.run->engine->evaluate(batch) / static_cast<double>(batch.target_count),
              read_json(folder / "forward.json")["fp32.eager.packed.loss"].get<double>(), 2e-5);
}

TEST(Forward, RotaryFrequencies) {
  for (const char* name : {"tiny", "tiny-llama3", "tiny-odd"}) {
    auto expected = read_tensors(data_folder() / "numerics" / name / "forward.safetensors");
    const model::ModelConfig config = model::read_config(data_folder() / "models" / name);
    const auto found = model::rotary_inverse_frequencies(config.rotary, config.head_dim);
    const at::Tensor table = expected["rope.inv_freq"];
    ASSERT_EQ(static_cast<std::int64_t>(found.size()), table.numel());
    for (std::int64_t i = 0; i < table.numel(); ++i) {
      const double value = table[i].item<double>();
      EXPECT_NEAR(found[static_cast<std::size_t>(i)], value, 1e-6 * value) << name << " " << i;
    }
  }
}

}  // namespace
}  // namespace shardtune::testing
