#pragma once
#include <filesystem>
#include <string>

#include "timeline.h"

namespace shardtune::train::plan {

/// The spans as a JSON file in the Trace Event Format that Perfetto and chrome://tracing open: one process, a thread for each
/// stream, a complete event for each span, in whole nanoseconds. The file says that its times are an estimate for `device`.
/// Replaces an older file. Error(kBadStorage) when it cannot be written.
void write_chrome_trace(const std::filesystem::path& path, const Trace& trace, const std::string& device);

}  // namespace shardtune::train::plan
