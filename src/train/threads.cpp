#include "shardtune/train/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace shardtune::train {

int thread_share(int allowed, int online, int ranks_on_node) {
  const int share = allowed < online ? allowed : online / std::max(1, ranks_on_node);
  return std::max(1, share);
}

void choose_threads(int ranks_on_node) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : online;
  at::set_num_threads(thread_share(allowed, online, ranks_on_node));
}

}  // namespace shardtune::train
