// The kinds of optimizer over all ranks of the job: a curve of 20 steps with 8-bit state against bitsandbytes, states against
// those of one rank alone, and case A25.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "curve.h"
#include "shardtune/checkpoint/checkpoint.h"
#include "shardtune/comm/agree.h"
#include "shardtune/comm/self.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

std::filesystem::path numerics() { return data_folder() / "numerics/tiny"; }

/// All weights of the small model of the curves: projections of 4096 elements and more, others of fewer, an embedding.
options::RunOptions full_options(const std::string& optim, const std::filesystem::path& rows) {
  options::RunOptions options = plain_options(data_folder() / "models/tiny", rows);
  options.adapter.use_peft_lora = false;
  options.optim.optim = optim;
  options.optim.learning_rate = 1e-3;
  return options;
}

TEST(EightBitCurve, TwentySteps) {
  const auto reference = read_json(numerics() / "full_adamw_8bit/run.json");
  const auto& settings = reference["settings"];
  ASSERT_EQ(settings["adam"]["optim"], "adamw_bnb_8bit");
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  options::RunOptions options = full_options("adamw_bnb_8bit", scratch / "rows.jsonl");
  take_settings(options, settings);
  const auto run = train::build_run(options, world());
  expect_curve(*run, reference);
}

struct LoraPlusRun {
  const char *model, *folder, *optim;
};
class LoraPlusCurve : public ::testing::TestWithParam<LoraPlusRun> {};

/// Against the parameter groups of PEFT's create_loraplus_optimizer: an adapter on the embedding, whole norms, magnitudes. The
/// matrices are small, so that the state is fp32 with every optimizer; bitsandbytes' arithmetic differs in roundings alone.
TEST_P(LoraPlusCurve, TwentySteps) {
  const std::string model = GetParam().model, folder = GetParam().folder;
  const auto numerics = data_folder() / "numerics" / model;
  const auto reference = read_json(numerics / folder / "run.json");
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl", model); });
  options::RunOptions options = plain_options(data_folder() / "models" / model, scratch / "rows.jsonl");
  const auto start = numerics / folder / "start";
  options.adapter.adapter_name_or_path =
      std::filesystem::exists(start) ? start.string() : (numerics / "loraplus/start").string();
  take_settings(options, reference["settings"]);
  options.optim.optim = GetParam().optim;
  options.optim.loraplus_lr_ratio = reference["settings"]["loraplus_lr_ratio"];
  options.optim.loraplus_lr_embedding = reference["settings"]["loraplus_lr_embedding"];
  const auto run = train::build_run(options, world());
  for (std::int64_t step = 0; step < 20; ++step) {
    const train::StepResult result = train::train_step(*run, reference_batches(*run, step), step);
    const auto& expected = reference["steps"][static_cast<std::size_t>(step)];
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 2e-5) << "step " << step + 1;
    EXPECT_DOUBLE_EQ(result.learning_rate, expected["lr"].get<double>()) << "step " << step + 1;
    const double norm = expected["grad_norm"];
    EXPECT_NEAR(result.grad_norm, norm, 2e-5 * norm) << "step " << step + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LoraPlusCurve,
                         ::testing::Values(LoraPlusRun{"tiny", "loraplus", "adamw_torch"},
                                           LoraPlusRun{"tiny", "loraplus", "adamw_bnb_8bit"},
                                           LoraPlusRun{"tiny", "loraplus", "paged_adamw_32bit"},
                                           LoraPlusRun{"tiny", "loraplus_sgd", "sgd"},
                                           LoraPlusRun{"tiny-odd", "loraplus_dora", "adamw_torch"}),
                         [](const auto& test) { return std::string(test.param.folder) + "_" + test.param.optim; });

TEST(LoraPlus, RateOfAnEmbeddingThatHasNoAdapterIsRefused) {
  options::RunOptions options = case_options(case_folder() / "rows-uneven.jsonl");
  options.optim.loraplus_lr_ratio = 4;
  EXPECT_NO_THROW(train::build_run(options, world()));
  try {
    train::build_run(options, world(), {"loraplus_lr_embedding"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.error_class(), ErrorClass::kUsage);
    EXPECT_TRUE(std::string(error.what()).find("there is no adapter on embed_tokens") != std::string::npos);
  }
}

/// A tensor of one dimension of every rank, end to end in the order of the ranks, as bytes. Collective.
std::vector<std::byte> all_bytes(const at::Tensor& mine, comm::Communicator& communicator) {
  const auto bytes = mine.defined() ? ops::bytes_of(mine) : std::span<std::byte>();
  const auto sizes = communicator.gather_values(bytes.size());
  const std::size_t most = *std::ranges::max_element(sizes);
  std::vector<std::byte> padded(most), all(most * sizes.size()), out;
  std::ranges::copy(bytes, padded.begin());
  communicator.gather_control(padded, all);
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
    out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(sizes[rank]));
  }
  return out;
}

/// By role and unit. State of bitsandbytes' kinds has no padding: the ranks' parts make up one rank's.
std::map<std::string, std::vector<std::byte>> all_states(train::Run& run) {
  std::map<std::string, std::vector<std::byte>> out;
  for (std::size_t role = 0; role < run.optimizer->roles().size(); ++role)
    for (std::size_t unit = 0; unit < run.shards->units(); ++unit)
      out[run.optimizer->roles()[role].name + " " + run.shards->spec(unit).name] =
          all_bytes(run.optimizer->state(role, unit), *run.communicator);
  return out;
}

