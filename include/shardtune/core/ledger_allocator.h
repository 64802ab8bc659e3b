#pragma once
#include <ATen/core/Tensor.h>

#include "shardtune/core/ledger.h"

namespace shardtune::ops {

/// From now on all memory that LibTorch allocates on this kind of device (CPU, Meta, and CUDA in builds for it) is entered in
/// the ledger, under the LedgerScope of that moment; releases go back to the same purpose wherever they happen. On Meta this is
/// the whole allocation: no memory is taken. To be called before the first tensor whose bytes matter; again it changes nothing.
void install_ledger(c10::DeviceType type);

/// The tensor's whole memory counts under `purpose` from now on. Nothing happens to an undefined tensor, or without a ledger.
void book(const at::Tensor& tensor, Purpose purpose);

}  // namespace shardtune::ops
