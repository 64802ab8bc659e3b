#include "shardtune/core/ledger_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <new>

#include "ledger_cuda.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ledger.h"

namespace shardtune::ops {
namespace {

/// Rides with an allocation: a release may happen anywhere.
struct Record {
  Purpose purpose;
  std::int64_t bytes;
};

Record* new_record(void* place, std::size_t bytes) {
  auto* record = new (place) Record{LedgerScope::current(), static_cast<std::int64_t>(bytes)};
  ledger().add(record->purpose, record->bytes);
  return record;
}

/// On the CPU the record lies in front of the memory: libraries that LibTorch calls take the address itself for the context. As
/// long as the alignment of LibTorch's allocations.
constexpr std::size_t kFront = 64;
static_assert(sizeof(Record) <= kFront);

Record* record_before(void* data) { return reinterpret_cast<Record*>(static_cast<std::byte*>(data) - kFront); }

void release_cpu(void* data) {
  Record* record = record_before(data);
  ledger().add(record->purpose, -record->bytes);
  c10::free_cpu(record);
}

class CpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const front = c10::alloc_cpu(bytes + kFront);
    new_record(front, bytes);
    void* const data = static_cast<std::byte*>(front) + kFront;
    return {data, data, &release_cpu, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void release_meta(void* context) {
  auto* record = static_cast<Record*>(context);
  ledger().add(record->purpose, -record->bytes);
  delete record;
}

/// The record is all there is.
class MetaAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* record = new_record(::operator new(sizeof(Record)), bytes);
    return {nullptr, record, &release_meta, c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_meta; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

}  // namespace

void install_ledger(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) return watch_cuda_allocations();
  SHARDTUNE_CHECK(type == c10::DeviceType::CPU || type == c10::DeviceType::Meta, "no ledger for this kind of device");
  // Above every allocator that LibTorch registers itself.
  constexpr std::uint8_t kPriority = 255;
  static CpuAllocator cpu;
  static MetaAllocator meta;
  if (type == c10::DeviceType::CPU) c10::SetAllocator(type, &cpu, kPriority);
  else c10::SetAllocator(type, &meta, kPriority);
}

void book(const at::Tensor& tensor, Purpose purpose) {
  if (!tensor.defined()) return;
  if (tensor.is_cuda()) return book_cuda(tensor, purpose);
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  Record* record = nullptr;
  if (memory.get_deleter() == &release_cpu) record = record_before(memory.get_context());
  else if (memory.get_deleter() == &release_meta) record = static_cast<Record*>(memory.get_context());
  if (record == nullptr) return;
  ledger().move(record->purpose, purpose, record->bytes);
  record->purpose = purpose;
}

}  // namespace shardtune::ops
