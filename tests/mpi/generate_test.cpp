// Evaluation and greedy continuations on any number of ranks, against Transformers (tests/parity/make/generate.py).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "shardtune/comm/agree.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/train/generate.h"
#include "shared_scratch.h"
#include "support/runs.h"
#include "train/decoder.h"
#include "train/forward_plan.h"

namespace shardtune::testing {
namespace {

using train::Continuation;
using train::Request;
using train::RunKind;

nlohmann::json reference(const std::string& model) { return read_json(data_folder() / "generate" / (model + ".json")); }

options::RunOptions generation_options(const std::string& model, bool lora) {
  options::RunOptions options = plain_options(data_folder() / "models" / model, "");
  options.command = "generate";
  options.adapter.use_peft_lora = lora;
  if (lora) options.adapter.adapter_name_or_path = (data_folder() / "numerics" / model / "lora/adapter").string();
  options.train.per_device_eval_batch_size = 2;
  options.generate.max_new_tokens = 24;
  options.fsdp.share_base_on_node = "false";
  return options;
}

std::vector<Request> requests_of(const nlohmann::json& file) {
  std::vector<Request> requests;
  for (const auto& ids : file["prompts"]) requests.push_back({.ids = ids, .ends = {2}});
  return requests;
}

/// The continuations, on rank 0; none on the others.
std::vector<Continuation> continue_all(const options::RunOptions& options, const std::vector<Request>& requests,
                                       comm::Counts* counts = nullptr) {
  const auto run = train::build_run(options, world(), {}, {.kind = RunKind::kGeneration});
  world().reset_counts();
  std::vector<Continuation> all;
  train::generate(*run, requests, [&](std::size_t request, const Continuation& continuation) {
    EXPECT_EQ(request, all.size()) << "in order";
    all.push_back(continuation);
  });
  if (counts != nullptr) *counts = world().counts();
  EXPECT_EQ(world().rank() == 0, !all.empty());
  return all;
}

void expect_tokens(const std::vector<Continuation>& found, const nlohmann::json& expected) {
  if (world().rank() != 0) return;
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].ids, expected[i]["tokens"].get<std::vector<std::int32_t>>()) << "prompt " << i;
    EXPECT_EQ(found[i].ended, found[i].ids.back() == 2);
  }
}

class Generate : public ::testing::TestWithParam<const char*> {};

TEST_P(Generate, GreedyTokensOfTransformers) {
  const auto file = reference(GetParam());
  options::RunOptions options = generation_options(GetParam(), false);
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}) {
    options.fsdp.sharding_strategy = strategy;
    for (const char* wrap : {"TRANSFORMER_BASED_WRAP", "NO_WRAP"}) {
      options.fsdp.auto_wrap_policy = wrap;
      expect_tokens(continue_all(options, requests_of(file)), file["base"]);
    }
  }
  // The table in pieces of rows, which do not divide it; the tied one's pieces are used twice.
  options.model.table_pieces = 3;
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP"})
    for (const char* wrap : {"TRANSFORMER_BASED_WRAP", "NO_WRAP"}) {
      options.fsdp.sharding_strategy = strategy;
      options.fsdp.auto_wrap_policy = wrap;
      expect_tokens(continue_all(options, requests_of(file)), file["base"]);
    }
  options.model.table_pieces = 1;
  options.fsdp.share_base_on_node = "true";
  if (world().size() > 1) expect_tokens(continue_all(options, requests_of(file)), file["base"]);
}

INSTANTIATE_TEST_SUITE_P(Models, Generate, ::testing::Values("tiny", "tiny-llama3", "tiny-odd"));

TEST(GenerateLora, GreedyTokensOfPeft) {
  const auto file = reference("tiny");
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
    options::RunOptions options = generation_options("tiny", true);
    options.fsdp.sharding_strategy = strategy;
    expect_tokens(continue_all(options, requests_of(file)), file["lora"]);
  }
}

struct AdapterCase {
  const char* name;
  std::string model, adapter;
  std::string others = "";
};

/// Folders of the case files.
std::string of_cases(const char* name) { return (case_folder() / name).string(); }

