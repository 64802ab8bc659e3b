#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "shardtune/train/metrics.h"

namespace shardtune::train {

ProgressBar::ProgressBar(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) != 0) {}

void ProgressBar::draw(std::int64_t step, std::int64_t total_steps, double seconds_left) const {
  if (!shown_) return;
  constexpr std::int64_t kWidth = 40;
  const auto filled = static_cast<std::size_t>(total_steps > 0 ? step * kWidth / total_steps : kWidth);
  std::fputs(fmt::format("\r[{}{}] {}/{}  left {} \x1b[K", std::string(filled, '#'), std::string(kWidth - filled, '.'),
                         step, total_steps, format_duration(seconds_left))
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

void ProgressBar::clear() const {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace shardtune::train
