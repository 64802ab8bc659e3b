#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shardtune/model/config.h"
#include "shardtune/model/linear.h"
#include "shardtune/quant/format.h"

namespace shardtune::adapters {

/// What a LoRA adapter is: which modules, rank, scale, dropout. A small value, made once.
struct LoraConfig {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  bool rank_stabilised = false;
  std::set<std::string> modules;  ///< full module names
  std::optional<quant::Format> base_format{};  ///< in which the linears of the layers are stored; the head's never is

  /// alpha / r, or alpha / sqrt(r) when rank-stabilised (rsLoRA).
  double scaling() const;
};

/// All linear modules of the layers and the head, as PEFT sees the model: candidates for targets.
std::vector<std::string> linear_modules(const model::ModelConfig& config);

/// Resolves --lora_target_modules as PEFT does: "all-linear" (any case) is every linear of the layers, never the head; a list
/// entry matches a full module name or a dotted suffix; a text with a character that no module name has is one regular
/// expression (PCRE2, limited in length, nesting and steps) and must match the whole name. Unlike PEFT a list entry that
/// matches nothing is refused, and so is one that names a module that is no linear: Error(kUsage) with near names.
std::set<std::string> resolve_targets(const std::string& targets, const model::ModelConfig& config);

/// y = x W^T + scaling * (dropout(x) A^T) B^T for the modules in `config`, plain frozen linears for the others. The base is
/// frozen; A [r, in] and B [out, r] take part in the type they are gathered in, with sums in fp32. Only x is kept for
/// backward; dropped copies are made again from the key. Source: Hu et al., LoRA; PEFT's LoraLayer.
model::LinearGroupFactory lora_linear_factory(const LoraConfig& config);

}  // namespace shardtune::adapters