/// Rows of tokens, and several adapters that are active at once, in PEFT (make/generate_adapters.py).
TEST(GenerateAdapters, GreedyTokensOfPeft) {
  const auto file = reference("adapters");
  const auto trained = [](const char* run) { return (data_folder() / "numerics" / run / "adapter").string(); };
  const std::string tiny = (data_folder() / "models/tiny").string(), base = of_cases("base-gqa"),
                    rslora = "scaled=" + of_cases("lora-rslora");
  for (const AdapterCase& one :
       {AdapterCase{"tokens", tiny, trained("tiny/tokens")},
        AdapterCase{"tokens_both", tiny, trained("tiny/tokens_both")},
        AdapterCase{"tokens_tied", (data_folder() / "models/tiny-llama3").string(), trained("tiny-llama3/tokens_tied")},
        AdapterCase{"plain", base, of_cases("lora-plain")}, AdapterCase{"two", base, of_cases("lora-plain"), rslora},
        AdapterCase{"three", base, of_cases("lora-plain"), rslora + ",turned=" + of_cases("lora-dora")}}) {
    SCOPED_TRACE(one.name);
    options::RunOptions options = generation_options("tiny", true);
    options.model.model_name_or_path = one.model;
    options.adapter.adapter_name_or_path = one.adapter;
    options.adapter.other_adapters = one.others;
    options.generate.max_new_tokens = 16;
    std::vector<Request> requests = requests_of(file);
    for (Request& request : requests) request.ends.clear();
    const auto found = continue_all(options, requests);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto wanted = file[one.name][i]["tokens"].get<std::vector<std::int32_t>>();
      EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), found[i].ids.begin())) << "prompt " << i;
    }
  }
}

/// The reference's tokens as far as they are not decided by a gap that a bf16 rounding of a logit can close.
TEST(GenerateBf16, StaysNearTheReference) {
  const auto file = reference("tiny-odd");
  options::RunOptions options = generation_options("tiny-odd", false);
  options.model.dtype = "bfloat16";
  const auto found = continue_all(options, requests_of(file));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& expected = file["base"][i];
    for (std::size_t t = 0; t < found[i].ids.size() && expected["gaps"][t].get<double>() > 0.3; ++t)
      EXPECT_EQ(found[i].ids[t], expected["tokens"][t].get<std::int32_t>()) << "prompt " << i << " token " << t;
  }
}

TEST(Generate, SampledTokensDoNotDependOnRanksOrBatch) {
  const auto file = reference("tiny");
  options::RunOptions options = generation_options("tiny", true);
  options.generate.do_sample = true;
  options.generate.temperature = 0.9;
  options.generate.top_p = 0.95;
  std::vector<std::vector<std::int32_t>> first;
  // Alone, without other ranks: what the others are compared with.
  const auto alone_communicator = comm::make_self_communicator();
  const auto alone = train::build_run(options, *alone_communicator, {}, {.kind = RunKind::kGeneration});
  train::generate(*alone, requests_of(file), [&](std::size_t, const Continuation& one) { first.push_back(one.ids); });
  for (const int batch : {1, 2, 7}) {
    options.train.per_device_eval_batch_size = batch;
    const auto found = continue_all(options, requests_of(file));
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(found[i].ids, first[i]) << "prompt " << i << " batch " << batch;
  }
  std::set<std::vector<std::int32_t>> different(first.begin(), first.end());
  EXPECT_EQ(different.size(), first.size());
}

/// Gathers of one rank's frozen base: FULL_SHARD gathers L + 2 units in each pass, and a tied table a second time; SHARD_GRAD_OP
/// gathers layers once, and embedding and head, which share a buffer unless they are tied, in each pass.
TEST(GenerateCounts, GathersOfEachStrategy) {
  const std::uint64_t passes = 5, moves = world().size() > 1;  // one rank gathers nothing
  for (const char* model : {"tiny", "tiny-llama3"}) {
    options::RunOptions options = generation_options(model, false);
    options.generate.max_new_tokens = passes;
    const bool tied = std::string(model) == "tiny-llama3";
    const std::vector<Request> requests = {{.ids = {5, 6, 7}, .ends = {}}};  // one rank alone has work
    comm::Counts full, kept;
    continue_all(options, requests, &full);
    EXPECT_EQ(full.all_gathers, moves * passes * (4 + 2 + tied));
    options.fsdp.sharding_strategy = "SHARD_GRAD_OP";
    continue_all(options, requests, &kept);
    EXPECT_EQ(kept.all_gathers, moves * (tied ? 4 + 2 : 4 + 2 * passes));
    EXPECT_EQ(kept.exchanges + full.exchanges, 0u);
  }
}

