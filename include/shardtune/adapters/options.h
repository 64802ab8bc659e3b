#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace shardtune::adapters {

struct AdapterOptions {
  bool use_peft_lora = false;
  std::int64_t lora_r = 8;
  double lora_alpha = 16;
  double lora_dropout = 0.1;
  std::string adapter_dtype = "float32";  ///< float32 | bfloat16: in the step and in the adapter's file
  /// "all-linear" (any case), a comma-separated list of module names or dotted suffixes, or one regular expression (a
  /// text with a character that no module name has) matched against the full module name.
  std::string lora_target_modules = "q_proj,k_proj,v_proj,o_proj,down_proj,up_proj,gate_proj";
  std::string exclude_modules;  ///< the same form: of the targets, those that get none
  std::string layers_to_transform;  ///< comma-separated numbers of layers: targets in these alone; "": in all
  std::string layers_pattern;  ///< comma-separated names that stand before the layer's number; "": any
  /// Values for modules by regular expression, as JSON object or KEY=VALUE,...: "q_proj=4,layers.0.mlp.up_proj=2".
  std::string rank_pattern, alpha_pattern;
  std::string lora_modules_to_save;  ///< comma-separated: modules that are trained whole, "": none
  bool ensure_weight_tying = false;
  std::string trainable_token_indices;  ///< comma-separated tokens whose rows of the embedding are trained, "": none
  bool use_rslora = false;
  bool use_dora = false;
  std::string lora_bias = "none";  ///< none | all | lora_only
  std::string init_lora_weights = "true";  ///< true | false | gaussian | pissa | pissa_niter_N | olora
  std::string other_adapters;  ///< NAME=FOLDER, ...: adapters that take part beside the first one, frozen
  std::string adapter_name_or_path;  ///< PEFT folder to start from, "" for a new adapter
};

}  // namespace shardtune::adapters
