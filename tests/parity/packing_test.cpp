// Packed rows compute what their documents compute alone: cases A12 and A13, and the same as a property of losses and gradients.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/comm/self.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using Lengths = std::vector<int>;

/// The run on one rank; the communicator goes away after it.
struct Alone {
  std::unique_ptr<comm::Communicator> communicator = comm::make_self_communicator();
  std::unique_ptr<train::Run> run;
  explicit Alone(const options::RunOptions& options) : run(train::build_run(options, *communicator)) {}
};

options::RunOptions packed(options::RunOptions options, std::int64_t max_length, const char* strategy = "bfd") {
  options.data.packing = true;
  options.data.packing_strategy = strategy;
  options.data.max_length = max_length;
  return options;
}

options::RunOptions six_rows() {
  options::RunOptions options = case_options(case_folder() / "rows-uneven.jsonl");
  options.train.gradient_accumulation_steps = 6;
  return options;
}

/// The six texts in one sequence: on every way through the engine, and as rows of their own.
TEST(CaseA12A13, PackedAsUnpacked) {
  const auto expected = read_json(case_folder() / "rows-uneven-expected.json")["packed_all_rows_in_one_sequence"];
  options::RunOptions wrapped = packed(six_rows(), 112, "wrapped");
  wrapped.data.wrapped_attention = "documents";
  for (const options::RunOptions& start :
       {packed(six_rows(), 128), packed(six_rows(), 112, "bfd_split"), wrapped, six_rows()})
    for (const char* activations : {"recompute", "keep"})
      for (const char* type : {"float32", "bfloat16"}) {
        options::RunOptions options = start;
        options.model.activation_policy = activations;
        options.model.dtype = type;
        SCOPED_TRACE(options.data.packing_strategy + " " + activations + " " + type);
        const Alone alone(options);
        EXPECT_EQ(alone.run->train_rows.size(), start.data.packing ? 1u : 6u);
        EXPECT_THAT(data::describe(alone.run->train_statistics), ::testing::EndsWith("112 tokens; 106 targets"));
        const auto result = run_steps(*alone.run, 0, 1)[0];
        EXPECT_EQ(result.targets, expected["targets"].get<std::int64_t>());
        const bool exact = options.model.dtype == "float32";
        EXPECT_NEAR(result.loss, expected["loss"].get<double>(), exact ? 2e-4 : 2e-2);
        const double norm = expected["grad_norm"];
        if (exact) {
          EXPECT_NEAR(result.grad_norm, norm, 1e-3 * norm);
        }
      }
}

/// Rows of ids by a formula; `change` moves those of one document.
void write_documents(const std::filesystem::path& to, const Lengths& lengths, int change = -1) {
  std::ofstream out(to);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int> ids;
    for (int i = 0; i < lengths[d]; ++i)
      ids.push_back((static_cast<int>(d) * 101 + i * 37 + (static_cast<int>(d) == change ? 11 : 0)) % 500 + 3);
    out << nlohmann::json{{"input_ids", ids}}.dump() << "\n";
  }
}

TEST(CaseA12, OtherWordsInOneDocumentLeaveTheOthersLogits) {
  const Lengths lengths = {6, 52, 9, 5, 27, 13};
  Scratch scratch;
  write_documents(scratch / "rows.jsonl", lengths);
  const auto logits = [&] {
    const Alone alone(packed(case_options(scratch / "rows.jsonl"), 112));
    return std::pair(alone.run->train_rows.at(0), alone.run->engine->logits(data::collate(alone.run->train_rows, {0})));
  };
  const auto before = logits();
  for (int changed = 0; changed < 6; ++changed) {
    write_documents(scratch / "rows.jsonl", lengths, changed);
    const auto after = logits();
    std::int64_t at = 0;
    for (const data::Piece& piece : before.first.pieces) {
      const bool same = at::equal(before.second.narrow(0, at, piece.tokens), after.second.narrow(0, at, piece.tokens));
      EXPECT_EQ(same, piece.sample != changed) << "document " << piece.sample << ", changed " << changed;
      at += piece.tokens;
    }
  }
}

struct Sums {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  ///< fp64
  void add(const Sums& other) {
    loss += other.loss;
    for (const auto& [name, gradient] : other.gradients)
      gradients[name] = gradients.contains(name) ? gradients[name] + gradient : gradient;
  }
};

/// Loss sum and gradients of rows as one micro-batch.
Sums sums_of(train::Run& run, const std::vector<data::Row>& rows) {
  std::vector<std::int64_t> which;
  for (std::size_t i = 0; i < rows.size(); ++i) which.push_back(static_cast<std::int64_t>(i));
  const data::MicroBatch batch = data::collate(rows, which);
  run.shards->clear_gradient_sums();
  Sums sums{.loss = run.engine->forward_backward({&batch, 1}, 3, 1.0).front(), .gradients = {}};
  for (const auto& [name, gradient] : full_gradients(run)) sums.gradients[name] = gradient.to(at::kDouble);
  return sums;
}

