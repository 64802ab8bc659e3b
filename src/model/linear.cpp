#include "shardtune/model/linear.h"

#include <ATen/ATen.h>

#include "shardtune/core/ops.h"

namespace shardtune::model {

StepContext StepContext::tokens(std::int64_t first, std::int64_t count) const {
  StepContext out = *this;
  const auto begin = static_cast<std::size_t>(first), size = static_cast<std::size_t>(count);
  out.segments = {};
  if (!samples.empty()) out.samples = samples.subspan(begin, size);
  if (!document_positions.empty()) out.document_positions = document_positions.subspan(begin, size);
  return out;
}

StepContext StepContext::whole_segments(std::size_t first, std::size_t count_of_segments, std::int64_t first_token,
                                        std::int64_t count) const {
  StepContext out = tokens(first_token, count);
  out.segments = segments.subspan(first, count_of_segments);
  out.cosine = cosine.narrow(0, first_token, count);
  out.sine = sine.narrow(0, first_token, count);
  return out;
}

std::int64_t Parameter::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::int64_t Parameter::first_element() const { return first_row == 0 ? 0 : first_row * (elements() / shape.front()); }

std::vector<std::int64_t> Parameter::file_shape() const {
  std::vector<std::int64_t> whole = shape;
  if (table_rows > 0) whole.front() = table_rows;
  return whole;
}

std::size_t head_stage(const std::vector<UnitSpec>& units) {
  std::size_t stages = units.size();
  while (stages > 0 && units[stages - 1].further_piece) --stages;
  return stages - 1;
}

WeightCounts count_weights(const std::vector<UnitSpec>& units) {
  WeightCounts counts;
  for (const UnitSpec& unit : units)
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.borrowed) continue;
      counts.total += parameter.elements();
      if (!parameter.trainable) continue;
      counts.trained += parameter.elements();
      ++counts.trained_tensors;
    }
  return counts;
}

namespace {

class DenseLinearGroup : public LinearGroup {
 public:
  DenseLinearGroup(UnitSpec& unit, const std::vector<LinearSpec>& linears, bool trainable) {
    for (const LinearSpec& linear : linears)
      slots_.push_back(
          unit.add({.name = linear.module + ".weight", .shape = {linear.out, linear.in}, .trainable = trainable}));
  }

  std::vector<at::Tensor> forward(const at::Tensor& x, const UnitTensors& unit, const StepContext&) const override {
    std::vector<at::Tensor> outputs;
    for (const std::size_t slot : slots_) outputs.push_back(ops::linear(x, unit.weights[slot].to(x.scalar_type())));
    return outputs;
  }

  at::Tensor backward(const at::Tensor& x, std::span<const at::Tensor> gradients, UnitTensors& unit,
                      const StepContext&) const override {
    at::Tensor result;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      ops::add_matmul(result, gradients[i], unit.weights[slots_[i]].to(x.scalar_type()));
      at::Tensor& sink = unit.gradients[slots_[i]];
      if (sink.defined()) ops::add_weight_gradient(sink, gradients[i], x);
    }
    return result;
  }

 private:
  std::vector<std::size_t> slots_;
};

}  // namespace

LinearGroupFactory dense_linear_factory(bool trainable) {
  return [trainable](UnitSpec& unit, const std::vector<LinearSpec>& linears) {
    return std::make_unique<DenseLinearGroup>(unit, linears, trainable);
  };
}

}  // namespace shardtune::model
