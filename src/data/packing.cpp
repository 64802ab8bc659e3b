#include "packing.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

namespace shardtune::data {

std::vector<std::vector<std::size_t>> best_fit_decreasing(const std::vector<std::size_t>& lengths,
                                                          std::size_t capacity) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });

  std::vector<std::vector<std::size_t>> bins;
  std::map<std::size_t, std::deque<std::size_t>> by_space;  // bins of equal space, the longest waiting first
  for (const std::size_t item : order) {
    if (lengths[item] == 0) continue;
    const auto fit = by_space.lower_bound(lengths[item]);
    std::size_t bin = bins.size();
    std::size_t space = capacity;
    if (fit == by_space.end()) {
      bins.emplace_back();
    } else {
      space = fit->first;
      bin = fit->second.front();
      fit->second.pop_front();
      if (fit->second.empty()) by_space.erase(fit);
    }
    bins[bin].push_back(item);
    if (space > lengths[item]) by_space[space - lengths[item]].push_back(bin);
  }
  return bins;
}

}  // namespace shardtune::data
