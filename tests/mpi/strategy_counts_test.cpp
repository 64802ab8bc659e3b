// Number and bytes of the collectives of one step of M micro-batches, for every choice of strategy, wrapping, order and base, from
// written formulas. LoRA on an untied model of L layers: the embedding and the head have one frozen buffer each, a layer one frozen
// and one trained. A unit of layers is gathered U times forward; backward needs all but the last again. In pieces, embedding and
// head are gathered piece by piece, the final norm by itself.
#include <gtest/gtest.h>

#include "shared_scratch.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

struct Choice {
  const char* name;
  const char* strategy = "FULL_SHARD";
  int group = 0, inner = 0;
  const char* wrap = "TRANSFORMER_BASED_WRAP";
  const char* order = "micro_batch_first";
  bool shared = false;
  int least_ranks = 1, multiple = 1;
  std::int64_t pieces = 1;
};

constexpr int kMicroBatches = 3;

const std::vector<Choice> kChoices = {
    {"full_shard"},
    {"full_shard_layer_first", "FULL_SHARD", 0, 0, "TRANSFORMER_BASED_WRAP", "layer_first"},
    {"full_shard_shared", "FULL_SHARD", 0, 0, "TRANSFORMER_BASED_WRAP", "micro_batch_first", true, 2},
    {"grad_op", "SHARD_GRAD_OP"},
    {"grad_op_layer_first", "SHARD_GRAD_OP", 0, 0, "TRANSFORMER_BASED_WRAP", "layer_first"},
    {"grad_op_shared", "SHARD_GRAD_OP", 0, 0, "TRANSFORMER_BASED_WRAP", "micro_batch_first", true, 2},
    {"no_shard", "NO_SHARD"},
    {"no_shard_layer_first", "NO_SHARD", 0, 0, "TRANSFORMER_BASED_WRAP", "layer_first"},
    {"hybrid_2", "HYBRID_SHARD", 2, 0, "TRANSFORMER_BASED_WRAP", "micro_batch_first", false, 2, 2},
    {"hybrid_zero2_2", "_HYBRID_SHARD_ZERO2", 2, 0, "TRANSFORMER_BASED_WRAP", "micro_batch_first", false, 2, 2},
    {"reshard_to_2", "FULL_SHARD", 0, 2, "TRANSFORMER_BASED_WRAP", "micro_batch_first", false, 4, 2},
    {"no_wrap", "FULL_SHARD", 0, 0, "NO_WRAP"},
    {"size_wrap", "FULL_SHARD", 0, 0, "SIZE_BASED_WRAP"},
    {"size_wrap_grad_op", "SHARD_GRAD_OP", 0, 0, "SIZE_BASED_WRAP"},
    {.name = "pieces", .pieces = 3},
    {.name = "pieces_layer_first", .order = "layer_first", .pieces = 3},
    {.name = "pieces_grad_op", .strategy = "SHARD_GRAD_OP", .pieces = 3},
    {.name = "pieces_shared", .shared = true, .least_ranks = 2, .pieces = 3},
    {.name = "pieces_no_wrap", .wrap = "NO_WRAP", .pieces = 3},
    {.name = "pieces_size_wrap", .wrap = "SIZE_BASED_WRAP", .pieces = 3},
};

std::int64_t rounded(std::int64_t n, std::int64_t granule) { return (n + granule - 1) / granule * granule; }

/// A flat buffer of `elements`, cut over `ranks`, as the layout pads it: elements of one shard.
std::int64_t shard(std::int64_t elements, std::int64_t granule, std::int64_t ranks) {
  return rounded((elements + ranks - 1) / ranks, granule);
}

/// Elements of the small model's units.
struct Sizes {
  std::int64_t words, width, embedding, layer, lora, head;

  explicit Sizes(const model::ModelConfig& c) {
    const std::int64_t query = c.heads * c.head_dim, key = c.kv_heads * c.head_dim, d = c.hidden_size,
                       f = c.intermediate_size, rank = 8;
    words = c.vocab_size;
    width = d;
    embedding = c.vocab_size * d;
    head = d + c.vocab_size * d;
    layer = 2 * d;
    lora = 0;
    for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {d, query}, {d, key}, {d, key}, {query, d}, {d, f}, {d, f}, {f, d}}) {
      layer += in * out;
      lora += rounded(rank * in, 256) + rounded(out * rank, 256);
    }
  }
};

struct Expected {
  std::uint64_t gathers = 0, gather_bytes = 0, exchanges = 0, exchange_bytes = 0;

