#include "chrome_trace.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "shardtune/io/files.h"

namespace shardtune::train::plan {
namespace {

using nlohmann::ordered_json;

constexpr int kProcess = 0;
constexpr std::array<const char*, kNumStreams> kThreadNames = {"compute", "all-gather", "exchange", "control"};

ordered_json name_event(const char* what, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

/// The unit of the format.
double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

ordered_json complete_event(const Span& span, const Trace& trace) {
  const std::string kind(span.kind);
  const std::string& phase = trace.phases.at(span.phase);
  // Both ends are rounded, not the duration: a viewer nests spans of which one begins before the other has ended.
  const std::int64_t begin = nanoseconds(span.begin_seconds), end = nanoseconds(span.end_seconds);
  return {{"name", phase.empty() ? kind : phase + ": " + kind},
          {"cat", kind},
          {"ph", "X"},
          {"pid", kProcess},
          {"tid", static_cast<int>(span.stream)},
          {"ts", microseconds(begin)},
          {"dur", microseconds(end - begin)},
          {"args", {{"phase", phase}, {"flops", span.flops}, {"bytes", span.bytes}}}};
}

}  // namespace

void write_chrome_trace(const std::filesystem::path& path, const Trace& trace, const std::string& device) {
  const ordered_json about = {
      {"estimate", "times were computed from shapes and assumed hardware figures, not measured"}, {"device", device}};
  // Event by event, one a line: a tree of a whole step would be many times the size of its text.
  std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": " + about.dump() + ", \"traceEvents\": [\n";
  text += name_event("process_name", 0, "shardtune plan (estimate, " + device + ")").dump();
  for (std::size_t thread = 0; thread < kNumStreams; ++thread) {
    const int number = static_cast<int>(thread);
    text += ",\n" + name_event("thread_name", number, kThreadNames[thread]).dump();
    text += ",\n" + ordered_json{{"name", "thread_sort_index"},
                                 {"ph", "M"},
                                 {"pid", kProcess},
                                 {"tid", number},
                                 {"args", {{"sort_index", number}}}}
                        .dump();
  }
  for (const Span& span : trace.spans) text += ",\n" + complete_event(span, trace).dump();
  text += "\n]}\n";
  io::write_file_atomic(path, text);
}

}  // namespace shardtune::train::plan
