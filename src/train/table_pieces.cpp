// The part of the engine for an embedding table and a head that are gathered in pieces of rows.
#include <ATen/ATen.h>

#include <optional>

#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/row_pieces.h"
#include "shardtune/model/piecewise_loss.h"
#include "shardtune/train/step_engine.h"
#include "unit_pieces.h"

namespace shardtune::train {
namespace {

constexpr std::size_t kPiece = model::LlamaModel::kPieceSlot, kNorm = model::LlamaModel::kNormSlot;

}  // namespace

fsdp::Schedule::Pieces pieces_of(const model::LlamaModel& model, const fsdp::ShardedModel& shards) {
  fsdp::Schedule::Pieces pieces;
  if (shards.unit_of(0) == shards.head_unit()) return pieces;  // everything is one unit
  if (model.table_stages().size() > 1)
    for (const std::size_t stage : model.table_stages()) pieces.table.push_back(shards.unit_of(stage));
  for (const std::size_t stage : model.head_stages()) pieces.head.push_back(shards.unit_of(stage));
  return pieces;
}

void StepEngine::embed_from(std::size_t stage, Walk& walk) const {
  if (!walk.x.defined()) {
    walk.x = at::empty({walk.ids.size(0), model_.config().hidden_size},
                       at::TensorOptions().device(settings_.device).dtype(settings_.compute_type));
    ops::book(walk.x, Purpose::kStream);
  }
  ops::take_rows_of_piece(walk.x, shards_.stage(stage).weights[kPiece], walk.ids, model_.first_row(stage));
}

void StepEngine::embed_in_pieces(std::span<Walk> walks, bool training) {
  for (std::size_t i = 0; i < schedule_.pieces().table.size(); ++i) {
    schedule_.enter_table_piece(i);
    announce(training ? "forward" : "evaluation", 0);
    const LedgerScope scope(Purpose::kWorkspace);
    for (Walk& walk : walks)
      if (!walk.batch->empty()) embed_from(model_.table_stages()[i], walk);
    schedule_.leave_table_piece(i);
  }
}

template <typename F>
void StepEngine::for_each_head_piece(F use) {
  const bool apart = !schedule_.pieces().head.empty();
  for (std::size_t i = 0; i < model_.head_stages().size(); ++i) {
    if (apart) schedule_.enter_head_piece(i);
    use(model_.head_stages()[i]);
    if (apart) schedule_.leave_head_piece(i);
  }
}

void StepEngine::lose_in_pieces(std::span<Walk> walks, double scale, bool want_gradient) {
  const LedgerScope scope(Purpose::kLoss);
  if (want_gradient) announce("turn at", model_.head_unit());
  const at::Tensor norm = shards_.stage(model_.head_unit()).weights[kNorm];
  const std::int64_t groups = want_gradient ? settings_.loss_groups : 1;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::optional<model::PiecewiseLoss>> losses(walks.size());
    for (std::size_t i = 0; i < walks.size(); ++i)
      if (const Walk& walk = walks[i]; !walk.batch->empty())
        losses[i].emplace(model_.config(), walk.x, walk.batch->targets, walk.context, norm, want_gradient, group,
                          groups);
    for_each_head_piece([&](std::size_t stage) {
      for (auto& loss : losses)
        if (loss) loss->add(shards_.stage(stage).weights[kPiece], model_.first_row(stage));
    });
    for (std::size_t i = 0; i < walks.size(); ++i) {
      if (losses[i]) {
        walks[i].loss += losses[i]->finish(scale);
        walks[i].correct += losses[i]->correct();
      }
      losses[i].reset();
    }
  }
  for (Walk& walk : walks) {
    if (want_gradient) walk.gradient = walk.x;
    walk.x.reset();
  }
}

at::Tensor StepEngine::logits_of(const Walk& walk) {
  const model::UnitTensors& head = shards_.stage(model_.head_unit());
  if (!head_in_pieces()) return walk.batch->empty() ? at::Tensor() : model_.logits(walk.x, head);
  std::vector<at::Tensor> columns;
  for_each_head_piece([&](std::size_t stage) {
    if (!walk.batch->empty())
      columns.push_back(
          model::logits_of_piece(model_.config(), walk.x, head.weights[kNorm], shards_.stage(stage).weights[kPiece]));
  });
  return columns.empty() ? at::Tensor() : at::cat(columns, 1);
}

}  // namespace shardtune::train
