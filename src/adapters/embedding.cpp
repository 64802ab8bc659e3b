#include "shardtune/adapters/embedding.h"

#include <ATen/ATen.h>

#include "shardtune/core/ops.h"

namespace shardtune::adapters {
namespace {

/// What backward needs, in this order.
enum Saved : std::size_t { kLow, kB, kSavedTensors };

class LoraEmbedding : public model::EmbeddingAdapter {
 public:
  LoraEmbedding(model::UnitSpec& unit, const model::ModelConfig& model, const std::string& name, std::int64_t rank,
                double scaling)
      : scaling_(scaling), padding_(model.padding_index),
        a_(unit.add({.name = std::string(kEmbedding) + ".lora_embedding_A",
                     .shape = {rank, model.vocab_size},
                     .trainable = true,
                     .adapter = name,
                     .initial = model::Initial::kZero})),
        b_(unit.add({.name = std::string(kEmbedding) + ".lora_embedding_B",
                     .shape = {model.hidden_size, rank},
                     .trainable = true,
                     .adapter = name,
                     .initial = model::Initial::kUnitNormal})) {}

  void apply(at::Tensor& x, const at::Tensor& ids, const model::UnitTensors& unit,
             std::vector<at::Tensor>* saved) const override {
    const at::Tensor &a = unit.weights[a_], &b = unit.weights[b_];
    if (!a.defined()) return;
    const at::Tensor low = ops::take_rows(a.t().contiguous(), ids);  // [N, R]
    x.add_(ops::linear(low, b), scaling_);
    // B is let go with the unit, and backward does not gather it again.
    if (saved != nullptr) *saved = {low, b.clone()};
  }

  void backward(at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor> saved,
                model::UnitTensors& unit) const override {
    at::Tensor &a = unit.gradients[a_], &b = unit.gradients[b_];
    if (!a.defined() || saved.size() != kSavedTensors) return;
    const at::Tensor scaled = gradient.to(at::kFloat).mul_(scaling_);
    ops::add_weight_gradient(b, scaled, saved[kLow].to(at::kFloat));
    const at::Tensor of_low = ops::matmul(scaled, saved[kB].to(at::kFloat));
    at::Tensor by_word = at::zeros({a.size(1), a.size(0)}, a.options());
    ops::add_embedding_gradient(by_word, of_low, ids, padding_);
    a.add_(by_word.t());
  }

 private:
  double scaling_;
  std::int64_t padding_;
  std::size_t a_, b_;
};

}  // namespace

model::EmbeddingAdapterFactory embedding_adapter_factory(const LoraConfig& config) {
  if (!config.modules.contains(kEmbedding)) return {};
  return [name = config.name, rank = config.rank_of(kEmbedding), scaling = config.scaling_of(kEmbedding)](
             model::UnitSpec& unit, const model::ModelConfig& model) {
    return std::make_unique<LoraEmbedding>(unit, model, name, rank, scaling);
  };
}

}  // namespace shardtune::adapters
