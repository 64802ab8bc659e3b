// In programs that are linked without LibTorch's CUDA libraries.
#include "ledger_cuda.h"
#include "shardtune/core/error.h"

namespace shardtune::ops {

void watch_cuda_allocations() {
  fail(ErrorClass::kInternal, "no ledger for CUDA: this program is linked without LibTorch's CUDA libraries");
}

void book_cuda(const at::Tensor&, Purpose) {}

}  // namespace shardtune::ops
