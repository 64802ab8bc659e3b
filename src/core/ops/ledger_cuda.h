#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/ledger.h"

/// The ledger under LibTorch's caching allocator for CUDA, in builds that have it.
namespace shardtune::ops {

/// From now on every allocation of the process's devices is entered, as the allocator reports it: with its rounding.
void watch_cuda_allocations();

/// See book(). Nothing happens when the tensor's memory was there before watch_cuda_allocations().
void book_cuda(const at::Tensor& tensor, Purpose purpose);

}  // namespace shardtune::ops
