// Several adapters on one sharded model: random sequences of calls against models that know nothing of sets or of shards.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "adapter_kinds.h"
#include "merged_by_hand.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/train/run_adapters.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

/// Adapters that a sequence draws from; the first is the run's own.
struct Family {
  const char* name;
  const char* model;
  std::vector<Kind> kinds;
};

const Family kFamilies[] = {
    {"Lora",
     "tiny-odd",
     {{"default", 4, 8, "q_proj,v_proj"},
      {"second", 2, 6, "all-linear"},
      {"third", 3, 3, "v_proj,down_proj,lm_head"},
      {"fourth", 1, 2, "q_proj"}}},
    {"DoraAndEmbedding",
     "tiny-odd",
     {{"default", 4, 8, "q_proj,embed_tokens"},
      {"dora", 2, 6, "all-linear", true},
      {"head", 3, 3, "q_proj,down_proj,lm_head", true},
      {"rows", 1, 2, "embed_tokens,k_proj"},
      {"plain", 2, 2, "q_proj,lm_head"}}},
    {"Saved",
     "tiny-odd",
     {{"default", 4, 8, "q_proj", false, "lm_head"},
      {"norms", 2, 6, "v_proj", true, "norm"},
      {"table", 1, 2, "q_proj,k_proj", false, "embed_tokens,lm_head"},
      {"down", 3, 3, "q_proj", true, "model.layers.1.mlp.down_proj,model.norm"},
      {"plain", 2, 2, "q_proj"}}},
    {"SavedOfATiedModel",
     "tiny-llama3",
     {{"default", 4, 8, "q_proj", false, "embed_tokens", true},
      {"head", 2, 6, "v_proj", false, "lm_head"},
      {"table", 1, 2, "q_proj", true, "embed_tokens"},
      {"norms", 3, 3, "k_proj", false, "norm"},
      {"plain", 2, 2, "q_proj"}}},
};

options::RunOptions run_options(const Family& family, const std::filesystem::path& rows, const char* strategy) {
  options::RunOptions options = plain_options(data_folder() / "models" / family.model, rows);
  take_kind(options.adapter, family.kinds.front());
  options.fsdp.sharding_strategy = strategy;
  options.train.max_steps = 100;
  options.optim.learning_rate = 1e-2;
  return options;
}

/// The sharded run and the same calls on one rank alone.
class Pair {
 public:
  Pair(const Family& family, const SharedScratch& scratch, const char* strategy)
      : alone_(comm::make_self_communicator()),
        sharded_run_(train::build_run(run_options(family, scratch / "rows.jsonl", strategy), world(), {},
                                      {.several_adapters = true})),
        whole_run_(train::build_run(run_options(family, scratch / "rows.jsonl", "NO_SHARD"), *alone_, {},
                                    {.several_adapters = true})),
        sharded_(*sharded_run_), whole_(*whole_run_) {}

  /// Whether both took the call; both refuse it otherwise.
  template <typename F>
  bool both(F call) {
    const auto takes = [&](train::RunAdapters& set) {
      try {
        call(set);
        return true;
      } catch (const Error& error) {
        EXPECT_EQ(error.error_class(), ErrorClass::kUsage) << error.what();
        return false;
      }
    };
    const bool taken = takes(sharded_);
    EXPECT_EQ(takes(whole_), taken);
    return taken;
  }

  /// One optimizer step on both; the losses must agree.
  void step(std::int64_t number) {
    const auto sharded = train::train_step(*sharded_run_, reference_batches(*sharded_run_, number), number);
    const auto whole = train::train_step(*whole_run_, reference_batches(*whole_run_, number), number);
    EXPECT_NEAR(sharded.loss, whole.loss, 1e-6 * whole.loss) << "step " << number;
    EXPECT_NEAR(sharded.grad_norm, whole.grad_norm, 5e-6 * whole.grad_norm) << "step " << number;
  }

  std::unique_ptr<comm::Communicator> alone_;
  std::unique_ptr<train::Run> sharded_run_, whole_run_;
  train::RunAdapters sharded_, whole_;
};

at::Tensor logits_of(train::Run& run) { return run.engine->logits(data::collate(run.train_rows, {0})); }

/// Logits of the base with adapters from their folders, in this order, merged in.
at::Tensor logits_with(const char* model, const std::vector<std::filesystem::path>& folders,
                       const SharedScratch& scratch) {
  const Scratch own;
  merge_by_hand(data_folder() / "models" / model, folders, own.path());
  const auto alone = comm::make_self_communicator();
  const auto run = train::build_run(plain_options(own.path(), scratch / "rows.jsonl"), *alone, {},
                                    {.kind = train::RunKind::kEvaluation});
  return run->engine->logits(data::collate(run->eval_rows, {0}));
}

