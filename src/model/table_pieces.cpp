// How embedding table and head are cut into pieces of rows.
#include <fmt/format.h>

#include <algorithm>

#include "shardtune/core/error.h"
#include "shardtune/model/llama.h"

namespace shardtune::model {
namespace {

constexpr std::int64_t kSmallestPiece = 32 << 20;  ///< weights

/// Piece `number` of `pieces` of a whole table.
Parameter piece_of(const Parameter& whole, std::int64_t number, std::int64_t pieces) {
  Parameter piece = whole;
  piece.borrowed = false;
  piece.table_rows = whole.shape[0];
  piece.first_row = whole.shape[0] * number / pieces;
  piece.shape[0] = whole.shape[0] * (number + 1) / pieces - piece.first_row;
  return piece;
}

}  // namespace

std::int64_t table_pieces_of(const ModelConfig& config) {
  const std::int64_t d = config.hidden_size, query = config.heads * config.head_dim,
                     key = config.kv_heads * config.head_dim;
  const std::int64_t layer = d * (2 * query + 2 * key + 3 * config.intermediate_size);
  const std::int64_t largest = std::max(layer / 4, kSmallestPiece), table = config.vocab_size * d;
  return (table + largest - 1) / largest;
}

void LlamaModel::cut_tables(std::int64_t pieces) {
  if (pieces > config_.vocab_size)
    fail(ErrorClass::kUsage, "--table_pieces {}: the model's table has {} rows; give at most that", pieces,
         config_.vocab_size);
  if (pieces == 1) return;
  UnitSpec &table = units_[0], &head = units_[head_unit()];
  if (table.parameters[0].rows_in_base > 0) return;  // a grown vocabulary is trained
  // Anything trained, and an adapter, needs the weight whole.
  const bool table_alone = table.parameters.size() == 1 && !table.parameters[0].trainable;
  const bool head_plain = head.parameters.size() == 2 && !head.parameters[kNormSlot].trainable &&
                          !head.parameters[kHeadSlot].trainable && head.parameters[kHeadSlot].packed_bytes == 0;
  const bool tied = head.parameters[kHeadSlot].borrowed;
  const bool cuts_table = table_alone && (head_plain || !tied), cuts_head = head_plain && (table_alone || !tied);
  // References into units_ end here.
  const Parameter whole_table = table.parameters[0], whole_head = head.parameters[kHeadSlot];
  const auto add = [&](const Parameter& whole, std::int64_t number, const std::string& name) {
    units_.push_back({.name = fmt::format("{}, piece {} of {}", name, number + 1, pieces),
                      .parameters = {piece_of(whole, number, pieces)},
                      .further_piece = true});
    return units_.size() - 1;
  };
  if (cuts_head) head.parameters.pop_back();
  if (cuts_table) {
    table.parameters[0] = piece_of(whole_table, 0, pieces);
    for (std::int64_t number = 1; number < pieces; ++number)
      table_stages_.push_back(add(whole_table, number, "embedding"));
  }
  if (!cuts_head) return;
  if (tied) head_stages_ = table_stages_;
  else
    for (std::int64_t number = 0; number < pieces; ++number) head_stages_.push_back(add(whole_head, number, "head"));
}

}  // namespace shardtune::model
