#pragma once
#include <string>

#include "shardtune/adapters/peft_folder.h"

namespace shardtune::testing {

/// An adapter of the tests of several adapters.
struct Kind {
  const char* name;
  std::int64_t rank;
  double alpha;
  const char* targets;
  bool dora = false;
  const char* saved = "";
  bool tied = false;
};

inline void take_kind(adapters::AdapterOptions& options, const Kind& kind) {
  options.use_peft_lora = true;
  options.lora_r = kind.rank;
  options.lora_alpha = kind.alpha;
  options.lora_target_modules = kind.targets;
  options.lora_dropout = 0;
  options.use_dora = kind.dora;
  options.lora_modules_to_save = kind.saved;
  options.ensure_weight_tying = kind.tied;
}

inline adapters::LoraConfig config_of(const Kind& kind, const model::ModelConfig& model) {
  adapters::AdapterOptions options;
  take_kind(options, kind);
  adapters::LoraConfig config = adapters::make_lora_config(options, model);
  config.name = kind.name;
  return config;
}

}  // namespace shardtune::testing