TEST(EightBitState, IsThatOfOneRankAlone) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const auto self = comm::make_self_communicator();
  for (const char* wrap : {"TRANSFORMER_BASED_WRAP", "NO_WRAP"}) {
    const auto after_three_steps = [&](comm::Communicator& communicator) {
      options::RunOptions options = full_options("adamw_bnb_8bit", scratch / "rows.jsonl");
      options.fsdp.auto_wrap_policy = wrap;
      options.train.gradient_accumulation_steps = 12 / communicator.size();
      options.optim.max_grad_norm = 0;  // the norm's last bits depend on the cuts
      auto run = train::build_run(options, communicator);
      run_steps(*run, 0, 3);
      return run;
    };
    const auto together = after_three_steps(world());
    const auto alone = after_three_steps(*self);
    EXPECT_EQ(weights_hash(*together), weights_hash(*alone)) << wrap;
    const auto found = all_states(*together), expected = all_states(*alone);
    std::size_t codes = 0;
    for (const auto& [name, bytes] : expected) {
      EXPECT_EQ(found.at(name), bytes) << wrap << " " << name;
      if (name.starts_with("state1")) codes += bytes.size();
    }
    // Whole tensors of 4096 elements and more but the embedding: query, output and feed-forward of 4 layers, and the head.
    EXPECT_EQ(codes, 4u * (2 * 64 * 64 + 3 * 160 * 64) + 512 * 64) << wrap;
  }
}

/// The case's own inputs (all LoRA matrices are small, so their state is fp32), or all weights of a model with larger ones.
options::RunOptions a25_options(const std::string& optim, bool full, const std::filesystem::path& rows) {
  options::RunOptions options = full ? full_options(optim, rows) : case_options(case_folder() / "rows-uneven.jsonl");
  options.optim.optim = optim;
  options.train.max_steps = 6;
  options.train.gradient_accumulation_steps = std::max(1, 4 / world().size());
  return options;
}

class CaseA25 : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(CaseA25, ResumedRunGoesOnExactly) {
  const auto& [optim, full] = GetParam();
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const options::RunOptions options = a25_options(optim, full, scratch / "rows.jsonl");
  const auto straight = train::build_run(options, world());
  const auto expected = run_steps(*straight, 0, 6);
  const auto before = train::build_run(options, world());
  run_steps(*before, 0, 3);
  const auto folder =
      checkpoint::save(scratch.path(), {.step = 3, .optimizer_steps = 3}, *before->shards, *before->optimizer, world());
  const auto after = train::build_run(options, world());
  checkpoint::load(folder, {}, *after->shards, *after->optimizer, world());
  EXPECT_EQ(all_states(*after), all_states(*before));
  const auto rest = run_steps(*after, 3, 6);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(rest[i].loss, expected[3 + i].loss) << "step " << 4 + i;
    EXPECT_EQ(rest[i].grad_norm, expected[3 + i].grad_norm) << "step " << 4 + i;
  }
  EXPECT_EQ(weights_hash(*after), weights_hash(*straight));
  EXPECT_EQ(all_states(*after), all_states(*straight));
}

INSTANTIATE_TEST_SUITE_P(Kinds, CaseA25,
                         ::testing::Combine(::testing::Values("adamw_torch", "adamw_bnb_8bit", "paged_adamw_32bit",
                                                              "paged_adamw_8bit", "sgd"),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + (std::get<1>(test.param) ? "_full" : "_lora");
                         });

/// A checkpoint of another number of ranks is refused today; the straight runs agree.
TEST(CaseA25Ranks, StraightRunsAgreeWithOneRankAlone) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  for (const char* optim : {"adamw_bnb_8bit", "paged_adamw_8bit"}) {
    const auto losses = [&](comm::Communicator& communicator) {
      options::RunOptions options = a25_options(optim, true, scratch / "rows.jsonl");
      options.train.gradient_accumulation_steps = 12 / communicator.size();
      return run_steps(*train::build_run(options, communicator), 0, 6);
    };
    const auto found = losses(world()), expected = losses(*comm::make_self_communicator());
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(found[i].loss, expected[i].loss, 1e-3) << optim << " " << i + 1;
  }
}

TEST(CaseA25Ranks, ACheckpointOfAnotherKindIsRefused) {
  SharedScratch scratch;
  on_rank_0([&] { write_training_rows(scratch / "rows.jsonl"); });
  const auto built = [&](const char* optim) {
    return train::build_run(full_options(optim, scratch / "rows.jsonl"), world());
  };
  const auto run = built("adamw_bnb_8bit");
  const auto folder = checkpoint::save(scratch.path(), {.step = 1}, *run->shards, *run->optimizer, world());
  const auto message = [&](const char* optim) {
    const auto other = built(optim);
    try {
      checkpoint::load(folder, {}, *other->shards, *other->optimizer, world());
    } catch (const comm::AgreedError& error) {
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  EXPECT_EQ(message("adamw_8bit"), "loaded");  // another name of the same
  EXPECT_NE(
      message("adamw_torch")
          .find("--optim was adamw_bnb_8bit in the checkpoint's run and is adamw_torch now, which keeps another state"),
      std::string::npos);
  EXPECT_NE(message("paged_adamw_8bit").find("--optim was adamw_bnb_8bit"), std::string::npos);
}

}  // namespace
}  // namespace shardtune::testing
