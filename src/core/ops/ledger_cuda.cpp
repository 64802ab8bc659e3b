#include "ledger_cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>
#include <unordered_map>

namespace shardtune::ops {
namespace {

using TraceEntry = c10::cuda::CUDACachingAllocator::TraceEntry;

struct Record {
  Purpose purpose;
  std::int64_t bytes;
};

/// By address: the caching allocator has no room in its contexts for us. The tracker is called under the allocator's lock
/// and takes only this one and the ledger's inside it.
class Records {
 public:
  void add(std::size_t address, std::size_t size) {
    const std::lock_guard lock(mutex_);
    const Record record{LedgerScope::current(), static_cast<std::int64_t>(size)};
    if (records_.insert_or_assign(address, record).second) ledger().add(record.purpose, record.bytes);
  }

  void remove(std::size_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(address);
    if (found == records_.end()) return;
    ledger().add(found->second.purpose, -found->second.bytes);
    records_.erase(found);
  }

  void book(std::size_t address, Purpose purpose) {
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(address);
    if (found == records_.end()) return;
    ledger().move(found->second.purpose, purpose, found->second.bytes);
    found->second.purpose = purpose;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::size_t, Record> records_;
};

Records& records() {
  // Never destroyed: tensors with static lifetime are released after it would be.
  static Records& instance = *new Records;
  return instance;
}

}  // namespace

void watch_cuda_allocations() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
      if (entry.action_ == TraceEntry::ALLOC) records().add(entry.addr_, entry.size_);
      // A block that another stream still uses is free for the program all the same.
      else if (entry.action_ == TraceEntry::FREE_REQUESTED) records().remove(entry.addr_);
    });
  });
}

void book_cuda(const at::Tensor& tensor, Purpose purpose) {
  records().book(reinterpret_cast<std::size_t>(tensor.storage().data()), purpose);
}

}  // namespace shardtune::ops