double largest(const at::Tensor& difference) { return at::max(at::abs(difference)).item<double>(); }

/// Logits after the last of `ids` without a cache.
at::Tensor whole_pass(train::Run& run, const std::vector<std::int32_t>& ids) {
  const auto tokens = static_cast<std::int32_t>(ids.size());
  const data::Row row{.ids = ids, .labels = ids, .segments = {tokens}, .pieces = {{.tokens = tokens}}};
  return run.engine->logits(data::collate({row}, {0}))[tokens - 1];
}

TEST(Decoder, CachedLogitsAreThoseOfAWholePass) {
  const auto file = reference("tiny-llama3");
  options::RunOptions options = generation_options("tiny-llama3", false);
  options.model.ffn_chunk_tokens = 20;  // several slices
  const auto run = train::build_run(options, world(), {}, {.kind = RunKind::kGeneration});
  std::vector<std::vector<std::int32_t>> so_far;
  std::vector<std::int64_t> capacities;
  for (const auto& ids : file["prompts"]) {
    so_far.push_back(ids);
    capacities.push_back(static_cast<std::int64_t>(so_far.back().size()) + 8);
  }
  train::Decoder decoder(*run);
  train::Sequences sequences(run->config, capacities, run->precision.compute);
  auto next = so_far;
  // One token each, then several, different ones for each sequence, then one again.
  for (const int step : {0, 1, 2, 3}) {
    const at::Tensor logits = decoder.extend(sequences, next);
    for (std::size_t i = 0; i < so_far.size(); ++i)
      EXPECT_LE(largest(logits[static_cast<std::int64_t>(i)] - whole_pass(*run, so_far[i])), 2e-5) << step << " " << i;
    for (std::size_t i = 0; i < so_far.size(); ++i) {
      next[i].clear();
      for (std::size_t t = 0; t < (step == 1 ? 1 + i % 4 : 1); ++t)
        next[i].push_back(static_cast<std::int32_t>((17 * i + 5 * t + static_cast<std::size_t>(step)) % 500));
      so_far[i].insert(so_far[i].end(), next[i].begin(), next[i].end());
    }
    if (step == 2) {  // a sequence that ends leaves the others as they are
      sequences.erase(1);
      next.erase(next.begin() + 1);
      so_far.erase(so_far.begin() + 1);
    }
  }
  decoder.finish();
}

TEST(Generate, NotFiniteLogitsEndAllRanks) {
  const auto run = train::build_run(generation_options("tiny", true), world(), {}, {.kind = RunKind::kGeneration});
  // One rank's share of a layer's adapter.
  if (world().rank() == world().size() - 1) run->shards->trained(2).local().fill_(NAN);
  const std::vector<Request> requests = {{.ids = {5, 6, 7}, .ends = {2}}};
  try {
    train::generate(*run, requests, [](std::size_t, const Continuation&) {});
    ADD_FAILURE() << "no error";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kNonFinite);
    EXPECT_NE(std::string(error.what()).find("a logit is not finite"), std::string::npos) << error.what();
  }
}

/// Rows and labels of a model's training batches.
void write_reference_rows(const SharedScratch& scratch, const std::string& model) {
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics" / model / "batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
               batches["train.labels"].view({80, 48}));
  });
}

options::RunOptions evaluation_options(const SharedScratch& scratch, const std::string& model, bool lora) {
  options::RunOptions options = generation_options(model, lora);
  options.command = "evaluate";
  options.data.dataset_name = (scratch / "rows.jsonl").string();
  return options;
}

