#include "token_rows.h"

#include <ATen/ATen.h>

#include <map>

#include "shardtune/core/ops.h"

namespace shardtune::adapters {
namespace {

class EmbeddingTokenRows : public model::EmbeddingAdapter {
 public:
  EmbeddingTokenRows(model::UnitSpec& unit, const model::ModelConfig& config, const std::string& adapter,
                     const std::vector<std::int64_t>& tokens)
      : padding_(config.padding_index) {
    rows_ = unit.add({.name = token_rows_name(kEmbedding),
                      .shape = {static_cast<std::int64_t>(tokens.size()), config.hidden_size},
                      .trainable = true,
                      .adapter = adapter,
                      .base_name = std::string(kEmbedding) + ".weight",
                      .base_rows = tokens});
    for (std::size_t k = 0; k < tokens.size(); ++k) row_of_.emplace(tokens[k], static_cast<std::int64_t>(k));
  }

  void apply(at::Tensor& x, const at::Tensor& ids, const model::UnitTensors& unit,
             std::vector<at::Tensor>*) const override {
    const at::Tensor& rows = unit.weights[rows_];
    if (!rows.defined()) return;
    for_each(ids, [&](std::int64_t n, std::int64_t, std::int64_t row) { x[n].copy_(rows[row]); });
  }

  void backward(at::Tensor& gradient, const at::Tensor& ids, std::span<const at::Tensor>,
                model::UnitTensors& unit) const override {
    at::Tensor& sink = unit.gradients[rows_];
    if (!sink.defined()) return;
    for_each(ids, [&](std::int64_t n, std::int64_t id, std::int64_t row) {
      if (id != padding_) sink[row].add_(gradient[n]);
    });
  }

 private:
  /// Calls visit(position, id, row) for the tokens that are trained.
  template <typename F>
  void for_each(const at::Tensor& ids, F visit) const {
    const auto* id = ids.const_data_ptr<std::int64_t>();
    for (std::int64_t n = 0; n < ids.numel(); ++n)
      if (const auto found = row_of_.find(id[n]); found != row_of_.end()) visit(n, id[n], found->second);
  }

  std::int64_t padding_;
  std::size_t rows_ = 0;
  std::map<std::int64_t, std::int64_t> row_of_;  ///< by token
};

class HeadTokenRows : public LinearAdapter {
 public:
  HeadTokenRows(model::UnitSpec& unit, const model::LinearSpec& head, const std::vector<std::int64_t>& tokens,
                bool shared)
      : tokens_(tokens) {
    model::Parameter rows{.name = token_rows_name(head.module),
                          .shape = {static_cast<std::int64_t>(tokens.size()), head.in},
                          .trainable = true,
                          .base_name = shared ? token_rows_name(kEmbedding) : head.module + ".weight",
                          .borrowed = shared};
    if (!shared) rows.base_rows = tokens;
    rows_ = unit.add(rows);
  }

  bool is_gathered(const model::UnitTensors& unit) const override { return unit.weights[rows_].defined(); }

  void forward(at::Tensor& y, const LinearCall& call) const override {
    const at::Tensor logits = ops::linear(call.x, rows(call));
    for (std::size_t k = 0; k < tokens_.size(); ++k)
      y.select(1, tokens_[k]).copy_(logits.select(1, static_cast<std::int64_t>(k)));
  }

  Passage pass(const at::Tensor& gradient, const LinearCall&) const override {
    at::Tensor before = gradient.clone();
    for (const std::int64_t token : tokens_) before.select(1, token).zero_();
    return {.after = gradient, .before = before, .scale = {}, .norms = {}};
  }

  void backward(const Passage& passage, const LinearCall& call, const std::function<at::Tensor()>&,
                at::Tensor& x_gradient, model::UnitTensors& unit) const override {
    std::vector<at::Tensor> columns;
    for (const std::int64_t token : tokens_) columns.push_back(passage.after.select(1, token));
    const at::Tensor of_tokens = at::stack(columns, 1);  // [N, tokens]
    ops::add_matmul(x_gradient, of_tokens, rows(call));
    if (at::Tensor& sink = unit.gradients[rows_]; sink.defined()) ops::add_weight_gradient(sink, of_tokens, call.x);
  }

 private:
  at::Tensor rows(const LinearCall& call) const { return call.unit.weights[rows_].to(call.x.scalar_type()); }

  std::vector<std::int64_t> tokens_;
  std::size_t rows_ = 0;
};

}  // namespace

std::string token_rows_name(const std::string& module) { return module + ".token_adapter.trainable_tokens_delta"; }

std::unique_ptr<model::EmbeddingAdapter> make_token_rows(model::UnitSpec& unit, const model::ModelConfig& config,
                                                         const std::string& adapter,
                                                         const std::vector<std::int64_t>& tokens) {
  return std::make_unique<EmbeddingTokenRows>(unit, config, adapter, tokens);
}

std::unique_ptr<LinearAdapter> make_head_token_rows(model::UnitSpec& unit, const model::LinearSpec& head,
                                                    const std::vector<std::int64_t>& tokens, bool shared) {
  return std::make_unique<HeadTokenRows>(unit, head, tokens, shared);
}

}  // namespace shardtune::adapters
