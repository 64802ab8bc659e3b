// Number and bytes of the collectives of one micro-batch, from written formulas. FULL_SHARD, L layers: forward gathers L + 2 units
// (embedding, layers, head), backward L - 1 (the last layer is still there, the head is done, the embedding's values are not
// needed). Frozen and trained buffers count as two. A tied head gathers the table a second time in forward.
#include <gtest/gtest.h>

#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

/// Sum over ranks-minus-one of a buffer's shard, padded as the layout pads.
std::uint64_t moved(std::int64_t elements, std::int64_t granule, std::int64_t width, std::int64_t ranks) {
  const std::int64_t shard = ((elements + ranks - 1) / ranks + granule - 1) / granule * granule;
  return static_cast<std::uint64_t>(shard * width * (ranks - 1));
}

struct Sizes {
  std::int64_t embedding = 0, layer = 0, head = 0;  ///< frozen elements
  std::int64_t lora = 0;  ///< trained elements of a layer, each tensor padded to 256
};

Sizes sizes_of(const model::ModelConfig& c, std::int64_t rank) {
  const std::int64_t query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim, d = c.hidden_size,
                     f = c.intermediate_size;
  const auto padded = [](std::int64_t n) { return (n + 255) / 256 * 256; };
  Sizes s{.embedding = c.vocab_size * d, .head = c.tied_embeddings ? d : d + c.vocab_size * d};
  const std::vector<std::pair<std::int64_t, std::int64_t>> linears = {{d, query}, {d, key}, {d, key}, {query, d},
                                                                      {d, f},     {d, f},   {f, d}};
  s.layer = 2 * d;
  for (const auto& [in, out] : linears) {
    s.layer += in * out;
    s.lora += padded(rank * in) + padded(out * rank);
  }
  return s;
}

class Collectives : public ::testing::TestWithParam<const char*> {};

TEST_P(Collectives, OfOneMicroBatch) {
  const std::int64_t ranks = world().size();
  SharedScratch scratch;
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics" / GetParam() / "batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
               batches["train.labels"].view({80, 48}));
  });
  options::RunOptions options = plain_options(data_folder() / "models" / GetParam(), scratch / "rows.jsonl");
  options.fsdp.share_base_on_node = "false";
  const auto run = train::build_run(options, world());
  const auto batch = data::collate(run->train_rows, {world().rank()});
  const std::int64_t layers = run->config.layers;
  const bool tied = run->config.tied_embeddings;
  const Sizes s = sizes_of(run->config, 8);

  world().reset_counts();
  run->engine->forward_backward({&batch, 1}, 0, 1.0);
  comm::Counts expected;
  if (ranks > 1) {
    const auto layer_passes = static_cast<std::uint64_t>(2 * layers - 1);
    expected.all_gathers = 2 * layer_passes + 2 + (tied ? 1 : 0);
    expected.all_gather_bytes = layer_passes * (moved(s.layer, 1, 4, ranks) + moved(s.lora, 256, 4, ranks)) +
                                moved(s.embedding, 1, 4, ranks) * (tied ? 2 : 1) + moved(s.head, 1, 4, ranks);
    expected.exchanges = static_cast<std::uint64_t>(layers);
    expected.exchange_bytes = static_cast<std::uint64_t>(layers) * moved(s.lora, 256, 4, ranks);
  }
  EXPECT_EQ(world().counts(), expected);

  // A rank without rows takes part in the same collectives.
  world().reset_counts();
  const data::MicroBatch none;
  run->engine->forward_backward({world().rank() == 0 ? &batch : &none, 1}, 0, 1.0);
  EXPECT_EQ(world().counts(), expected);

  // Evaluation: forward only.
  world().reset_counts();
  run->engine->evaluate(batch);
  if (ranks > 1) {
    EXPECT_EQ(world().counts().all_gathers, static_cast<std::uint64_t>(2 * layers) + 2 + (tied ? 1 : 0));
  }
  EXPECT_EQ(world().counts().exchanges, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, Collectives, ::testing::Values("tiny", "tiny-llama3", "tiny-odd"));

}  // namespace
}  // namespace shardtune::testing
