#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/ledger.h"

/// The ledger under LibTorch's caching allocator for CUDA. Two libraries define these functions, and a program is linked with one of
/// them: ledger_cuda.cpp, or ledger_without_cuda.cpp.
namespace shardtune::ops {

/// From now on every allocation of the process's devices is entered, as the allocator reports it: with its rounding.
/// Error(kInternal) in a program without CUDA.
void watch_cuda_allocations();

/// See book(). Nothing happens when the tensor's memory was there before watch_cuda_allocations().
void book_cuda(const at::Tensor& tensor, Purpose purpose);

}  // namespace shardtune::ops
