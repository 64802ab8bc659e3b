#pragma once
#include <cstdint>
#include <vector>

#include "shardtune/fsdp/sharded_model.h"

namespace shardtune::fsdp {

/// When units are gathered, fetched ahead, kept and let go while a step walks forward over the units, turns at the last one
/// (which holds the head: its backward follows its forward at once) and walks back. Whoever reads this file sees every
/// gather of a step. All functions are collective.
///
/// Units of layers that backward needs again:   after forward        in backward
///   Reshard::kAfterForward (FULL_SHARD)         let go, but for      gathered again
///                                               the last one
///   Reshard::kToInnerGroup                      spread               gathered over the inner group
///   Reshard::kAfterBackward (SHARD_GRAD_OP)     kept                 there
/// The embedding's values are not needed in backward, but a tied head needs them at the turn: a second gather where units are
/// let go, none where they are kept.
///
/// A table in pieces of rows is gathered piece after piece, each let go before the next is needed: the embedding's in forward, the
/// head's at the turn. The next piece is fetched ahead where a buffer is free.
class Schedule {
 public:
  /// Units of the pieces, in order; empty: the table is one unit's, or lies in the unit of the layers.
  struct Pieces {
    std::vector<std::size_t> table, head;
  };
  /// `tied`: the head uses the embedding's table as a whole.
  Schedule(ShardedModel& model, const Policy& policy, bool tied, Pieces pieces = {});

  const Pieces& pieces() const { return pieces_; }
  /// In place of enter_forward() and leave_forward() of the embedding; i counts the pieces.
  void enter_table_piece(std::size_t i);
  void leave_table_piece(std::size_t i);
  /// Between enter_turn() and leave_turn().
  void enter_head_piece(std::size_t i);
  void leave_head_piece(std::size_t i);

  /// `training`: backward will follow. Evaluation lets every unit go.
  void enter_forward(std::size_t unit);
  void leave_forward(std::size_t unit, bool training);
  /// Instead of leave_forward() and leave_turn() where forward passes follow one another (generation): SHARD_GRAD_OP keeps the
  /// units that have a gather buffer of their own, until end_passes().
  void leave_pass(std::size_t unit);
  void leave_turn_of_pass();
  void end_passes();
  void enter_turn();
  void leave_turn();
  /// The first unit that runs forward again before backward of `unit`, because inputs of its layers were not kept; `unit`
  /// itself when none does. The units from there to the one before `unit` are entered and left in order, then comes
  /// enter_backward(unit).
  std::size_t runs_again_from(std::size_t unit) const;
  void enter_again(std::size_t unit, std::size_t before);
  void leave_again(std::size_t unit, std::size_t before);
  void enter_backward(std::size_t unit);
  void leave_backward(std::size_t unit);

 private:
  bool has_layers(std::size_t unit) const;
  /// The last unit before the turn, which is the first of backward.
  bool turns_next(std::size_t unit) const { return unit + 1 == last_; }
  void prefetch_before(std::size_t unit);
  /// Whether the unit stays from one forward pass to the next. Without a tied head, embedding and head share one buffer.
  bool stays(std::size_t unit) const;
  std::int64_t first_layer(std::size_t unit) const;

  ShardedModel& model_;
  Policy policy_;
  Pieces pieces_;
  std::size_t last_, table_;  ///< the units of the head and of the embedding
  bool table_apart_;  ///< the head needs the embedding's table, and that lies in another unit
};

}  // namespace shardtune::fsdp
