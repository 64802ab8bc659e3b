#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardtune/data/dataset.h"

namespace shardtune::data {

/// A run of consecutive tokens of one document inside a row.
struct Piece {
  std::int32_t tokens = 0;
  std::int64_t sample = 0;  ///< index of the document in the data set: the "global sample" that keys dropout
  std::int32_t first_position = 0;  ///< position of the piece's first token in its document
};

/// A training row: at most max_length tokens.
struct Row {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;  ///< not shifted; first label of each attention segment is never a target
  std::vector<std::int32_t> segments;  ///< tokens of each attention segment; attention and position ids stay inside one
  std::vector<Piece> pieces;  ///< documents; a segment of a "wrapped" row (the whole row) may hold several pieces
};

/// What was lost or changed on the way; printed by the trainer, never silent.
struct RowStatistics {
  std::int64_t examples = 0;
  std::int64_t tokens_in = 0;
  std::int64_t tokens_kept = 0;
  std::int64_t examples_cut = 0;  ///< longer than max_length, cut at the end
  std::int64_t examples_split = 0;  ///< tokens in more than one row
  std::int64_t tokens_dropped = 0;
  std::int64_t examples_without_target = 0;  ///< rows left out: no trained token after cutting or packing
  std::int64_t rows = 0;  ///< that are left
  std::int64_t targets = 0;  ///< trained tokens of these rows
};

/// Rows of a data set in data order; `statistics` is overwritten. Packing works on groups of 1000 examples, as in TRL 1.16.
///  - no packing: one row per example, cut at max_length; rows with no target are left out and counted.
///  - "wrapped": the examples of a group joined and cut each max_length tokens; the short last row of a group stays; one
///    attention segment a row, or with wrapped_attention "documents" one per piece.
///  - "bfd": examples cut at max_length, then best-fit decreasing; one segment per document.
///  - "bfd_split": the same, but examples are split each max_length tokens, not cut; one segment per piece.
/// Error(kBadData) when no row holds a trained token, Error(kUsage) for max_length below 1 or an unknown word. `where` names
/// the data set in messages.
std::vector<Row> make_rows(const std::vector<Example>& examples, const DataOptions& options, RowStatistics& statistics,
                           const std::string& where = "the data set");

/// What the log says: "6 rows from 6 examples, 81 tokens; 2 examples cut at --max_length, 31 tokens dropped; 75 targets".
std::string describe(const RowStatistics& statistics);

}  // namespace shardtune::data
