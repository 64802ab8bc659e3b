#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardtune::model {

/// Where a parameter's first values come from.
enum class Initial {
  kBase,  ///< the model folder
  kLoraA,  ///< Kaiming-uniform with a = sqrt(5): uniform in +-1/sqrt(in)
  kNormal,  ///< normal with standard deviation 1/rows
  kZero,
  kUnitNormal,  ///< normal with standard deviation 1
  kDerived,  ///< computed from the base's weights once they are loaded
};

/// One tensor of the model or of its adapter.
struct Parameter {
  std::string name;  ///< as in the model's files, or MODULE.lora_A.weight for adapters
  std::vector<std::int64_t> shape;
  bool trainable = false;
  std::string adapter{};  ///< name of the adapter that it belongs to; "": the model itself
  /// Slot in the unit of the model's own weight in whose place this one is used while it is gathered: the copy that an adapter
  /// trains (modules_to_save). -1: none.
  std::int64_t replaces = -1;
  bool absent = false;  ///< of an adapter that was deleted: the slot stays, so that others keep theirs
  bool decay = true;  ///< weight decay applies (not to norm weights)
  bool embedding = false;  ///< a table that rows are taken from
  Initial initial = Initial::kBase;
  std::string base_name{};  ///< the tensor in the model's files with its first values; "": `name`
  /// Rows that tensor has when it is shorter than this one (a grown vocabulary): the others start as the mean row. 0: all.
  std::int64_t rows_in_base = 0;
  std::vector<std::int64_t> base_rows{};  ///< rows of that tensor that this one starts as, when not all
  /// The head's weight of a tied model: the slot exists here, the tensor, its shard and its state belong to the embedding unit.
  bool borrowed = false;
  /// Bytes of a frozen parameter that is stored quantised: its full tensor is then these bytes in one dimension. 0: the
  /// elements themselves are stored.
  std::int64_t packed_bytes = 0;
  /// Of a piece of rows of a table: the table's rows and the first that is here. 0: this is the whole tensor.
  std::int64_t table_rows = 0, first_row = 0;

  std::int64_t elements() const;
  const std::string& name_in_base() const { return base_name.empty() ? name : base_name; }
  /// Elements of the tensor in the model's files before this parameter's, and that tensor's shape.
  std::int64_t first_element() const;
  std::vector<std::int64_t> file_shape() const;
};

/// A unit of sharding: the embedding, one decoder layer, or final norm + head. Slots index `parameters`.
struct UnitSpec {
  std::string name;
  std::vector<Parameter> parameters;
  /// Rows of a table that are gathered apart from the stage that uses them. Such units stand behind the head.
  bool further_piece = false;

  std::size_t add(Parameter parameter) {
    parameters.push_back(std::move(parameter));
    return parameters.size() - 1;
  }
};

/// The stage of final norm and head: the last one that is no further piece.
std::size_t head_stage(const std::vector<UnitSpec>& units);

/// Of a model with its adapters; what is borrowed counts once, with its owner.
struct WeightCounts {
  std::int64_t total = 0, trained = 0;
  std::int64_t trained_tensors = 0;
};
WeightCounts count_weights(const std::vector<UnitSpec>& units);

/// The full tensors of one gathered unit, by slot. Valid from unshard to reshard; owned by the engine's gather buffers.
struct UnitTensors {
  std::vector<at::Tensor> weights;
  /// fp32 sums of this micro-batch's gradients, for trainable slots while the unit is in backward; undefined otherwise.
  std::vector<at::Tensor> gradients;
};

}  // namespace shardtune::model