TEST(Evaluate, LossAndAccuracyOfTransformers) {
  for (const std::string model : {"tiny", "tiny-llama3", "tiny-odd"}) {
    SharedScratch scratch;
    write_reference_rows(scratch, model);
    const auto expected = reference(model)["evaluate"];
    for (const char* rows : {"all", "lora"}) {
      if (!expected.contains(rows)) continue;
      const auto run = train::build_run(evaluation_options(scratch, model, rows == std::string("lora")), world(), {},
                                        {.kind = RunKind::kEvaluation});
      const train::EvalResult result = train::evaluate(*run);
      EXPECT_EQ(result.targets, expected[rows]["targets"].get<std::int64_t>());
      EXPECT_EQ(result.correct, expected[rows]["correct"].get<std::int64_t>());
      EXPECT_NEAR(result.loss, expected[rows]["loss"].get<double>(), 2e-6) << model << " " << rows;
    }
  }
}

TEST(Evaluate, TheSameBitsOnAnyNumberOfRanks) {
  SharedScratch scratch;
  write_reference_rows(scratch, "tiny");
  for (const std::int64_t batch : {1, 3}) {
    options::RunOptions options = evaluation_options(scratch, "tiny", true);
    options.train.per_device_eval_batch_size = batch;
    const auto alone_communicator = comm::make_self_communicator();
    const auto alone = train::build_run(options, *alone_communicator, {}, {.kind = RunKind::kEvaluation});
    const auto run = train::build_run(options, world(), {}, {.kind = RunKind::kEvaluation});
    const auto expected = train::evaluate(*alone), found = train::evaluate(*run);
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.correct, expected.correct);
  }
}

TEST(Evaluate, QuantisedBaseWithAndWithoutAdapter) {
  SharedScratch scratch;
  write_reference_rows(scratch, "tiny");
  options::RunOptions options = evaluation_options(scratch, "tiny", true);
  options.quant.use_4bit_quantization = true;
  const auto with = train::evaluate(*train::build_run(options, world(), {}, {.kind = RunKind::kEvaluation}));
  options.adapter = {};
  const auto without = train::evaluate(*train::build_run(options, world(), {}, {.kind = RunKind::kEvaluation}));
  // The same base in training, with an adapter that changes nothing, is compared with the reference elsewhere.
  options.command = "train";
  options.adapter.use_peft_lora = true;
  options.train.eval_on_start = true;
  on_rank_0([&] {
    std::filesystem::copy_file(scratch / "rows.jsonl", scratch / "train.jsonl");
    std::filesystem::copy_file(scratch / "rows.jsonl", scratch / "test.jsonl");
  });
  options.data.dataset_name = scratch.path().string();
  const auto training = train::build_run(options, world());
  EXPECT_NEAR(without.loss, train::evaluate(*training).loss, 1e-6);
  EXPECT_NE(with.loss, without.loss);
}

std::int64_t of(const BytesByPurpose& bytes, Purpose purpose) { return bytes[static_cast<std::size_t>(purpose)]; }

/// The peak of `measured` as it was planned: all in all, and what stands.
void expect_planned(const LedgerPeak& planned, const LedgerPeak& measured, std::int64_t before) {
  const auto near = [](std::int64_t found, std::int64_t wanted, const char* what) {
    EXPECT_NEAR(static_cast<double>(found), static_cast<double>(wanted), 0.02 * static_cast<double>(wanted)) << what;
  };
  near(planned.bytes - before, measured.bytes - before, "all");
  EXPECT_EQ(planned.host_bytes, measured.host_bytes);
  for (const Purpose purpose : {Purpose::kWeightShards, Purpose::kGatherBuffers, Purpose::kKeptActivations})
    near(of(planned.own, purpose), of(measured.own, purpose), std::string(purpose_name(purpose)).c_str());
}

std::int64_t live_bytes() {
  std::int64_t all = 0;
  for (const std::int64_t bytes : ledger().live()) all += bytes;
  return all;
}

void plan_this_rank(options::RunOptions& options) {
  options.plan.world_size = options.plan.ranks_per_node = world().size();
  options.plan.rank = world().rank();
}

