// One matrix of everything that may not change the numbers: strategy, prefetch, accumulation order, activation policy, shared
// base, LoRA or full, on the ranks of the job. 6 steps with dropout 0.1; the global batch is 12 micro-batches of one row.
//
// Within a strategy the raw bits of the losses and the weights are those of its plain case; strategies and numbers of ranks agree
// with one rank alone to 1e-6 in the loss and 5e-6 in the gradient norm.
//
// SHARDTUNE_MATRIX=all runs every case; otherwise a sample: one case in kSampleStride, which is prime and so meets every value of
// every dimension.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>

#include "shardtune/comm/self.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

constexpr int kSteps = 6;
constexpr std::size_t kSampleStride = 41;

struct Strategy {
  const char* name;
  const char* sharding;
  int group = 0;
  const char* reshard = "";
  const char* wrap = "TRANSFORMER_BASED_WRAP";
};

/// Those that this number of ranks can have.
std::vector<Strategy> strategies() {
  std::vector<Strategy> all = {
      {"full_shard", "FULL_SHARD"},
      {"shard_grad_op", "SHARD_GRAD_OP"},
      {"no_shard", "NO_SHARD"},
      {"hybrid_node", "HYBRID_SHARD"},
      {"keep_after_forward", "FULL_SHARD", 0, "false"},
      {"no_wrap", "FULL_SHARD", 0, "", "NO_WRAP"},
      {"size_wrap", "FULL_SHARD", 0, "", "SIZE_BASED_WRAP"},
      {"size_wrap_grad_op", "SHARD_GRAD_OP", 0, "", "SIZE_BASED_WRAP"},
  };
  if (world().size() % 2 == 0) {
    all.push_back({"hybrid_2", "HYBRID_SHARD", 2});
    all.push_back({"hybrid_zero2_2", "_HYBRID_SHARD_ZERO2", 2});
  }
  if (world().size() == 4) {
    all.push_back({"reshard_to_2", "FULL_SHARD", 0, "2"});
    all.push_back({"hybrid_1_replicas_4", "HYBRID_SHARD", 1});
  }
  return all;
}

const std::vector<const char*> kPrefetch = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
const std::vector<bool> kForwardPrefetch = {true, false};
const std::vector<const char*> kOrders = {"micro_batch_first", "layer_first"};
const std::vector<const char*> kActivations = {"recompute",      "keep",           "every_2",       "last_1",
                                               "inputs_every_2", "inputs_every_3", "inputs_every_4"};
const std::vector<const char*> kShared = {"true", "false"};

struct Kind {
  const char* model;
  bool lora;
  std::int64_t pieces = 1;

  std::string text() const {
    return std::string(model) + (lora ? " lora" : " full") + (pieces > 1 ? fmt::format(" pieces={}", pieces) : "");
  }
};
/// LoRA over a frozen base, and everything trained with a table that embedding and head share: the two that differ most. With
/// embedding and head in pieces of rows, apart and shared, the numbers are those of whole ones.
const std::vector<Kind> kKinds = {{"tiny", true}, {"tiny-llama3", false}, {"tiny", true, 3}, {"tiny-llama3", true, 3}};

struct Case {
  Kind kind{};
  Strategy strategy{};
  const char* prefetch = "BACKWARD_PRE";
  bool forward_prefetch = true;
  const char* order = "micro_batch_first";
  const char* activations = "recompute";
  const char* shared = "false";

  std::string text() const {
    return kind.text() + " " + strategy.name + " " + prefetch + (forward_prefetch ? " ahead " : " not_ahead ") + order +
           " " + activations + " shared=" + shared;
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Kind& kind : kKinds)
    for (const Strategy& strategy : strategies())
      for (const char* prefetch : kPrefetch)
        for (const bool ahead : kForwardPrefetch)
          for (const char* order : kOrders)
            for (const char* activations : kActivations)
              for (const char* shared : kShared)
                if (kind.lora || shared == kShared.back())  // full fine-tuning has no frozen base to share
                  cases.push_back({kind, strategy, prefetch, ahead, order, activations, shared});
  return cases;
}

struct Trace {
  std::vector<train::StepResult> steps;
  std::string hash;
};

