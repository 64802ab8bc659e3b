#pragma once

namespace shardtune {

/// Sets memory aside that is given back when `new` fails for the first time, so that the way out of an "out of memory" (unwinding,
/// destructors that allocate, the message) has some. Installs the process's new-handler; call once, at the start of main.
void reserve_memory_for_errors();

}  // namespace shardtune
