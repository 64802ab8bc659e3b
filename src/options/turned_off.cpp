#include "turned_off.h"

#include <algorithm>

#include "value.h"

namespace shardtune::options {

bool turn_off(Winners& winners, std::string_view name, std::initializer_list<std::string_view> conditions,
              RunOptions& options) {
  Origin strongest = Origin::kDefault;
  for (const std::string_view condition : conditions)
    if (const auto found = winners.find(condition); found != winners.end())
      strongest = std::max(strongest, found->second.origin);
  Given& given = winners.at(name);
  if (strongest <= given.origin) return false;
  given.value = value_text(*given.spec, options);
  given.source += ", without effect";
  given.in_effect = false;
  // What depends on this option in turn is turned off by the same place.
  given.origin = strongest;
  set_default(*given.spec, options);
  return true;
}

void settle_activations(Winners& winners, RunOptions& options) {
  const auto is_given = [&](std::string_view name) {
    const auto found = winners.find(name);
    return found != winners.end() && found->second.in_effect;
  };
  const std::string& policy = options.model.activation_policy;
  const std::string meant = options.model.gradient_checkpointing ? "recompute" : "keep";
  if (is_given("gradient_checkpointing") && !policy.empty() && policy != meant &&
      !turn_off(winners, "activation_policy", {"gradient_checkpointing"}, options))
    turn_off(winners, "gradient_checkpointing", {"activation_policy"}, options);
  const bool automatic = policy.empty() ? !is_given("gradient_checkpointing") : policy == "auto";
  if (options.model.memory_budget_gib > 0 && !automatic)
    turn_off(winners, "memory_budget_gib", {"activation_policy", "gradient_checkpointing"}, options);
}

}  // namespace shardtune::options
