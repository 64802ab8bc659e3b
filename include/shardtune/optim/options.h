#pragma once
#include <cstdint>
#include <string>

namespace shardtune::optim {

struct OptimOptions {
  /// adamw_torch (adamw_torch_fused), adamw_bnb_8bit (adamw_8bit), paged_adamw_32bit, paged_adamw_8bit, sgd
  std::string optim = "adamw_torch";
  double learning_rate = 2e-5;
  std::string lr_scheduler_type = "linear";  ///< linear | cosine | constant | constant_with_warmup
  double warmup_steps = 0;  ///< steps; a number below 1 is a share of all steps, as in Transformers 5
  double weight_decay = 0.0;
  double max_grad_norm = 1.0;  ///< 0 turns clipping off
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double loraplus_lr_ratio = 0;  ///< LoRA+: learning rate of the B matrices and vectors over that of the others; 0: off
  double loraplus_lr_embedding = 1e-6;  ///< of adapters on the embedding, with LoRA+
};

}  // namespace shardtune::optim
