#pragma once
#include <cstddef>
#include <vector>

namespace shardtune::data {

/// Best-fit decreasing: puts items of the given lengths into bins of `capacity`. Longest first, equal lengths in order; each
/// goes to the bin with the least space that holds it, among bins of equal space to the one that has had that space for the
/// longest time, else to a new bin. Lengths are at most `capacity`; items of length 0 are left out. Returns the items of
/// each bin in the order they were put in, bins in the order they were opened. Source: the "bfd" packing of TRL.
std::vector<std::vector<std::size_t>> best_fit_decreasing(const std::vector<std::size_t>& lengths,
                                                          std::size_t capacity);

}  // namespace shardtune::data
