#pragma once
#include <set>
#include <string>
#include <vector>

#include "shardtune/train/plan.h"

namespace shardtune::train::plan {

/// Settings the search looked at, with the plan of a whole step.
struct PlannedSettings {
  options::RunOptions options;
  std::int64_t bytes = 0;  ///< needed_bytes()
  Plan plan;
};

struct Fit {
  std::vector<PlannedSettings> fastest;  ///< a few, fastest first, never empty
  std::vector<options::EffectiveOption> effective;  ///< with the first of them; source "fit" where the search chose
  std::size_t settings = 0, plans = 0;  ///< looked at, and made for that
  double seconds = 0;  ///< of the search
};

/// The fastest settings for devices with options.plan.fit_gb. Options that were given are held, but for
/// --per_device_train_batch_size and --gradient_accumulation_steps given together: their product is. The trace that
/// options.plan.trace asks for is that of the first. Error(kUsage) when nothing fits, with the least that does, and as
/// make_plan().
Fit find_fit(const options::ParseResult& parsed, const std::set<std::string>& explicitly_set);

}  // namespace shardtune::train::plan
