#include "shardtune/train/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "decoder.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/ops.h"

namespace shardtune::train {
namespace {

/// One batch of requests on its way on this rank.
class Batch {
 public:
  Batch(Run& run, const std::vector<Request>& requests, std::size_t first, std::size_t count)
      : run_(run), requests_(requests), first_(first), results_(count),
        sequences_(run.config, capacities(), run.precision.compute) {
    for (std::size_t i = 0; i < count; ++i) {
      active_.push_back(i);
      tokens_.push_back(requests[first + i].ids);
    }
  }

  std::size_t active() const { return active_.size(); }
  const std::vector<Continuation>& results() const { return results_; }

  /// One pass: a token more of every active sequence. Collective but for what `failure` then says.
  void advance(Decoder& decoder, std::optional<comm::Failure>& failure) {
    const at::Tensor logits = decoder.extend(sequences_, tokens_);
    if (active_.empty()) return;
    if (!ops::all_finite(logits))
      failure = comm::Failure{ErrorClass::kNonFinite,
                              "a logit is not finite; the weights have left the range in which the model computes"};
    else take_tokens(logits);
  }

 private:
  std::vector<std::int64_t> capacities() const {
    std::vector<std::int64_t> tokens;
    for (std::size_t i = 0; i < results_.size(); ++i)
      tokens.push_back(static_cast<std::int64_t>(requests_[first_ + i].ids.size()) +
                       run_.options.generate.max_new_tokens);
    return tokens;
  }

  void take_tokens(const at::Tensor& logits) {
    const auto width = static_cast<std::size_t>(logits.size(1));
    const float* row = logits.const_data_ptr<float>();
    std::vector<std::size_t> done;
    for (std::size_t i = 0; i < active_.size(); ++i, row += width) {
      const std::size_t request = first_ + active_[i];
      Continuation& result = results_[active_[i]];
      const auto position = static_cast<std::uint32_t>(requests_[request].ids.size() + result.ids.size());
      const std::int32_t token =
          next_token({row, width}, run_.options.generate, run_.options.data.seed, request, position);
      result.ids.push_back(token);
      result.ended = std::ranges::find(requests_[request].ends, token) != requests_[request].ends.end();
      tokens_[i] = {token};
      if (result.ended || std::ssize(result.ids) >= run_.options.generate.max_new_tokens) done.push_back(i);
    }
    for (auto i = done.rbegin(); i != done.rend(); ++i) {
      sequences_.erase(*i);
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(*i));
      tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(*i));
    }
  }

  Run& run_;
  const std::vector<Request>& requests_;
  std::size_t first_;
  std::vector<Continuation> results_;
  Sequences sequences_;
  std::vector<std::size_t> active_;  ///< of the batch's requests, those that go on
  std::vector<std::vector<std::int32_t>> tokens_;  ///< new ones of each active sequence
};

/// Runs the ranks' batches to their ends. Collective.
void finish(Run& run, Decoder& decoder, Batch& batch) {
  struct State {
    std::uint64_t active = 0, failed = 0;
  };
  std::optional<comm::Failure> failure;
  while (true) {
    State all;
    for (const State& rank : run.communicator->gather_values(State{batch.active(), failure ? 1u : 0u})) {
      all.active += rank.active;
      all.failed += rank.failed;
    }
    if (all.failed > 0) comm::agree_or_throw(*run.communicator, failure);
    if (all.active == 0) return;
    batch.advance(decoder, failure);
  }
}

/// The continuations of a round on every rank, by rank and then in the order of the batch: of each its length, whether it ended,
/// and its ids, in max_new_tokens + 2 numbers. Collective.
std::vector<Continuation> gather(Run& run, const Batch& batch, std::size_t batch_size) {
  const auto width = static_cast<std::size_t>(run.options.generate.max_new_tokens) + 2;
  std::vector<std::int32_t> mine(batch_size * width);
  for (std::size_t i = 0; i < batch.results().size(); ++i) {
    const Continuation& result = batch.results()[i];
    std::int32_t* at = mine.data() + i * width;
    *at++ = static_cast<std::int32_t>(result.ids.size());
    *at++ = result.ended;
    std::ranges::copy(result.ids, at);
  }
  std::vector<std::int32_t> all(mine.size() * static_cast<std::size_t>(run.communicator->size()));
  run.communicator->gather_control(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<Continuation> results;
  for (const std::int32_t* at = all.data(); at < all.data() + all.size(); at += width)
    results.push_back({.ids = {at + 2, at + 2 + at[0]}, .ended = at[1] == 1});
  return results;
}

}  // namespace

void generate(Run& run, const std::vector<Request>& requests, const TakeContinuation& take) {
  const auto batch_size =
      std::min(static_cast<std::size_t>(run.options.train.per_device_eval_batch_size), requests.size());
  const std::size_t round_size = batch_size * static_cast<std::size_t>(run.communicator->size());
  Decoder decoder(run);
  std::size_t longest = 0;
  for (const Request& request : requests) longest = std::max(longest, request.ids.size());
  decoder.prepare(static_cast<std::int64_t>(longest) + run.options.generate.max_new_tokens);
  for (std::size_t round = 0; round < requests.size(); round += round_size) {
    const std::size_t first =
        std::min(round + batch_size * static_cast<std::size_t>(run.communicator->rank()), requests.size());
    Batch batch(run, requests, first, std::min(batch_size, requests.size() - first));
    finish(run, decoder, batch);
    const std::vector<Continuation> results = gather(run, batch, batch_size);
    comm::agree_on_root(*run.communicator, [&] {
      for (std::size_t i = 0; i < std::min(round_size, requests.size() - round); ++i) take(round + i, results[i]);
    });
  }
  decoder.finish();
}

}  // namespace shardtune::train
