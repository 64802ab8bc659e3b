// A plan that computes a few micro-batches and counts the rest, against one that computes them all: the same figures, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "shardtune/train/plan.h"
#include "support/scratch.h"

namespace shardtune::train {
namespace {

namespace fs = std::filesystem;

using Arguments = std::vector<std::string>;

struct PlanCase {
  const char* name;
  Arguments arguments;
};

const std::vector<PlanCase> kStrategies = {
    {"full_shard", {}},
    {"shard_grad_op", {"--fsdp_sharding_strategy", "SHARD_GRAD_OP"}},
    {"hybrid", {"--fsdp_sharding_strategy", "HYBRID_SHARD", "--shard_group_size", "2"}},
    {"hybrid_zero2", {"--fsdp_sharding_strategy", "_HYBRID_SHARD_ZERO2", "--shard_group_size", "2"}},
    {"no_shard", {"--fsdp_sharding_strategy", "NO_SHARD"}},
    {"inner_group", {"--fsdp_reshard_after_forward", "2"}},
    {"no_wrap", {"--fsdp_auto_wrap_policy", "NO_WRAP"}},
};

const std::vector<PlanCase> kOthers = {
    {"no_prefetch", {"--fsdp_backward_prefetch", "NO_PREFETCH", "--fsdp_forward_prefetch", "False"}},
    {"post", {"--fsdp_backward_prefetch", "BACKWARD_POST"}},
    {"inputs_every_2", {"--activation_policy", "inputs_every_2"}},
    {"keep", {"--activation_policy", "keep"}},
    {"bfloat16", {"--dtype", "bfloat16"}},
    {"nf4", {"--use_4bit_quantization", "True", "--dtype", "bfloat16"}},
    {"shared", {"--share_base_on_node", "True", "--plan_device", "cpu"}},
};

Plan planned(const Arguments& more, std::int64_t micro_batches, bool all = false, const fs::path& trace = {}) {
  const fs::path source = SHARDTUNE_SOURCE_DIR;
  Arguments words = {"shardtune",
                     "plan",
                     "--model_name_or_path",
                     (source / "tests/parity/data/cases/base-gqa").string(),
                     "--hardware",
                     (source / "configs/hardware/h100_sxm.ini").string(),
                     "--max_length",
                     "64",
                     "--world_size",
                     "4",
                     "--ranks_per_node",
                     "2",
                     "--plan_rank",
                     "1",
                     "--gradient_accumulation_steps",
                     std::to_string(micro_batches)};
  words.insert(words.end(), more.begin(), more.end());
  if (!trace.empty()) words.insert(words.end(), {"--trace", trace.string()});
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const options::ParseResult parsed = options::parse_options(static_cast<int>(argv.size()), argv.data(), nullptr);
  return make_plan(parsed.options, options::given_names(parsed.effective), {}, all);
}

std::string contents(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

void expect_same(const LedgerPeak& some, const LedgerPeak& all) {
  EXPECT_EQ(some.bytes, all.bytes);
  EXPECT_EQ(some.host_bytes, all.host_bytes);
  EXPECT_EQ(some.at_peak, all.at_peak);
  EXPECT_EQ(some.own, all.own);
  EXPECT_EQ(some.phase, all.phase);
}

void expect_same(const StepTime& some, const StepTime& all) {
  EXPECT_EQ(some.seconds, all.seconds);
  EXPECT_EQ(some.exposed_seconds, all.exposed_seconds);
  EXPECT_EQ(some.matmul_seconds, all.matmul_seconds);
  EXPECT_EQ(some.attention_seconds, all.attention_seconds);
  EXPECT_EQ(some.rows_seconds, all.rows_seconds);
  EXPECT_EQ(some.gather_seconds, all.gather_seconds);
  EXPECT_EQ(some.reduce_seconds, all.reduce_seconds);
  EXPECT_EQ(some.tokens_per_second, all.tokens_per_second);
  EXPECT_EQ(some.model_flops_share, all.model_flops_share);
  EXPECT_EQ(some.all_flops_share, all.all_flops_share);
}

/// The shortened plan and the full one of `micro_batches`; gives the shortened.
Plan compare(const Arguments& arguments, std::int64_t micro_batches) {
  const shardtune::testing::Scratch scratch;
  const fs::path some_trace = scratch / "some.json", all_trace = scratch / "all.json";
  const Plan some = planned(arguments, micro_batches, false, some_trace);
  const Plan all = planned(arguments, micro_batches, true, all_trace);
  EXPECT_EQ(all.computed_micro_batches, micro_batches);
  EXPECT_EQ(some.targets, all.targets);
  EXPECT_EQ(some.tokens, all.tokens);
  EXPECT_EQ(some.collectives, all.collectives);
  EXPECT_EQ(some.matmul_flops, all.matmul_flops);
  EXPECT_EQ(some.attention_flops, all.attention_flops);
  expect_same(some.load, all.load);
  expect_same(some.step, all.step);
  expect_same(some.save, all.save);
  EXPECT_TRUE(some.time && all.time);
  if (some.time && all.time) expect_same(*some.time, *all.time);
  EXPECT_TRUE(contents(some_trace) == contents(all_trace)) << "the traces differ";
  return some;
}

void compare_all(const std::vector<PlanCase>& cases, const Arguments& more) {
  for (const PlanCase& one : cases)
    for (std::int64_t micro_batches = 1; micro_batches <= 8; ++micro_batches) {
      SCOPED_TRACE(fmt::format("{}, {} micro-batches", one.name, micro_batches));
      Arguments arguments = one.arguments;
      arguments.insert(arguments.end(), more.begin(), more.end());
      const Plan some = compare(arguments, micro_batches);
      const bool together = std::ranges::find(arguments, "layer_first") != arguments.end();
      EXPECT_EQ(some.computed_micro_batches, together ? micro_batches : std::min<std::int64_t>(micro_batches, 3));
      EXPECT_EQ(some.tokens, 4 * 8 * 64 * micro_batches);
    }
}

TEST(AlikeMicroBatches, LoraInEveryStrategy) { compare_all(kStrategies, {"--use_peft_lora", "True"}); }

TEST(AlikeMicroBatches, AllWeightsInEveryStrategy) { compare_all(kStrategies, {}); }

TEST(AlikeMicroBatches, LayerFirst) {
  compare_all(kStrategies, {"--use_peft_lora", "True", "--accumulation_order", "layer_first"});
}

TEST(AlikeMicroBatches, OtherChoices) { compare_all(kOthers, {"--use_peft_lora", "True"}); }

/// What a micro-batch adds, it adds as often as there are more of them.
TEST(AlikeMicroBatches, ThousandsAreCounted) {
  const Arguments lora = {"--use_peft_lora", "True"};
  const Plan one = planned(lora, 1), two = planned(lora, 2);
  const Plan many = planned(lora, 4096);
  EXPECT_EQ(many.computed_micro_batches, 3);
  EXPECT_EQ(many.collectives.all_gathers,
            one.collectives.all_gathers + 4095 * (two.collectives.all_gathers - one.collectives.all_gathers));
  EXPECT_EQ(many.collectives.exchange_bytes,
            one.collectives.exchange_bytes + 4095 * (two.collectives.exchange_bytes - one.collectives.exchange_bytes));
  EXPECT_EQ(many.step.bytes, two.step.bytes);
}

}  // namespace
}  // namespace shardtune::train
