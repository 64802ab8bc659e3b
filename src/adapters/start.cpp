#include "shardtune/adapters/start.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>

#include "quantised_weight.h"
#include "shardtune/core/dora.h"
#include "shardtune/core/error.h"

namespace shardtune::adapters {
namespace {

constexpr std::string_view kMagnitude = ".lora_magnitude_vector";

std::size_t slot_of(const model::UnitSpec& spec, const std::string& name, const std::string& adapter) {
  const auto found = std::ranges::find_if(
      spec.parameters, [&](const model::Parameter& one) { return one.name == name && one.adapter == adapter; });
  SHARDTUNE_CHECK(found != spec.parameters.end(), "no parameter '{}' in unit '{}'", name, spec.name);
  return static_cast<std::size_t>(found - spec.parameters.begin());
}

}  // namespace

bool starts_from_base(const LoraConfig& lora) { return lora.start.starts_with("pissa") || lora.start == "olora"; }

std::string start_name(const std::string& adapter) { return adapter + "/start"; }

LoraConfig frozen_start(const LoraConfig& lora) {
  LoraConfig start = lora;
  start.name = start_name(lora.name);
  start.alpha = -lora.alpha;
  for (auto& [module, alpha] : start.alphas) alpha = -alpha;
  start.dropout = 0;
  // The adapter on an embedding starts at zero, as in PEFT.
  start.modules.erase(kEmbedding);
  start.saved_modules.clear();
  return start;
}

LoraConfig with_start_inside(const LoraConfig& lora) {
  LoraConfig both = lora;
  const double growth = lora.rank_stabilised ? std::numbers::sqrt2 : 2;  // alpha / sqrt(r) or alpha / r stays
  both.rank *= 2;
  both.alpha *= growth;
  for (auto& [key, rank] : both.rank_pattern) rank *= 2;
  for (auto& [module, rank] : both.ranks) rank *= 2;
  for (auto& [key, alpha] : both.alpha_pattern) alpha *= growth;
  for (auto& [module, alpha] : both.alphas) alpha *= growth;
  both.start = "true";
  return both;
}

namespace {

Factors singular_factors(const at::Tensor& u, const at::Tensor& s, const at::Tensor& vh, std::int64_t rank,
                         double scaling) {
  const at::Tensor roots = at::div(s.narrow(0, 0, rank), scaling).sqrt_();
  return {.a = at::mul(vh.narrow(0, 0, rank), roots.unsqueeze(1)),
          .b = at::mul(u.narrow(1, 0, rank), roots.unsqueeze(0))};
}

at::Tensor orthonormal(const at::Tensor& columns) { return std::get<0>(at::linalg_qr(columns)); }

Factors iterated_factors(const at::Tensor& weight, std::int64_t rank, double scaling, std::int64_t iterations,
                         const FillNormal& fill_normal) {
  const bool wide = weight.size(0) < weight.size(1);
  const at::Tensor tall = wide ? weight.t() : weight;
  at::Tensor start = at::empty({tall.size(1), rank}, at::kFloat);
  fill_normal(start);
  at::Tensor q = orthonormal(at::matmul(tall, start));
  for (std::int64_t i = 0; i < iterations; ++i) q = orthonormal(at::matmul(tall, orthonormal(at::matmul(tall.t(), q))));
  const auto [u, s, vh] = at::linalg_svd(at::matmul(q.t(), tall), /*full_matrices=*/false);
  const at::Tensor left = at::matmul(q, u);
  return wide ? singular_factors(vh.t(), s, left.t(), rank, scaling) : singular_factors(left, s, vh, rank, scaling);
}

}  // namespace

Factors start_factors(const at::Tensor& weight, const LoraConfig& lora, const std::string& module,
                      const FillNormal& fill_normal) {
  constexpr std::string_view kIterated = "pissa_niter_";
  // A copy in any case: products of small matrices may depend on where their memory begins, and a gathered weight begins
  // elsewhere than one that is this rank's own.
  const at::Tensor wide = weight.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const std::int64_t rank = lora.rank_of(module);
  const double scaling = lora.scaling_of(module);
  if (lora.start.starts_with(kIterated))
    return iterated_factors(wide, rank, scaling, std::stoll(lora.start.substr(kIterated.size())), fill_normal);
  if (lora.start == "olora") {
    const auto [q, r] = at::linalg_qr(wide);
    return {.a = r.narrow(0, 0, rank).contiguous(), .b = q.narrow(1, 0, rank).contiguous()};
  }
  const auto [u, s, vh] = at::linalg_svd(wide, /*full_matrices=*/false);
  return singular_factors(u, s, vh, rank, scaling);
}

void check_start_ranks(const LoraConfig& lora, const std::vector<model::UnitSpec>& units) {
  for (const model::UnitSpec& unit : units)
    for (const model::Parameter& parameter : unit.parameters) {
      if (parameter.adapter != lora.name || parameter.shape.size() != 2) continue;
      // The rank is the smaller side unless it is more than the module has.
      const bool a = parameter.name.ends_with(".lora_A.weight");
      if (!a && !parameter.name.ends_with(".lora_B.weight")) continue;
      const std::int64_t rank = parameter.shape[a ? 0 : 1], side = parameter.shape[a ? 1 : 0];
      if (rank > side)
        fail(ErrorClass::kUsage,
             "--init_lora_weights {}: rank {} is more than the {} {} of {} have; lower --lora_r, or give that module "
             "another with --rank_pattern",
             lora.start, rank, side, a ? "columns" : "rows", parameter.name.substr(0, parameter.name.size() - 14));
    }
}

at::Tensor base_weight(const model::UnitSpec& spec, const model::UnitTensors& stage, const std::string& module,
                       const LoraConfig& config, at::ScalarType compute) {
  const std::size_t base = slot_of(spec, module + ".weight", "");
  const std::vector<std::int64_t>& shape = spec.parameters[base].shape;
  const at::Tensor& weight = stage.weights[base];
  if (spec.parameters[base].packed_bytes == 0) return weight;
  return dequantised(weight, *config.base_format, shape[0], shape[1], compute);
}

at::Tensor start_magnitude(const model::UnitSpec& spec, const model::UnitTensors& stage, std::size_t slot,
                           const LoraConfig& config, at::ScalarType compute) {
  const std::string& name = spec.parameters[slot].name;
  const std::string module = name.substr(0, name.size() - kMagnitude.size());
  return ops::merged_row_norms(base_weight(spec, stage, module, config, compute),
                               {.a = stage.weights[slot_of(spec, module + ".lora_A.weight", config.name)],
                                .b = stage.weights[slot_of(spec, module + ".lora_B.weight", config.name)],
                                .scaling = config.scaling_of(module)});
}

}  // namespace shardtune::adapters