TEST(ForwardPlan, GenerationTakesWhatWasPlanned) {
  ops::install_ledger(c10::DeviceType::CPU);
  for (const char* model : {"tiny", "tiny-llama3"})
    for (const std::int64_t pieces : {1, 3})
      for (const std::int64_t batch : {1, 4}) {
        SCOPED_TRACE(fmt::format("{}, {} pieces, batches of {}", model, pieces, batch));
        options::RunOptions options = generation_options(model, model == std::string("tiny") && pieces == 1);
        options.model.table_pieces = pieces;
        options.train.per_device_eval_batch_size = batch;
        options.generate.max_new_tokens = 60;
        plan_this_rank(options);
        std::vector<Request> requests = requests_of(reference(model));
        std::vector<std::int64_t> lengths;
        for (Request& request : requests) {
          request.ends.clear();
          lengths.push_back(std::ssize(request.ids));
        }
        const std::int64_t before = live_bytes();
        const auto prompts = train::plan::largest_batch(lengths, batch, world().rank(), world().size());
        const auto planned = train::plan::plan_generation(options, {}, prompts);
        EXPECT_EQ(live_bytes(), before);
        const auto run = train::build_run(options, world(), {}, {.kind = RunKind::kGeneration});
        ledger().start_window();
        train::generate(*run, requests, [](std::size_t, const Continuation&) {});
        expect_planned(planned.pass, ledger().peak(), before);
        std::int64_t tokens = 0;
        for (const std::int64_t prompt : prompts.batch) tokens += prompt + 60;
        EXPECT_EQ(of(planned.pass.own, Purpose::kKeptActivations),
                  tokens * train::cache_bytes_of_token(run->config, run->precision.compute));
      }
}

TEST(ForwardPlan, EvaluationTakesWhatWasPlanned) {
  ops::install_ledger(c10::DeviceType::CPU);
  for (const std::string model : {"tiny", "tiny-odd"})
    for (const std::int64_t pieces : {1, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} pieces", model, pieces));
      SharedScratch scratch;
      write_reference_rows(scratch, model);
      options::RunOptions options = evaluation_options(scratch, model, pieces == 3 && model == "tiny");
      options.model.table_pieces = pieces;
      plan_this_rank(options);
      const auto run = train::build_run(options, world(), {}, {.kind = RunKind::kEvaluation});
      ledger().start_window();
      train::evaluate(*run);
      const LedgerPeak measured = ledger().peak();
      // All rows have the same length.
      const std::vector<data::Row> rows(run->eval_rows.begin(), run->eval_rows.begin() + 2);
      const std::int64_t before = live_bytes();
      const auto planned = train::plan::plan_evaluation(options, {}, rows);
      EXPECT_EQ(live_bytes(), before);
      LedgerPeak alone = planned.pass;
      alone.bytes -= before;
      for (std::size_t i = 0; i < kPurposes; ++i) alone.own[i] -= ledger().live()[i];
      alone.host_bytes -= of(ledger().live(), Purpose::kHostShared);
      expect_planned(alone, measured, 0);
    }
}

/// Weights and nothing else: no room for gradients, no optimizer state.
TEST(Evaluate, HoldsWeightsAlone) {
  ops::install_ledger(c10::DeviceType::CPU);
  SharedScratch scratch;
  write_reference_rows(scratch, "tiny");
  const auto bytes = [](Purpose purpose) { return ledger().live()[static_cast<std::size_t>(purpose)]; };
  const std::int64_t gradients = bytes(Purpose::kGradients), optimizer = bytes(Purpose::kOptimizer);
  const auto run =
      train::build_run(evaluation_options(scratch, "tiny", true), world(), {}, {.kind = RunKind::kEvaluation});
  train::evaluate(*run);
  EXPECT_EQ(bytes(Purpose::kGradients), gradients);
  EXPECT_EQ(bytes(Purpose::kOptimizer), optimizer);
  EXPECT_EQ(run->optimizer, nullptr);
  EXPECT_GT(bytes(Purpose::kWeightShards), 0);
}

}  // namespace
}  // namespace shardtune::testing
