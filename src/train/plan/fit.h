#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// The search of `shardtune plan --fit`: the fastest settings whose memory is within a budget.
///
/// A probe is a whole plan, so as few as possible are asked. The search relies on this, which holds for every strategy and
/// order:
///   memory does not shrink with larger micro-batches, with larger chunks and with later policies of the list;
///   time does not grow with larger chunks and with later policies.
namespace shardtune::train::plan {

/// What is searched: it changes memory and time of a run, but not what a step computes.
struct Setting {
  std::string strategy;  ///< --fsdp_sharding_strategy
  std::string order;  ///< --accumulation_order
  std::int64_t rows = 1;  ///< of a micro-batch
  std::int64_t micro_batches = 1;  ///< of a step
  std::int64_t chunk_tokens = 0;  ///< --ffn_chunk_tokens
  std::int64_t policy = 0;  ///< number in Space::policies

  auto operator<=>(const Setting&) const = default;
};

struct Split {
  std::int64_t rows = 1, micro_batches = 1;

  bool operator==(const Split&) const = default;
};

/// All ways to deal `rows_of_step` rows in equal micro-batches, by rows of one. Neither number is above `most`.
std::vector<Split> splits_of(std::int64_t rows_of_step, std::int64_t most);

/// The choices. One value stands for an option that is held.
struct Space {
  std::vector<std::string> strategies;
  std::vector<std::string> orders;
  std::vector<Split> splits;  ///< by rows
  std::vector<std::int64_t> chunk_tokens;  ///< ascending
  std::int64_t row_tokens = 0;  ///< above 0: a micro-batch in one chunk is a choice too, and what is larger is none
  std::vector<std::string> policies;  ///< of activations, from the least memory to the least time

  /// Ascending, for micro-batches of so many rows.
  std::vector<std::int64_t> chunks(std::int64_t rows) const;
};

/// Answers for a setting.
class Prober {
 public:
  virtual ~Prober() = default;
  virtual std::int64_t bytes(const Setting& setting) = 0;  ///< of a device, at most
  virtual double seconds(const Setting& setting) = 0;  ///< of a step
};

struct Candidate {
  Setting setting;
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// So many of the fastest are looked for; slower ones are left out unless they were met on the way.
constexpr std::size_t kFew = 3;

struct Found {
  /// Fastest first; of settings that differ in the policy only, the fastest that fits. Chunks are left out
  /// where a larger one fits with the same policy, but for the smallest.
  std::vector<Candidate> fitting;
  Candidate least;  ///< with the least bytes of all that were asked; without its seconds
};

/// Within `budget_bytes`. Every list of `space` has something in it.
Found search(const Space& space, std::int64_t budget_bytes, Prober& prober);

}  // namespace shardtune::train::plan