Trace trace(const Case& c, const std::filesystem::path& rows, comm::Communicator& communicator) {
  options::RunOptions options = plain_options(data_folder() / "models" / c.kind.model, rows);
  options.adapter.use_peft_lora = c.kind.lora;
  options.adapter.lora_dropout = 0.1;
  options.data.shuffle = true;
  options.optim.learning_rate = c.kind.lora ? 5e-3 : 1e-3;
  options.train.gradient_accumulation_steps = 12 / communicator.size();
  options.train.max_steps = kSteps;
  options.train.accumulation_order = c.order;
  options.model.activation_policy = c.activations;
  options.model.table_pieces = c.kind.pieces;
  options.fsdp.sharding_strategy = c.strategy.sharding;
  options.fsdp.shard_group_size = c.strategy.group;
  options.fsdp.reshard_after_forward = c.strategy.reshard;
  options.fsdp.auto_wrap_policy = c.strategy.wrap;
  options.fsdp.min_num_params = 60'000;  // two layers of the small models
  options.fsdp.backward_prefetch = c.prefetch;
  options.fsdp.forward_prefetch = c.forward_prefetch;
  options.fsdp.share_base_on_node = c.shared;
  const auto run = train::build_run(options, communicator);
  Trace out{.steps = run_steps(*run, 0, kSteps), .hash = {}};
  out.hash = weights_hash(*run);
  return out;
}

void expect_same_bits(const Trace& found, const Trace& plain) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(found.steps[i].loss), std::bit_cast<std::uint64_t>(plain.steps[i].loss));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(found.steps[i].grad_norm),
              std::bit_cast<std::uint64_t>(plain.steps[i].grad_norm));
  }
  EXPECT_EQ(found.hash, plain.hash);
}

void expect_near(const Trace& found, const Trace& alone) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(found.steps[i].loss, alone.steps[i].loss, 1e-6 * alone.steps[i].loss) << "step " << i + 1;
    EXPECT_NEAR(found.steps[i].grad_norm, alone.steps[i].grad_norm, 5e-6 * alone.steps[i].grad_norm)
        << "step " << i + 1;
  }
}

TEST(EngineMatrix, SameNumbers) {
  SharedScratch scratch;
  on_rank_0([&] {
    for (const char* model : {"tiny", "tiny-llama3"}) {
      auto batches = read_tensors(data_folder() / "numerics" / model / "batches.safetensors");
      write_rows(scratch / (std::string(model) + ".jsonl"), batches["train.input_ids"].view({80, 48}),
                 batches["train.labels"].view({80, 48}));
    }
  });
  const auto rows = [&](const Kind& kind) { return scratch / (std::string(kind.model) + ".jsonl"); };
  const char* wish = std::getenv("SHARDTUNE_MATRIX");
  const std::size_t stride = wish != nullptr && std::string(wish) == "all" ? 1 : kSampleStride;

  std::map<std::string, Trace> alone, plain;  // by kind; by kind and strategy
  const std::vector<Case> cases = all_cases();
  std::size_t run = 0;
  for (std::size_t i = 0; i < cases.size(); i += stride, ++run) {
    const Case& c = cases[i];
    SCOPED_TRACE(c.text());
    const Kind whole{c.kind.model, c.kind.lora};
    const std::string group = c.kind.text() + c.strategy.name;
    if (!alone.contains(whole.text()))
      alone[whole.text()] =
          trace({.kind = whole, .strategy = strategies()[0]}, rows(whole), *comm::make_self_communicator());
    if (!plain.contains(group)) {
      plain[group] = trace({.kind = c.kind, .strategy = c.strategy}, rows(c.kind), world());
      expect_near(plain[group], alone[whole.text()]);
    }
    expect_same_bits(trace(c, rows(c.kind), world()), plain[group]);
    if (HasFailure()) break;
  }
  if (world().rank() == 0)
    std::printf("engine matrix on %d ranks: %zu of %zu cases run\n", world().size(), run, cases.size());
}

/// The comparison can fail: another order of the rows is another trace.
TEST(EngineMatrix, AnotherOrderOfRowsChangesTheBits) {
  SharedScratch scratch;
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics/tiny/batches.safetensors");
    const at::Tensor ids = batches["train.input_ids"].view({80, 48}), labels = batches["train.labels"].view({80, 48});
    write_rows(scratch / "rows.jsonl", ids, labels);
    write_rows(scratch / "turned.jsonl", at::flip(ids, {0}), at::flip(labels, {0}));
  });
  const Case c{.kind = kKinds[0], .strategy = strategies()[0]};
  EXPECT_NE(trace(c, scratch / "rows.jsonl", world()).hash, trace(c, scratch / "turned.jsonl", world()).hash);
}

}  // namespace
}  // namespace shardtune::testing
