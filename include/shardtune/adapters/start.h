#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardtune/adapters/lora.h"

/// How new adapters begin where that depends on the base's weights.
///
/// PiSSA and OLoRA: PEFT takes the start factors A0, B0 of an adapter out of the base and trains A, B over what is left of it,
/// W - scaling * B0 A0. Here the base stays as it is, shared and maybe quantised, and A0, B0 are a second, frozen adapter of the
/// scale -scaling and without dropout, which takes part whenever the trained one does: the same function.
namespace shardtune::adapters {

/// Whether the adapter begins with factors of the base's weights: init_lora_weights pissa, pissa_niter_N or olora.
bool starts_from_base(const LoraConfig& lora);

/// The name of the frozen second adapter; no user can give it, as names hold no slash.
std::string start_name(const std::string& adapter);

/// What the second adapter of `lora` is.
LoraConfig frozen_start(const LoraConfig& lora);

/// What the adapter of a PEFT folder is that does as `lora` and its frozen start together, over the base as it is: of twice the
/// rank and the same scale.
LoraConfig with_start_inside(const LoraConfig& lora);

struct Factors {
  at::Tensor a, b;  ///< A0 [r, in], B0 [out, r], fp32
};

/// Fills a tensor [rows, columns] with numbers that are normally distributed, the same for the same module.
using FillNormal = std::function<void(const at::Tensor& numbers)>;

/// A0 and B0 of a weight [out, in] of any dense type. pissa: r singular vectors of the largest singular values, each times the
/// root of value / scaling. pissa_niter_N: the same by subspace iteration from r random vectors (Halko et al., 2009, algorithms
/// 4.4 and 5.1, as torch.svd_lowrank). olora: the first r columns of Q and rows of R. Works in fp32 on a copy; signs are those that
/// LAPACK chooses. Source: PEFT 0.21, pissa_init and olora_init.
Factors start_factors(const at::Tensor& weight, const LoraConfig& lora, const std::string& module,
                      const FillNormal& fill_normal);

/// The weight [out, in] of a module in a gathered stage, dequantised to `compute` where it is quantised.
at::Tensor base_weight(const model::UnitSpec& spec, const model::UnitTensors& stage, const std::string& module,
                       const LoraConfig& config, at::ScalarType compute);

/// Error(kUsage) when a module of the adapter has fewer rows or columns than `lora` wants factors of.
void check_start_ranks(const LoraConfig& lora, const std::vector<model::UnitSpec>& units);

/// The start of the DoRA magnitude in `slot` of a gathered stage: the norms [out] of the rows of the base's weight, dequantised
/// to `compute`, plus scaling * B A. Computed from whole rows, so the same on every rank.
at::Tensor start_magnitude(const model::UnitSpec& spec, const model::UnitTensors& stage, std::size_t slot,
                           const LoraConfig& config, at::ScalarType compute);

}  // namespace shardtune::adapters
