#include "forward_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "decoder.h"
#include "shardtune/comm/ghost.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/ops.h"
#include "shardtune/core/shape_only.h"
#include "shardtune/train/run.h"

namespace shardtune::train::plan {
namespace {

ForwardPlan plan_pass(const options::RunOptions& options, const std::set<std::string>& explicitly_set, RunKind kind,
                      const std::function<void(Run& run)>& pass) {
  ops::install_ledger(c10::DeviceType::Meta);
  ops::set_planned_platform(ops::Platform::kCpu);
  const auto world =
      comm::make_ghost_communicator(static_cast<int>(options.plan.rank), static_cast<int>(options.plan.world_size),
                                    static_cast<int>(options.plan.ranks_per_node));
  ForwardPlan made;
  ledger().start_window();
  const std::unique_ptr<Run> run =
      build_run(options, *world, explicitly_set, {.kind = kind, .shapes_only = ShapesOnly{}});
  made.load = ledger().peak();
  ledger().start_window();
  pass(*run);
  made.pass = ledger().peak();
  return made;
}

}  // namespace

std::int64_t ForwardPlan::needed_bytes(std::int64_t ranks_on_node) const {
  return std::max(load.bytes, pass.bytes) + std::max(load.host_bytes, pass.host_bytes) / ranks_on_node;
}

ForwardPlan plan_evaluation(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
                            const std::vector<data::Row>& rows) {
  return plan_pass(options, explicitly_set, RunKind::kEvaluation, [&](Run& run) {
    std::vector<std::int64_t> all(rows.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    run.engine->evaluate_tokens(data::collate(rows, all));
  });
}

PromptLengths largest_batch(const std::vector<std::int64_t>& prompt_tokens, std::int64_t batch_size, std::int64_t rank,
                            std::int64_t ranks) {
  PromptLengths found;
  std::int64_t most = 0;
  const auto count = std::ssize(prompt_tokens);
  for (std::int64_t first = std::min(batch_size, count) * rank; first < count;
       first += std::min(batch_size, count) * ranks) {
    const auto begin = prompt_tokens.begin() + first;
    const auto end = begin + std::min(std::min(batch_size, count), count - first);
    // The new tokens are as many for every prompt; what is not full may have the longer prompts.
    const std::int64_t tokens = std::accumulate(begin, end, std::int64_t{0});
    if (tokens <= most) continue;
    most = tokens;
    found.batch.assign(begin, end);
  }
  if (count > 0) found.longest = std::ranges::max(prompt_tokens);
  return found;
}

ForwardPlan plan_generation(const options::RunOptions& options, const std::set<std::string>& explicitly_set,
                            const PromptLengths& prompts) {
  return plan_pass(options, explicitly_set, RunKind::kGeneration, [&](Run& run) {
    const std::int64_t new_tokens = options.generate.max_new_tokens;
    Decoder decoder(run);
    decoder.prepare(prompts.longest + new_tokens);
    std::vector<std::int64_t> capacities;
    std::vector<std::vector<std::int32_t>> tokens;
    for (const std::int64_t length : prompts.batch) {
      capacities.push_back(length + new_tokens);
      tokens.emplace_back(static_cast<std::size_t>(length), 0);
    }
    Sequences sequences(run.config, capacities, run.precision.compute, at::kMeta);
    const auto pass = [&] {
      const at::Tensor logits = decoder.extend(sequences, tokens);
      if (logits.defined()) ops::all_finite(logits);
    };
    pass();
    sequences.fill();
    for (auto& one : tokens) one.resize(1);
    pass();
    decoder.finish();
  });
}

}  // namespace shardtune::train::plan
