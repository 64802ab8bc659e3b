#include <fmt/format.h>

#include "shardtune/data/rows.h"

namespace shardtune::data {

std::string describe(const RowStatistics& s) {
  std::string text = fmt::format("{} rows from {} examples, {} tokens", s.rows, s.examples, s.tokens_kept);
  const std::string dropped = fmt::format(", {} tokens dropped", s.tokens_dropped);
  if (s.examples_cut > 0) text += fmt::format("; {} examples cut at --max_length{}", s.examples_cut, dropped);
  if (s.examples_split > 0) text += fmt::format("; {} examples split over rows", s.examples_split);
  if (s.examples_without_target > 0)
    text += fmt::format("; {} rows hold no trained token and are left out{}", s.examples_without_target,
                        s.examples_cut > 0 ? "" : dropped);
  return text + fmt::format("; {} targets", s.targets);
}

}  // namespace shardtune::data