  void gather(std::int64_t times, std::int64_t elements, std::int64_t granule, std::int64_t ranks) {
    if (ranks == 1) return;
    gathers += static_cast<std::uint64_t>(times);
    gather_bytes += static_cast<std::uint64_t>(times * shard(elements, granule, ranks) * 4 * (ranks - 1));
  }
  /// The same buffer, cut over `ranks` but spread over `inner` of them.
  void gather_inner(std::int64_t times, std::int64_t elements, std::int64_t granule, std::int64_t ranks,
                    std::int64_t inner) {
    gathers += static_cast<std::uint64_t>(times);
    gather_bytes +=
        static_cast<std::uint64_t>(times * shard(elements, granule, ranks) * (ranks / inner) * 4 * (inner - 1));
  }
  void exchange(std::int64_t times, std::int64_t elements, std::int64_t ranks) {
    if (ranks == 1) return;
    exchanges += static_cast<std::uint64_t>(times);
    exchange_bytes += static_cast<std::uint64_t>(times * shard(elements, 256, ranks) * 4 * (ranks - 1));
  }
  /// fp64 sums of `elements` over `replicas`: an exchange of pieces and a gather of their sums.
  void replicas(std::int64_t times, std::int64_t elements, std::int64_t count) {
    if (count == 1) return;
    const auto bytes = static_cast<std::uint64_t>(times * ((elements + count - 1) / count) * 8 * (count - 1));
    gathers += static_cast<std::uint64_t>(times);
    exchanges += static_cast<std::uint64_t>(times);
    gather_bytes += bytes;
    exchange_bytes += bytes;
  }
};

Expected expected_of(const Choice& c, const Sizes& s, std::int64_t layers) {
  const std::string strategy = c.strategy;
  const std::int64_t world_size = world().size();
  const std::int64_t ranks = strategy == "NO_SHARD" ? 1 : c.group > 0 ? c.group : world_size;
  const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "_HYBRID_SHARD_ZERO2";
  const std::int64_t passes = std::string(c.order) == "layer_first" ? 1 : kMicroBatches;
  const std::int64_t per_unit = std::string(c.wrap) == "SIZE_BASED_WRAP" ? 2 : 1, units = layers / per_unit;
  Expected e;
  if (std::string(c.wrap) == "NO_WRAP") {
    e.gather(passes, s.embedding + layers * s.layer + s.head, 1, ranks);
    e.gather(passes, layers * s.lora, 256, ranks);
    e.exchange(kMicroBatches, layers * s.lora, ranks);
    return e;
  }
  const std::int64_t again = keeps ? 0 : units - 1;
  if (!c.shared) {
    e.gather(passes * units, per_unit * s.layer, 1, ranks);
    // In pieces of rows: the embedding's, the final norm, the head's.
    for (std::int64_t piece = 0; piece < c.pieces && c.pieces > 1; ++piece)
      e.gather(2 * passes, s.width * (s.words * (piece + 1) / c.pieces - s.words * piece / c.pieces), 1, ranks);
    if (c.pieces > 1) e.gather(passes, s.width, 1, ranks);
    else e.gather(passes, s.embedding, 1, ranks), e.gather(passes, s.head, 1, ranks);
  }
  e.gather(passes * units, per_unit * s.lora, 256, ranks);
  if (c.inner > 0) {
    e.gather_inner(passes * again, s.layer, 1, ranks, c.inner);
    e.gather_inner(passes * again, s.lora, 256, ranks, c.inner);
  } else {
    if (!c.shared) e.gather(passes * again, per_unit * s.layer, 1, ranks);
    e.gather(passes * again, per_unit * s.lora, 256, ranks);
  }
  e.exchange(kMicroBatches * units, per_unit * s.lora, ranks);
  e.replicas(units, shard(per_unit * s.lora, 256, ranks), world_size / ranks);
  return e;
}

class StrategyCounts : public ::testing::TestWithParam<Choice> {};

TEST_P(StrategyCounts, OfOneStep) {
  const Choice c = GetParam();
  if (world().size() < c.least_ranks || world().size() % c.multiple != 0) return;  // no such mesh on these ranks
  SharedScratch scratch;
  on_rank_0([&] {
    auto batches = read_tensors(data_folder() / "numerics/tiny/batches.safetensors");
    write_rows(scratch / "rows.jsonl", batches["train.input_ids"].view({80, 48}),
               batches["train.labels"].view({80, 48}));
  });
  options::RunOptions options = plain_options(data_folder() / "models/tiny", scratch / "rows.jsonl");
  options.fsdp.sharding_strategy = c.strategy;
  options.fsdp.shard_group_size = c.group;
  if (c.inner > 0) options.fsdp.reshard_after_forward = std::to_string(c.inner);
  options.fsdp.auto_wrap_policy = c.wrap;
  options.fsdp.min_num_params = 60'000;  // two layers
  options.fsdp.share_base_on_node = c.shared ? "true" : "false";
  options.train.accumulation_order = c.order;
  options.model.table_pieces = c.pieces;
  options.train.gradient_accumulation_steps = kMicroBatches;
  for (const char* prefetch : {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}) {
    SCOPED_TRACE(prefetch);
    options.fsdp.backward_prefetch = prefetch;
    options.fsdp.forward_prefetch = std::string(prefetch) != "NO_PREFETCH";
    const auto run = train::build_run(options, world());
    run->mesh->reset_counts();
    run_steps(*run, 0, 1);
    const comm::Counts found = run->mesh->counts();
    const Expected expected = expected_of(c, Sizes(run->config), run->config.layers);
    EXPECT_EQ(found.all_gathers, expected.gathers);
    EXPECT_EQ(found.all_gather_bytes, expected.gather_bytes);
    EXPECT_EQ(found.exchanges, expected.exchanges);
    EXPECT_EQ(found.exchange_bytes, expected.exchange_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Choices, StrategyCounts, ::testing::ValuesIn(kChoices),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shardtune::testing
