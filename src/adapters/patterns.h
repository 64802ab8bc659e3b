#pragma once
#include "shardtune/adapters/lora.h"

/// rank_pattern and alpha_pattern.
namespace shardtune::adapters {

/// A JSON object or KEY=VALUE,...; "" is none. Error(kUsage) with the option's name.
Pattern<std::int64_t> parse_rank_pattern(const std::string& text);
Pattern<double> parse_alpha_pattern(const std::string& text);

/// Fills ranks and alphas from the patterns. PEFT's rule: the first key that matches, as a regular expression, the full name or
/// what follows one of its dots. Error(kUsage).
void apply_patterns(LoraConfig& lora);

/// The first key that matches none of the adapter's modules, "" when each matches one.
std::string unused_key(const LoraConfig& lora);

}  // namespace shardtune::adapters
