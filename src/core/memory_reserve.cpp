#include "shardtune/core/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace shardtune {
namespace {

/// Below the size from which the C library maps memory of its own: the space goes back to the heap, where small pieces can be
/// taken from it.
constexpr std::size_t kReserveBytes = 96 << 10;
std::atomic<void*> reserve = nullptr;

void give_back_and_throw() {
  std::free(reserve.exchange(nullptr));
  throw std::bad_alloc();
}

}  // namespace

void reserve_memory_for_errors() {
  void* memory = std::malloc(kReserveBytes);
  // Touched, so that the pages are really there.
  if (memory) std::memset(memory, 1, kReserveBytes);
  std::free(reserve.exchange(memory));
  std::set_new_handler(give_back_and_throw);
}

void require_memory(std::size_t bytes) {
  // Through malloc: the compiler may leave out a new that is followed by its delete.
  void* volatile memory = std::malloc(bytes);
  if (!memory) give_back_and_throw();
  std::free(memory);
}

}  // namespace shardtune
