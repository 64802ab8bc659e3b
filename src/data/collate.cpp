#include "shardtune/core/error.h"
#include "shardtune/data/loader.h"

namespace shardtune::data {
namespace {

void append_segments(const Row& row, MicroBatch& batch) {
  std::size_t at = 0;
  for (const std::int32_t tokens : row.segments) {
    for (std::int32_t position = 0; position < tokens; ++position, ++at) {
      const std::int32_t target = position + 1 < tokens ? row.labels[at + 1] : kIgnoredLabel;
      batch.ids.push_back(row.ids[at]);
      batch.targets.push_back(target);
      batch.positions.push_back(position);
      batch.target_count += target != kIgnoredLabel;
    }
    batch.segments.push_back(tokens);
  }
  SHARDTUNE_CHECK(at == row.ids.size(), "segments of a row hold {} tokens, the row {}", at, row.ids.size());
}

void append_pieces(const Row& row, MicroBatch& batch) {
  for (const Piece& piece : row.pieces)
    for (std::int32_t i = 0; i < piece.tokens; ++i) {
      batch.samples.push_back(piece.sample);
      batch.document_positions.push_back(piece.first_position + i);
    }
  SHARDTUNE_CHECK(batch.samples.size() == batch.ids.size(), "pieces hold {} tokens, the rows {}", batch.samples.size(),
                  batch.ids.size());
}

}  // namespace

MicroBatch collate(const std::vector<Row>& rows, const std::vector<std::int64_t>& which) {
  MicroBatch batch;
  for (const std::int64_t index : which) {
    SHARDTUNE_CHECK(index >= 0 && static_cast<std::size_t>(index) < rows.size(), "row {} of {}", index, rows.size());
    const Row& row = rows[static_cast<std::size_t>(index)];
    append_segments(row, batch);
    append_pieces(row, batch);
    batch.rows.push_back(index);
  }
  return batch;
}

}  // namespace shardtune::data
