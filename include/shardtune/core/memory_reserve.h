#pragma once
#include <cstddef>

namespace shardtune {

/// Sets memory aside that is given back when `new` fails for the first time, so that the way out of an "out of memory"
/// (unwinding, destructors that allocate, the message) has some. Installs the process's new-handler; call once, at the start
/// of main.
void reserve_memory_for_errors();

/// Throws std::bad_alloc when this much memory is not to be had now. For use before calls into a library that crashes where an
/// allocation of its own fails.
void require_memory(std::size_t bytes);

}  // namespace shardtune
