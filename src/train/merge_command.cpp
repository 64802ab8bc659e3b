#include "shardtune/train/merge_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "same_everywhere.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/counted.h"
#include "shardtune/export/merge.h"
#include "shardtune/io/unfinished.h"
#include "shardtune/train/metrics.h"

namespace shardtune::train {
namespace {

using Clock = std::chrono::steady_clock;

/// What this process has resident now; its peak may have been higher before.
std::int64_t resident_bytes() {
  std::ifstream statistics("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statistics >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

/// The most that the ranks of a node took together. Collective.
std::int64_t most_of_a_node(std::int64_t bytes, comm::Communicator& communicator) {
  const auto node = communicator.split_by_node();
  const auto parts = node->gather_values(bytes);
  const auto sums = communicator.gather_values(std::reduce(parts.begin(), parts.end()));
  return *std::max_element(sums.begin(), sums.end());
}

void print_report(const exporting::MergeReport& report, const std::string& folder, double seconds, std::int64_t bytes) {
  for (const std::string& notice : report.notices) fmt::print("notice: {}\n", notice);
  fmt::print("merged into {}\n", report.base);
  if (report.untied) fmt::print("the model's tied head has a weight of its own now (tie_word_embeddings false)\n");
  fmt::print("changed {} of {}; {:.3f} GB in {}\n", report.changed, counted(report.tensors, "tensor"),
             static_cast<double>(report.bytes) / 1e9, counted(report.files, "file"));
  fmt::print("memory above that of the start: {:.1f} MB on a node at most; {:.1f} s\n",
             static_cast<double>(bytes) / 1e6, seconds);
  fmt::print("wrote the model to {}\n", folder);
  std::fflush(stdout);
}

}  // namespace

void run_merge_command(const options::ParseResult& parsed, comm::Communicator& communicator) {
  check_same_options(parsed, communicator);
  const auto start = Clock::now();
  const options::RunOptions& options = parsed.options;
  const std::set<std::string> given = options::given_names(parsed.effective);
  const exporting::MergeRequest request{
      .base = options.model.model_name_or_path,
      .adapters = options.adapter.adapter_name_or_path,
      .output = options.train.output_dir,
      .dtype = options.model.dtype,
      .quantised_by_option = given.contains("use_4bit_quantization") || given.contains("use_8bit_quantization"),
      .quant = options.quant,
      .vocabulary = options.model.resize_token_embeddings,
      .merge = options.merge};
  comm::agree_on_root(communicator, [&] {
    for (const std::filesystem::path& left : io::unfinished_siblings(options.train.output_dir))
      fmt::print(
          "notice: {} was left by a merge that was killed, or another one is writing it; remove it when none runs\n",
          left.string());
    fmt::print("merging {} into {} (base: {}) on {}\n", request.adapters, request.base.string(),
               request.merge.merge_base, counted(communicator.size(), "rank"));
    std::fflush(stdout);
  });
  const std::int64_t before = resident_bytes();
  const exporting::MergeReport report = exporting::merge(request, communicator);
  const std::int64_t bytes = most_of_a_node(peak_rss_bytes() - before, communicator);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  comm::agree_on_root(communicator, [&] { print_report(report, options.train.output_dir, seconds, bytes); });
}

}  // namespace shardtune::train