/// Whether two of these adapters train the same module whole: then only one of them can take part.
bool compete(const std::set<std::string>& names, const train::RunAdapters& set) {
  std::set<std::string> modules;
  for (const std::string& name : names)
    for (const std::string& module : set.config(name).saved_modules)
      if (!modules.insert(module).second) return true;
  return false;
}

class AdapterSets : public ::testing::TestWithParam<std::tuple<Family, const char*>> {};

TEST_P(AdapterSets, RandomCallsGiveWhatModelsWithOneAdapterGive) {
  const Family& family = std::get<0>(GetParam());
  const char* const strategy = std::get<1>(GetParam());
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", family.model); });
  Pair pair(family, scratch, strategy);
  std::vector<std::string> order = {"default"};  // in which they were added
  std::mt19937 random(20261130);
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const auto one_of = [&](const std::vector<std::string>& names) { return names[pick(names.size())]; };
  std::int64_t steps = 0;
  std::map<std::string, int> calls;
  for (int call = 0; call < 60; ++call) {
    const std::vector<std::string> names = pair.sharded_.names();
    const std::string trained = pair.sharded_.trained();
    switch (pick(7)) {
      case 0: {
        const Kind& kind = family.kinds[1 + pick(family.kinds.size() - 1)];
        if (std::ranges::find(names, kind.name) != names.end()) continue;
        ASSERT_TRUE(pair.both([&](auto& set) { set.add(config_of(kind, pair.sharded_run_->config)); }));
        order.emplace_back(kind.name);
        ++calls["add"];
        break;
      }
      case 1: {
        const std::string name = one_of(names);
        if (name == trained || names.size() < 2) continue;
        pair.both([&](auto& set) { set.remove(name); });
        std::erase(order, name);
        ++calls["remove"];
        break;
      }
      case 2: {
        std::set<std::string> active;
        for (const std::string& name : names)
          if (pick(2) == 0 || name == trained) active.insert(name);
        const bool taken = pair.both([&](auto& set) { set.set_active(active); });
        EXPECT_EQ(taken, !compete(active, pair.sharded_));
        ++calls["set_active"];
        break;
      }
      case 3:
        pair.both([&](auto& set) { set.set_enabled(!set.enabled()); });
        ++calls["enable"];
        break;
      case 4: {
        const std::string name = pick(5) == 0 ? "" : one_of(names);
        std::set<std::string> active = pair.sharded_.active();
        if (!name.empty()) active.insert(name);
        const bool taken = pair.both([&](auto& set) { set.train(name); });
        EXPECT_EQ(taken, !compete(active, pair.sharded_));
        if (!taken) continue;
        ++calls["train"];
        break;
      }
      default:
        if (trained.empty() || !pair.sharded_.enabled()) continue;
        pair.step(steps++ % 20);
        ++calls["step"];
    }
    if (call % 4 != 3) continue;
    const at::Tensor logits = logits_of(*pair.sharded_run_);
    EXPECT_LE(relative_l2(logits, logits_of(*pair.whole_run_)), 1e-4) << "call " << call;
    std::vector<std::filesystem::path> folders;
    for (const std::string& name : order) {
      if (!pair.sharded_.enabled() || !pair.sharded_.active().contains(name)) continue;
      folders.push_back(scratch / std::to_string(call) / name);
      on_rank_0([&] { std::filesystem::create_directories(folders.back()); });
      pair.sharded_.save(name, folders.back());
    }
    world().barrier();
    EXPECT_LE(relative_l2(logits, logits_with(family.model, folders, scratch)), 1e-5) << "call " << call;
    EXPECT_TRUE(at::equal(logits, logits_of(*pair.sharded_run_))) << "saving changed something at call " << call;
  }
  for (const char* kind : {"add", "remove", "set_active", "enable", "train", "step"})
    EXPECT_GE(calls[kind], 2) << kind << " was hardly ever called: the sequence shows too little";
}

/// Each kind starts as the model without it: B or A is zero, magnitudes are the norms, copies are the model's.
TEST_P(AdapterSets, NewAdaptersChangeNothing) {
  const Family& family = std::get<0>(GetParam());
  const char* const strategy = std::get<1>(GetParam());
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", family.model); });
  const auto run =
      train::build_run(run_options(family, scratch / "rows.jsonl", strategy), world(), {}, {.several_adapters = true});
  train::RunAdapters set(*run);
  set.train("");
  set.set_active({});
  const at::Tensor alone = logits_of(*run);
  for (const Kind& kind : family.kinds) {
    if (kind.name != std::string("default")) set.add(config_of(kind, run->config));
    set.set_active({kind.name});
    EXPECT_LE(relative_l2(logits_of(*run), alone), 1e-6) << kind.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterSets,
                         ::testing::Combine(::testing::ValuesIn(kFamilies),
                                            ::testing::Values("FULL_SHARD", "SHARD_GRAD_OP")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param);
                         });

}  // namespace
}  // namespace shardtune::testing
