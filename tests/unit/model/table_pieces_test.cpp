// Into how many pieces of rows embedding and head are cut, and where the pieces are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardtune/core/error.h"
#include "shardtune/model/llama.h"

namespace shardtune::model {
namespace {

ModelConfig shape(std::int64_t vocab, std::int64_t width, std::int64_t feed_forward, std::int64_t heads,
                  std::int64_t kv_heads, bool tied = false) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = width;
  config.intermediate_size = feed_forward;
  config.layers = 2;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = width / heads;
  config.tied_embeddings = tied;
  return config;
}

ModelConfig tiny(bool tied) { return shape(10, 4, 8, 2, 1, tied); }

// A layer of the 70B shape has 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672) = 855,638,016 weights: 26,112 rows in a quarter.
TEST(TablePieces, FromTheShapeAlone) {
  EXPECT_EQ(table_pieces_of(shape(32'000, 8192, 28'672, 64, 8)), 2);
  EXPECT_EQ(table_pieces_of(shape(128'256, 8192, 28'672, 64, 8)), 5);
  EXPECT_EQ(table_pieces_of(shape(26'112, 8192, 28'672, 64, 8)), 1);
  EXPECT_EQ(table_pieces_of(shape(26'113, 8192, 28'672, 64, 8)), 2);
  EXPECT_EQ(table_pieces_of(shape(49'152, 576, 1536, 9, 3)), 1);  // below 32 Mi weights
}

/// Every row in one piece, in order; the names and shapes of the files stay.
void expect_covers(const LlamaModel& model, const std::vector<std::size_t>& stages, const std::string& name) {
  std::int64_t row = 0;
  for (const std::size_t stage : stages) {
    const Parameter& piece = model.units()[stage].parameters[LlamaModel::kPieceSlot];
    EXPECT_EQ(piece.name, name);
    EXPECT_EQ(piece.first_row, row);
    EXPECT_EQ(piece.first_element(), row * 4);
    EXPECT_THAT(piece.file_shape(), ::testing::ElementsAre(10, 4));
    row += piece.shape[0];
  }
  EXPECT_EQ(row, 10);
}

/// Linears without anything trained, as an adapter's base.
LinearGroupFactory frozen() { return dense_linear_factory(false); }
bool none(const std::string&) { return false; }
bool all(const std::string&) { return true; }

TEST(TablePieces, OfAnUntiedModel) {
  const LlamaModel model(tiny(false), frozen(), none, false, {}, 3);
  EXPECT_THAT(model.table_stages(), ::testing::ElementsAre(0, 4, 5));
  EXPECT_THAT(model.head_stages(), ::testing::ElementsAre(6, 7, 8));
  EXPECT_EQ(head_stage(model.units()), 3u);
  EXPECT_EQ(model.units()[3].parameters.size(), 1u);
  expect_covers(model, model.table_stages(), "model.embed_tokens.weight");
  expect_covers(model, model.head_stages(), "lm_head.weight");
  EXPECT_EQ(count_weights(model.units()).total,
            count_weights(LlamaModel(tiny(false), frozen(), none, false, {}, 1).units()).total);
}

TEST(TablePieces, OfATiedModelAreUsedTwice) {
  const LlamaModel model(tiny(true), frozen(), none, false, {}, 3);
  EXPECT_THAT(model.table_stages(), ::testing::ElementsAre(0, 4, 5));
  EXPECT_EQ(model.head_stages(), model.table_stages());
  expect_covers(model, model.head_stages(), "model.embed_tokens.weight");
}

TEST(TablePieces, WhatIsTrainedStaysWhole) {
  const LlamaModel model(tiny(true), dense_linear_factory(true), all, false, {}, 3);
  EXPECT_THAT(model.table_stages(), ::testing::ElementsAre(0));
  EXPECT_TRUE(model.head_stages().empty());
  EXPECT_EQ(model.units().size(), 4u);
}

TEST(TablePieces, MoreThanRowsAreRefused) {
  try {
    const LlamaModel model(tiny(false), frozen(), none, false, {}, 11);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--table_pieces 11: the model's table has 10 rows"));
  }
}

}  // namespace
}  // namespace shardtune::model
