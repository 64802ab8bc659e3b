#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shardtune/comm/communicator.h"
#include "shardtune/data/prompts.h"
#include "shardtune/options/run_options.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// A prompt with the ids that end its continuation.
struct Request {
  std::vector<std::int32_t> ids, ends;
};

struct Continuation {
  std::vector<std::int32_t> ids;  ///< of the new tokens, the one that ends it included
  bool ended = false;  ///< by such a token; else by max_new_tokens
};

/// The token that follows logits [V] (fp32): the likeliest one, of equal ones the lowest id; or with do_sample one drawn as
/// Transformers does it: temperature, then top_k (ties with the last one stay), then top_p. The draw is a pure function of seed,
/// `prompt` and `position` (Philox; counter position, prompt), so it depends neither on ranks nor on what else is in the batch.
std::int32_t next_token(std::span<const float> logits, const GenerateOptions& options, std::uint64_t seed,
                        std::uint64_t prompt, std::uint32_t position);

/// Takes the results in the order of the requests as they become known; called on rank 0.
using TakeContinuation = std::function<void(std::size_t request, const Continuation& continuation)>;

/// Continues all requests. Batches of options.train.per_device_eval_batch_size of them are dealt to the ranks in turn, so that a
/// batch is the same on any number of ranks; a rank without one takes part in the gathers. Keys and values are kept. `run` is of
/// RunKind::kGeneration. AgreedError(kNonFinite) when a logit is not finite. Collective.
void generate(Run& run, const std::vector<Request>& requests, const TakeContinuation& take);

/// The `generate` command: continues --prompt or the prompts of a file, prints the results or writes them to a file. Errors as of
/// train(). Collective.
void run_generate_command(const options::ParseResult& parsed, comm::Communicator& communicator);

}  // namespace shardtune::train
