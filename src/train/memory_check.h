#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shardtune/train/run.h"

namespace shardtune::train {

/// Plans this rank's part of a run whose rows are known and whose weights are not read yet, and compares it with the memory
/// that is free on the node. Counted is the least that the options allow: with --activation_policy auto no layer keeps its
/// intermediates. AgreedError(kUsage) on all ranks when one has less than its plan needs. Takes the longest rows together,
/// so a run may need less. Nothing is checked where nodes have different numbers of ranks. Collective.
void refuse_what_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set);

/// The same for the evaluation of a run whose rows are known: of each rank the batch with the most tokens counts.
/// AgreedError(kUsage) with the parts and the options that make the largest one smaller. Collective.
void refuse_evaluation_that_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set);

/// The same for generation from prompts of these lengths, by request.
void refuse_generation_that_cannot_fit(const Run& run, const std::set<std::string>& explicitly_set,
                                       const std::vector<std::int64_t>& prompt_tokens);

}  // namespace shardtune::train
