#pragma once
#include "shardtune/fsdp/schedule.h"
#include "shardtune/model/llama.h"

namespace shardtune::train {

/// The units of table and head that are gathered piece by piece.
fsdp::Schedule::Pieces pieces_of(const model::LlamaModel& model, const fsdp::ShardedModel& shards);

}  // namespace shardtune::train