/// A row of its own for each piece.
std::vector<data::Row> taken_apart(const std::vector<data::Row>& rows) {
  std::vector<data::Row> single;
  for (const data::Row& row : rows) {
    std::ptrdiff_t at = 0;
    for (const data::Piece& piece : row.pieces) {
      const auto cut = [&](const std::vector<std::int32_t>& from) {
        return std::vector<std::int32_t>(from.begin() + at, from.begin() + at + piece.tokens);
      };
      single.push_back({.ids = cut(row.ids), .labels = cut(row.labels), .segments = {piece.tokens}, .pieces = {piece}});
      at += piece.tokens;
    }
  }
  return single;
}

Sums sums_alone(train::Run& run, const std::vector<data::Row>& rows) {
  Sums sums;
  for (const data::Row& row : rows) sums.add(sums_of(run, {row}));
  return sums;
}

/// fp32 rounding: the tensors' products are summed in another order. Returns the largest relative distance.
double distance(const Sums& found, const Sums& expected) {
  double largest = std::abs(found.loss - expected.loss) / std::abs(expected.loss);
  EXPECT_EQ(found.gradients.size(), 28u);  // A and B of seven modules in two layers
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_GT(at::norm(gradient).item<double>(), 1e-6) << name;
    largest = std::max(largest, relative_l2(found.gradients.at(name), gradient));
  }
  return largest;
}

options::RunOptions with_dropout(const std::filesystem::path& rows) {
  options::RunOptions options = case_options(rows);
  options.adapter.lora_dropout = 0.5;
  return options;
}

int sum_of(const Lengths& lengths) {
  int sum = 0;
  for (const int length : lengths) sum += length;
  return sum;
}

const std::vector<Lengths> kRows = {{17}, {17, 2}, {9, 1, 2}, {5, 1, 1, 2}, {2, 11, 1, 7, 3}};

TEST(PackedRow, IsTheSumOfItsDocumentsWithDropout) {
  Scratch scratch;
  for (const Lengths& lengths : kRows)
    for (const char* strategy : {"bfd", "bfd_split", "wrapped"}) {
      SCOPED_TRACE(std::string(strategy) + " " + ::testing::PrintToString(lengths));
      write_documents(scratch / "rows.jsonl", lengths);
      options::RunOptions options = packed(with_dropout(scratch / "rows.jsonl"), sum_of(lengths), strategy);
      options.data.wrapped_attention = "documents";
      const Alone one(options);
      ASSERT_EQ(one.run->train_rows.size(), 1u);
      ASSERT_EQ(one.run->train_rows[0].segments.size(), lengths.size());
      const Alone apart(with_dropout(scratch / "rows.jsonl"));  // documents of one token are no rows there: no targets
      EXPECT_LE(distance(sums_of(*one.run, one.run->train_rows), sums_alone(*apart.run, apart.run->train_rows)), 1e-5);
    }
}

TEST(PackedRow, SeveralInAMicroBatchAreTheSumOfAllPieces) {
  Scratch scratch;
  write_documents(scratch / "rows.jsonl", {2, 11, 1, 7, 3, 24, 1, 2, 40, 9, 13});
  for (const char* strategy : {"bfd", "bfd_split", "wrapped"}) {
    SCOPED_TRACE(strategy);
    options::RunOptions options = packed(with_dropout(scratch / "rows.jsonl"), 24, strategy);
    options.data.wrapped_attention = "documents";
    const Alone alone(options);
    const std::vector<data::Row>& rows = alone.run->train_rows;
    ASSERT_GT(rows.size(), 3u);
    EXPECT_LE(distance(sums_of(*alone.run, rows), sums_alone(*alone.run, taken_apart(rows))), 1e-5);
  }
}

/// The comparison can fail: attention over a wrapped row is something else.
TEST(PackedRow, AttentionOverTheWholeRowIsAnotherLoss) {
  Scratch scratch;
  write_documents(scratch / "rows.jsonl", {10, 14});
  const Alone row(packed(with_dropout(scratch / "rows.jsonl"), 24, "wrapped"));
  const Alone apart(with_dropout(scratch / "rows.jsonl"));
  EXPECT_GT(distance(sums_of(*row.run, row.run->train_rows), sums_alone(*apart.run, apart.run->train_rows)), 1e-3);
}

}  // namespace
}  // namespace shardtune::testing
