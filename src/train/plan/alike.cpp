#include "alike.h"

#include <optional>
#include <utility>

#include "recorded_work.h"
#include "shardtune/core/ledger.h"

namespace shardtune::train::plan {
namespace {

/// What the rest of the program sees of a micro-batch that is over.
struct After {
  comm::Counts collectives;  ///< so far
  BytesByPurpose live{};
};

comm::Counts between(const comm::Counts& from, const comm::Counts& to) {
  return {.all_gathers = to.all_gathers - from.all_gathers,
          .all_gather_bytes = to.all_gather_bytes - from.all_gather_bytes,
          .exchanges = to.exchanges - from.exchanges,
          .exchange_bytes = to.exchange_bytes - from.exchange_bytes,
          .control = to.control - from.control};
}

comm::Counts times(const comm::Counts& one, std::uint64_t n) {
  return {.all_gathers = n * one.all_gathers,
          .all_gather_bytes = n * one.all_gather_bytes,
          .exchanges = n * one.exchanges,
          .exchange_bytes = n * one.exchange_bytes,
          .control = n * one.control};
}

/// One micro-batch after the other until they repeat; the others told only.
class OneByOne {
 public:
  OneByOne(Run& run, const data::MicroBatch& batch, std::int64_t slots) : run_(run), batch_(batch), slots_(slots) {}

  std::vector<double> forward_backward(std::int64_t step, double scale) {
    WorkRecorder recorder(work_listener());
    std::vector<double> losses;
    {
      const ListenScope listening(recorder);
      while (std::ssize(losses) < slots_ && !(recorder.repeats() && same_after())) {
        recorder.begin_piece();
        losses.push_back(run_.engine->forward_backward({&batch_, 1}, step, scale).front());
        look();
      }
    }
    computed_ = std::ssize(losses);
    for (std::int64_t left = slots_ - computed_; left > 0; --left) recorder.tell_again();
    losses.resize(static_cast<std::size_t>(slots_), losses.back());
    return losses;
  }

  std::int64_t computed() const { return computed_; }
  /// The collectives of the micro-batches that were told only.
  comm::Counts told() const {
    if (computed_ == slots_) return {};
    return times(between(after_[1].collectives, after_[2].collectives), static_cast<std::uint64_t>(slots_ - computed_));
  }

 private:
  void look() {
    after_[0] = std::exchange(after_[1], std::exchange(after_[2], After{run_.mesh->counts(), ledger().live()}));
    ++looks_;
  }

  /// Whether the last two micro-batches had the same collectives and left the same bytes.
  bool same_after() const {
    return looks_ > 2 && after_[1].live == after_[2].live &&
           between(after_[0].collectives, after_[1].collectives) ==
               between(after_[1].collectives, after_[2].collectives);
  }

  Run& run_;
  const data::MicroBatch& batch_;
  std::int64_t slots_, computed_ = 0, looks_ = 0;
  After after_[3];  ///< of the last three, the latest last
};

}  // namespace

PlannedStep planned_step(Run& run, const data::MicroBatch& batch, std::int64_t slots, std::int64_t step, bool all) {
  PlannedStep planned;
  planned.computed = slots;
  run.mesh->reset_counts();
  if (all || run.options.train.accumulation_order == "layer_first") {
    planned.result = train_step(run, std::vector<data::MicroBatch>(static_cast<std::size_t>(slots), batch), step);
    planned.collectives = run.mesh->counts();
    return planned;
  }
  OneByOne micro_batches(run, batch, slots);
  const LocalCounts counts{.targets = slots * batch.target_count, .tokens = slots * std::ssize(batch.ids)};
  planned.result =
      train_step(run, counts, step, [&](double scale) { return micro_batches.forward_backward(step, scale); });
  planned.collectives = run.mesh->counts();
  planned.collectives += micro_batches.told();
  planned.computed = micro_batches.computed();
  return planned;
}

}  // namespace shardtune::train::plan
