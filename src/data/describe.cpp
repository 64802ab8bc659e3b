#include <fmt/format.h>

#include "shardtune/core/counted.h"
#include "shardtune/data/rows.h"

namespace shardtune::data {

std::string describe(const RowStatistics& s) {
  std::string text = fmt::format("{} from {}, {}", counted(s.rows, "row"), counted(s.examples, "example"),
                                 counted(s.tokens_kept, "token"));
  const std::string dropped = fmt::format(", {} dropped", counted(s.tokens_dropped, "token"));
  if (s.examples_cut > 0)
    text += fmt::format("; {} cut at --max_length{}", counted(s.examples_cut, "example"), dropped);
  if (s.examples_split > 0) text += fmt::format("; {} split over rows", counted(s.examples_split, "example"));
  if (s.examples_without_target > 0)
    text += fmt::format("; {} no trained token and {} left out{}",
                        counted(s.examples_without_target, "row holds", "rows hold"),
                        s.examples_without_target == 1 ? "is" : "are", s.examples_cut > 0 ? "" : dropped);
  return text + fmt::format("; {}", counted(s.targets, "target"));
}

}  // namespace shardtune::data
