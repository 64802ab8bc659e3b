#include "shardtune/train/threads.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

namespace shardtune::train {
namespace {

/// Which processors a rank may use, comparable over ranks.
struct Place {
  std::uint64_t host = 0;
  cpu_set_t processors{};

  bool operator==(const Place& other) const {
    return host == other.host && CPU_EQUAL(&processors, &other.processors) != 0;
  }
};

Place own_place() {
  Place place;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  place.host = std::hash<std::string>{}(name);
  CPU_ZERO(&place.processors);
  if (sched_getaffinity(0, sizeof place.processors, &place.processors) != 0) CPU_SET(0, &place.processors);
  return place;
}

}  // namespace

void keep_freed_memory() {
#if defined(__GLIBC__)
  for (const char* wish : {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"})
    if (std::getenv(wish) != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MXFAST, 0);
#endif
}

int thread_share(int allowed, int sharing) { return std::max(1, allowed / std::max(1, sharing)); }

void choose_threads(comm::Communicator& communicator) {
  const Place own = own_place();
  const std::vector<Place> all = communicator.gather_values(own);
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto sharing = static_cast<int>(std::count(all.begin(), all.end(), own));
  at::set_num_threads(thread_share(CPU_COUNT(&own.processors), sharing));
}

}  // namespace shardtune::train
