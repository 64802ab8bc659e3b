#include "shardtune/fsdp/policy.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>

#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"

namespace shardtune::fsdp {
namespace {

bool is_hybrid(const std::string& strategy) { return strategy == "HYBRID_SHARD" || strategy == "_HYBRID_SHARD_ZERO2"; }

int shard_size(const FsdpOptions& options, int ranks, int node_ranks) {
  const auto wish = static_cast<int>(options.shard_group_size);
  if (options.sharding_strategy == "NO_SHARD") {
    if (wish > 1)
      fail(ErrorClass::kUsage, "--shard_group_size {} contradicts --fsdp_sharding_strategy NO_SHARD; leave one out",
           wish);
    return 1;
  }
  if (!is_hybrid(options.sharding_strategy)) {
    if (wish > 0 && wish != ranks)
      fail(ErrorClass::kUsage,
           "--shard_group_size {} needs --fsdp_sharding_strategy HYBRID_SHARD or _HYBRID_SHARD_ZERO2; {} shards over "
           "all "
           "{}",
           wish, options.sharding_strategy, counted(ranks, "rank"));
    return ranks;
  }
  const int size = wish > 0 ? wish : node_ranks;
  if (size > ranks || ranks % size != 0)
    fail(ErrorClass::kUsage, "{} {} not divide the {} of the job; give a --shard_group_size that does",
         wish > 0 ? "--shard_group_size:" : "HYBRID_SHARD: this node's", counted(size, "rank does", "ranks do"),
         counted(ranks, "rank"));
  return size;
}

/// --fsdp_reshard_after_forward as FSDP2 has it; "" leaves the strategy's own way.
void apply_reshard(const FsdpOptions& options, Policy& policy) {
  std::string wish = options.reshard_after_forward;
  if (wish.empty()) return;
  // "True" on the command line, "true" in YAML.
  std::transform(wish.begin(), wish.end(), wish.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool lets_go = options.sharding_strategy == "FULL_SHARD" || options.sharding_strategy == "HYBRID_SHARD";
  if (!lets_go && wish != "false")
    fail(ErrorClass::kUsage,
         "--fsdp_reshard_after_forward {} contradicts --fsdp_sharding_strategy {}, which keeps the weights; leave one "
         "of them out",
         options.reshard_after_forward, options.sharding_strategy);
  if (wish == "true") policy.reshard = Reshard::kAfterForward;
  else if (wish == "false") policy.reshard = Reshard::kAfterBackward;
  else {
    int size = 0;
    const auto [end, error] = std::from_chars(wish.data(), wish.data() + wish.size(), size);
    if (error != std::errc() || end != wish.data() + wish.size() || size < 1)
      fail(ErrorClass::kUsage, "--fsdp_reshard_after_forward '{}' is not true, false or a number of ranks", wish);
    if (size > policy.shard_size || policy.shard_size % size != 0)
      fail(ErrorClass::kUsage, "--fsdp_reshard_after_forward {} does not divide the {} of a shard group", size,
           counted(policy.shard_size, "rank"));
    if (size == policy.shard_size) policy.reshard = Reshard::kAfterForward;
    else if (size == 1) policy.reshard = Reshard::kAfterBackward;
    else {
      policy.reshard = Reshard::kToInnerGroup;
      policy.inner_size = size;
    }
  }
}

std::int64_t elements_of(const model::UnitSpec& stage) {
  std::int64_t elements = 0;
  for (const model::Parameter& parameter : stage.parameters)
    if (!parameter.borrowed) elements += parameter.elements();
  return elements;
}

std::vector<std::vector<std::size_t>> wrap_by_size(const std::vector<model::UnitSpec>& stages, std::int64_t least) {
  const std::size_t head = model::head_stage(stages);
  for (std::size_t layer = 1; layer < head; ++layer)
    if (least < elements_of(stages[layer]))
      fail(
          ErrorClass::kUsage,
          "--fsdp_min_num_params {}: a unit holds whole layers, and {} alone has {} parameters; give at least that, or "
          "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP",
          least, stages[layer].name, elements_of(stages[layer]));
  std::vector<std::vector<std::size_t>> units = {{0}};
  std::int64_t size = least;  // full: the first layer opens a unit
  for (std::size_t layer = 1; layer < head; ++layer) {
    if (size >= least) {
      units.emplace_back();
      size = 0;
    }
    units.back().push_back(layer);
    size += elements_of(stages[layer]);
  }
  for (std::size_t stage = head; stage < stages.size(); ++stage) units.push_back({stage});
  return units;
}

/// Accelerate's newer configurations of FSDP 1 write the strategy into fsdp_reshard_after_forward.
FsdpOptions with_strategy_in_place(FsdpOptions options) {
  const auto known = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"};
  const std::string wish = options.reshard_after_forward;
  if (options.version != 1 || std::find(known.begin(), known.end(), wish) == known.end()) return options;
  if (options.sharding_strategy != "FULL_SHARD" && options.sharding_strategy != wish)
    fail(ErrorClass::kUsage,
         "--fsdp_reshard_after_forward {} contradicts --fsdp_sharding_strategy {}; leave one of them out", wish,
         options.sharding_strategy);
  options.sharding_strategy = wish;
  options.reshard_after_forward.clear();
  return options;
}

}  // namespace

Policy make_policy(const FsdpOptions& given, int ranks, int node_ranks) {
  const FsdpOptions options = with_strategy_in_place(given);
  if (options.version == 2 && options.sharding_strategy != "FULL_SHARD" && options.sharding_strategy != "HYBRID_SHARD")
    fail(ErrorClass::kUsage,
         "--fsdp_sharding_strategy {}: --fsdp_version 2 has no such strategy; leave --fsdp_version out, or leave the "
         "strategy out (--fsdp_reshard_after_forward false is what version 1 calls SHARD_GRAD_OP)",
         options.sharding_strategy);
  Policy policy;
  policy.shard_size = shard_size(options, ranks, node_ranks);
  const bool keeps = options.sharding_strategy == "SHARD_GRAD_OP" || options.sharding_strategy == "_HYBRID_SHARD_ZERO2";
  policy.reshard = keeps ? Reshard::kAfterBackward : Reshard::kAfterForward;
  apply_reshard(options, policy);
  if (options.backward_prefetch == "BACKWARD_POST") policy.backward_prefetch = BackwardPrefetch::kPost;
  if (options.backward_prefetch == "NO_PREFETCH") policy.backward_prefetch = BackwardPrefetch::kNone;
  policy.forward_prefetch = options.forward_prefetch;
  return policy;
}

std::vector<std::vector<std::size_t>> wrap(const std::vector<model::UnitSpec>& stages, const FsdpOptions& options) {
  if (options.auto_wrap_policy == "SIZE_BASED_WRAP") return wrap_by_size(stages, options.min_num_params);
  std::vector<std::vector<std::size_t>> units;
  if (options.auto_wrap_policy == "NO_WRAP") {
    units.emplace_back(stages.size());
    std::iota(units[0].begin(), units[0].end(), std::size_t{0});
    return units;
  }
  for (std::size_t stage = 0; stage < stages.size(); ++stage) units.push_back({stage});
  return units;
}

}  // namespace shardtune::fsdp
