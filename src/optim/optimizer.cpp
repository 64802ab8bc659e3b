#include "shardtune/optim/optimizer.h"

#include <ATen/ATen.h>

#include "adamw.h"
#include "bnb_adamw.h"
#include "parts.h"
#include "sgd.h"
#include "shardtune/core/error.h"

namespace shardtune::optim {

Optimizer::Optimizer(std::string_view name, std::vector<StateRole> roles, fsdp::ShardedModel& model)
    : model_(model), state_(roles.size(), std::vector<at::Tensor>(model.units())), name_(name),
      roles_(std::move(roles)) {}

void Optimizer::step(const std::vector<at::Tensor>& gradients, float gradient_scale, double learning_rate) {
  ++steps_;
  update(gradients, gradient_scale, learning_rate);
}

std::vector<Part> parts_of(fsdp::ShardedModel& model, std::size_t unit) {
  std::vector<Part> parts;
  fsdp::FlatShard& shard = model.trained(unit);
  shard.for_each_range([&](std::size_t slot, std::int64_t, std::int64_t, const at::Tensor& part) {
    parts.push_back({.parameter = &model.spec(unit).parameters[slot],
                     .at = part.storage_offset() - shard.local().storage_offset(),
                     .count = part.numel()});
  });
  return parts;
}

Rates rates_of(const OptimOptions& options, const model::Parameter& parameter, double learning_rate) {
  if (options.loraplus_lr_ratio == 0) return {learning_rate, parameter.decay ? options.weight_decay : 0};
  double factor = 1;
  if (parameter.name.find(".lora_embedding_") != std::string::npos)
    factor = options.loraplus_lr_embedding / options.learning_rate;
  else if (parameter.name.find(".lora_B") != std::string::npos || parameter.shape.size() == 1)
    factor = options.loraplus_lr_ratio;
  return {learning_rate * factor, options.weight_decay};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimOptions& options, fsdp::ShardedModel& model, HostMemory host) {
  const std::string& name = options.optim;
  const bool paged = host == HostMemory::kApart;
  if (name == "adamw_torch" || name == "adamw_torch_fused") return std::make_unique<AdamW>(options, model);
  if (name == "adamw_bnb_8bit" || name == "adamw_8bit")
    return std::make_unique<BnbAdamW>(BnbKind{.name = "adamw_bnb_8bit", .eight_bit = true}, options, model);
  if (name == "paged_adamw_8bit")
    return std::make_unique<BnbAdamW>(BnbKind{.name = name, .eight_bit = true, .paged = paged}, options, model);
  if (name == "paged_adamw_32bit")
    return std::make_unique<BnbAdamW>(BnbKind{.name = name, .eight_bit = false, .paged = paged}, options, model);
  if (name == "sgd") return std::make_unique<Sgd>(options, model);
  fail(ErrorClass::kInternal, "unknown optim '{}'", name);
}

}  // namespace shardtune::optim
