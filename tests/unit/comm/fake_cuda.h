#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <map>
#include <string>
#include <vector>

#include "shardtune/comm/nccl.h"

namespace shardtune::testing {

/// What the calls to CUDA and NCCL in fake_cuda.cpp answer, and what they were asked. Work is done when it is queued; only the
/// answers say otherwise.
struct Fake {
  std::vector<std::string> calls;  ///< "record 2 on gather": events are numbered, streams have names
  int not_ready = 0;  ///< so many queries of events and streams answer "not yet"
  ncclResult_t taken_up = ncclSuccess;  ///< what transfers and the start of a communicator return
  int in_progress = 0;  ///< so many looks at a communicator find it busy
  ncclResult_t state = ncclSuccess;  ///< what looks find after that
  ncclResult_t send_result = ncclSuccess;
  ncclResult_t id_result = ncclSuccess;
  ncclResult_t finalise_result = ncclSuccess;
  int communicators = 0, open_groups = 0;
  std::map<int, std::vector<char>> sent;  ///< by receiver; a receive from rank r brings what was sent to r

  /// How many calls begin with `start`.
  int count(const std::string& start) const;
  /// Where the first call that begins with `start` stands; after all of them when there is none.
  std::size_t place(const std::string& start) const;
};

/// Of this process; each test begins with a new one.
Fake& fake();

/// The three streams by their names in `calls`.
comm::DeviceStreams fake_streams();

}  // namespace shardtune::testing
