#pragma once
#include <initializer_list>
#include <string_view>

#include "validate.h"

namespace shardtune::options {

/// For an option that is given and would do nothing, because `conditions` are as they are. True when one of them comes from a
/// stronger place than the option: then it has its default again and is marked as without effect. False when the option is as
/// strong, which is a mistake of whoever wrote it.
bool turn_off(Winners& winners, std::string_view name, std::initializer_list<std::string_view> conditions,
              RunOptions& options);

/// gradient_checkpointing, activation_policy and memory_budget_gib say one thing together: of what contradicts, the
/// stronger place counts. What comes from one place is left to the reader of the policies, who refuses it.
void settle_activations(Winners& winners, RunOptions& options);

}  // namespace shardtune::options
