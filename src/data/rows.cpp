#include "shardtune/data/rows.h"

#include <algorithm>

#include "packing.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

/// Packing looks at this many examples at a time, as TRL does.
constexpr std::size_t kPackingGroup = 1000;

using Index = std::int64_t;

std::int32_t to_int(std::size_t value) { return static_cast<std::int32_t>(value); }

Piece piece_of(std::size_t sample, std::size_t begin, std::size_t count) {
  return {to_int(count), static_cast<Index>(sample), to_int(begin)};
}

/// Trained tokens of a row: labels that are not ignored, less the first of each segment.
Index targets_of(const Row& row) {
  Index count = 0;
  std::size_t at = 0;
  for (const std::int32_t tokens : row.segments) {
    for (std::size_t i = at + 1; i < at + static_cast<std::size_t>(tokens); ++i)
      count += row.labels[i] != kIgnoredLabel;
    at += static_cast<std::size_t>(tokens);
  }
  return count;
}

class RowMaker {
 public:
  RowMaker(const std::vector<Example>& examples, const DataOptions& options, RowStatistics& statistics)
      : examples_(examples), max_length_(static_cast<std::size_t>(options.max_length)),
        documents_apart_(options.wrapped_attention == "documents"), statistics_(statistics) {}

  std::vector<Row> unpacked() {
    for (std::size_t i = 0; i < examples_.size(); ++i) {
      Row row;
      append(row, piece_of(i, 0, cut(i)));
      row.segments = {to_int(row.ids.size())};
      if (targets_of(row) > 0) rows_.push_back(std::move(row));
      else ++statistics_.examples_without_target;
    }
    return std::move(rows_);
  }

  std::vector<Row> wrapped() {
    for (std::size_t begin = 0; begin < examples_.size(); begin += kPackingGroup) {
      Row row;
      for (std::size_t i = begin; i < group_end(begin); ++i)
        for (std::size_t at = 0; at < examples_[i].ids.size();) {
          const std::size_t count = std::min(examples_[i].ids.size() - at, max_length_ - row.ids.size());
          append(row, piece_of(i, at, count));
          statistics_.examples_split += at == 0 && count < examples_[i].ids.size();
          at += count;
          if (row.ids.size() == max_length_) close(row);
        }
      if (!row.ids.empty()) close(row);
    }
    return std::move(rows_);
  }

  std::vector<Row> best_fit(bool split) {
    for (std::size_t begin = 0; begin < examples_.size(); begin += kPackingGroup) {
      std::vector<Piece> pieces;
      for (std::size_t i = begin; i < group_end(begin); ++i) add_pieces(i, split, pieces);
      std::vector<std::size_t> lengths;
      for (const Piece& piece : pieces) lengths.push_back(static_cast<std::size_t>(piece.tokens));
      for (const std::vector<std::size_t>& bin : best_fit_decreasing(lengths, max_length_)) {
        Row row;
        for (const std::size_t member : bin) {
          append(row, pieces[member]);
          row.segments.push_back(pieces[member].tokens);
        }
        rows_.push_back(std::move(row));
      }
    }
    return std::move(rows_);
  }

 private:
  std::size_t group_end(std::size_t begin) const { return std::min(begin + kPackingGroup, examples_.size()); }

  /// Tokens of an example that are kept; counts what is cut.
  std::size_t cut(std::size_t i) {
    const std::size_t length = examples_[i].ids.size();
    if (length <= max_length_) return length;
    ++statistics_.examples_cut;
    return max_length_;
  }

  /// The pieces of an example that fit into a row; without `split` the first alone.
  void add_pieces(std::size_t i, bool split, std::vector<Piece>& pieces) {
    const std::size_t length = split ? examples_[i].ids.size() : cut(i);
    for (std::size_t at = 0; at < length; at += max_length_)
      pieces.push_back(piece_of(i, at, std::min(max_length_, length - at)));
    statistics_.examples_split += length > max_length_;
  }

  /// Adds the tokens of a piece, without opening a segment.
  void append(Row& row, const Piece& piece) {
    const Example& example = examples_[static_cast<std::size_t>(piece.sample)];
    const auto first = static_cast<std::ptrdiff_t>(piece.first_position);
    const auto last = first + piece.tokens;
    row.ids.insert(row.ids.end(), example.ids.begin() + first, example.ids.begin() + last);
    row.labels.insert(row.labels.end(), example.labels.begin() + first, example.labels.begin() + last);
    row.pieces.push_back(piece);
  }

  void close(Row& row) {
    if (documents_apart_)
      for (const Piece& piece : row.pieces) row.segments.push_back(piece.tokens);
    else row.segments = {to_int(row.ids.size())};
    rows_.push_back(std::move(row));
    row = Row();
  }

  const std::vector<Example>& examples_;
  std::size_t max_length_;
  bool documents_apart_;
  RowStatistics& statistics_;
  std::vector<Row> rows_;
};

void check_options(const DataOptions& options) {
  if (options.max_length < 1 || options.max_length > 0x7FFFFFFF)
    fail(ErrorClass::kUsage, "--max_length is {}; expected 1 to 2147483647 tokens", options.max_length);
  const std::string& strategy = options.packing_strategy;
  if (strategy != "bfd" && strategy != "bfd_split" && strategy != "wrapped")
    fail(ErrorClass::kUsage, "--packing_strategy '{}' is not known; expected bfd, bfd_split or wrapped", strategy);
  if (options.wrapped_attention != "row" && options.wrapped_attention != "documents")
    fail(ErrorClass::kUsage, "--wrapped_attention '{}' is not known; expected row or documents",
         options.wrapped_attention);
}

std::vector<Row> rows_of(RowMaker& maker, const DataOptions& options) {
  if (!options.packing) return maker.unpacked();
  if (options.packing_strategy == "wrapped") return maker.wrapped();
  return maker.best_fit(options.packing_strategy == "bfd_split");
}

}  // namespace

std::vector<Row> make_rows(const std::vector<Example>& examples, const DataOptions& options, RowStatistics& statistics,
                           const std::string& where) {
  check_options(options);
  statistics = {};
  statistics.examples = static_cast<Index>(examples.size());
  for (const Example& example : examples) {
    SHARDTUNE_CHECK(example.ids.size() == example.labels.size(), "example of line {} has {} ids and {} labels",
                    example.line, example.ids.size(), example.labels.size());
    statistics.tokens_in += static_cast<Index>(example.ids.size());
  }
  RowMaker maker(examples, options, statistics);
  std::vector<Row> rows = rows_of(maker, options);
  // A last row of one token, say: it would be a step without a target on the ranks that meet it alone.
  if (options.packing)
    statistics.examples_without_target =
        static_cast<Index>(std::erase_if(rows, [](const Row& row) { return targets_of(row) == 0; }));
  statistics.rows = static_cast<Index>(rows.size());
  for (const Row& row : rows) {
    statistics.tokens_kept += static_cast<Index>(row.ids.size());
    statistics.targets += targets_of(row);
  }
  statistics.tokens_dropped = statistics.tokens_in - statistics.tokens_kept;
  if (statistics.targets == 0)
    fail(ErrorClass::kBadData,
         "{}: no trained token within --max_length {} in {}; at least one label behind the first must not be -100",
         where, options.max_length, counted(statistics.examples, "example"));
  return rows;
}

}  // namespace shardtune::data
