#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/fsdp/sharded_model.h"
#include "shardtune/io/safetensors.h"

namespace shardtune::exporting {

/// A trained parameter as a whole, without padding.
struct FullTensor {
  std::string name;
  at::Tensor value;  ///< contiguous, on the host

  io::TensorView view(const std::string& file_name) const;
};

/// The parameters of an adapter that is not trained, in full on rank 0 (empty elsewhere). Collective.
std::vector<FullTensor> gather_adapter(const std::string& name, fsdp::ShardedModel& shards,
                                       comm::Communicator& communicator, at::ScalarType type);

/// All trained parameters in full on rank 0 (empty elsewhere), unit by unit. Collective.
std::vector<FullTensor> gather_trained(fsdp::ShardedModel& shards, comm::Communicator& communicator,
                                       at::ScalarType type);

}  // namespace shardtune::exporting
