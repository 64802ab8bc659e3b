#pragma once
#include <memory>

#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

/// One rank alone, without MPI: every collective is a copy. The reference that runs on more ranks are compared with.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace shardtune::comm
