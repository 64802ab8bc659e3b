#include "shardtune/adapters/embedding.h"

#include <ATen/ATen.h>

#include "shardtune/core/ops.h"
#include "token_rows.h"

namespace shardtune::adapters {
namespace {

/// What backward needs of one adapter, in this order.
enum Saved : std::size_t { kLow, kB, kSavedTensors };

class LoraEmbedding : public model::EmbeddingAdapter, public AdapterHost {
 public:
  LoraEmbedding(const model::ModelConfig& model)
      : vocab_size_(model.vocab_size), width_(model.hidden_size), padding_(model.padding_index) {}

  std::string weight() const override { return std::string(kEmbedding) + ".weight"; }

  void add(const LoraConfig& config, model::UnitSpec& unit) override {
    if (!config.modules.contains(kEmbedding)) return;
    const std::int64_t rank = config.rank_of(kEmbedding);
    adapters_.push_back({.name = config.name,
                         .scaling = config.scaling_of(kEmbedding),
                         .a = unit.add({.name = std::string(kEmbedding) + ".lora_embedding_A",
                                        .shape = {rank, vocab_size_},
                                        .trainable = true,
                                        .adapter = config.name,
                                        .initial = model::Initial::kZero}),
                         .b = unit.add({.name = std::string(kEmbedding) + ".lora_embedding_B",
                                        .shape = {width_, rank},
                                        .trainable = true,
                                        .adapter = config.name,
                                        .initial = model::Initial::kUnitNormal})});
  }

  void remove(const std::string& name) override {
    std::erase_if(adapters_, [&](const Adapter& one) { return one.name == name; });
  }

  void apply(at::Tensor& x, const at::Tensor& ids, const model::UnitTensors& unit,
             std::vector<at::Tensor>* saved) const override {
    if (saved != nullptr) saved->assign(adapters_.size() * kSavedTensors, {});
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      const at::Tensor &a = unit.weights[adapters_[i].a], &b = unit.weights[adapters_[i].b];
      if (!a.defined()) continue;
      const at::Tensor low = ops::take_rows(a.t().contiguous(), ids);  // [N, R]
      x.add_(ops::linear(low, b), adapters_[i].scaling);
      if (saved == nullptr) continue;
      (*saved)[i * kSavedTensors + kLow] = low;
      // B is let go with the unit, and backward does not gather it again.
      (*saved)[i * kSavedTensors + kB] = b.clone();
    }
  }

  void backward(at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor> saved,
                model::UnitTensors& unit) const override {
    if (saved.size() != adapters_.size() * kSavedTensors) return;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
      at::Tensor &a = unit.gradients[adapters_[i].a], &b = unit.gradients[adapters_[i].b];
      const at::Tensor &low = saved[i * kSavedTensors + kLow], &factor = saved[i * kSavedTensors + kB];
      if (!a.defined() || !low.defined()) continue;
      const at::Tensor scaled = gradient.to(at::kFloat).mul_(adapters_[i].scaling);
      ops::add_weight_gradient(b, scaled, low.to(at::kFloat));
      const at::Tensor of_low = ops::matmul(scaled, factor.to(at::kFloat));
      at::Tensor by_word = at::zeros({a.size(1), a.size(0)}, a.options());
      ops::add_embedding_gradient(by_word, of_low, ids, padding_);
      a.add_(by_word.t());
    }
  }

 private:
  struct Adapter {
    std::string name;
    double scaling = 1;
    std::size_t a = 0, b = 0;  ///< slots
  };

  std::int64_t vocab_size_, width_, padding_;
  std::vector<Adapter> adapters_;  ///< in the order in which they were added
};

}  // namespace

model::EmbeddingAdapterFactory embedding_adapter_factory(const LoraConfig& config,
                                                         const std::shared_ptr<AdapterHosts>& hosts) {
  if (const auto tokens = config.token_rows.find(kEmbedding); tokens != config.token_rows.end())
    return [name = config.name, rows = tokens->second](model::UnitSpec& unit, const model::ModelConfig& model) {
      return make_token_rows(unit, model, name, rows);
    };
  if (!hosts && !config.modules.contains(kEmbedding)) return {};
  return [config, hosts](model::UnitSpec& unit, const model::ModelConfig& model) {
    auto embedding = std::make_unique<LoraEmbedding>(model);
    embedding->add(config, unit);
    if (hosts) hosts->push_back(embedding.get());
    return embedding;
  };
}

}  // namespace shardtune::adapters
