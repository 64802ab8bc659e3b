#include "fit_plans.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "fit.h"
#include "fit_choices.h"
#include "shardtune/core/error.h"
#include "shardtune/model/config.h"

namespace shardtune::train::plan {
namespace {

/// Rounded up: a budget of the number that is told must do.
double gb_at_least(std::int64_t bytes) { return std::ceil(static_cast<double>(bytes) / 1e6) / 1e3; }

/// Asks make_plan(), each question once.
class PlanProber : public Prober {
 public:
  PlanProber(const Choices& choices, const std::set<std::string>& given) : choices_(choices), given_(given) {}

  /// One micro-batch after the other takes what one takes.
  std::int64_t bytes(const Setting& setting) override {
    settings_.insert(setting);
    return figures(setting, together(setting) ? setting.micro_batches : 1).bytes;
  }

  double seconds(const Setting& setting) override {
    settings_.insert(setting);
    const std::int64_t number = setting.micro_batches;
    if (together(setting) || number == 1) return figures(setting, number).seconds;
    const double one = figures(setting, 1).seconds;
    return one + static_cast<double>(number - 1) * (one - once_a_step(setting));
  }

  PlannedSettings plan(const Setting& setting) {
    PlannedSettings planned;
    planned.options = choices_.apply(setting);
    planned.plan = make_plan(planned.options, given_);
    planned.bytes = needed_bytes(planned.plan, planned.options.plan);
    ++plans_;
    return planned;
  }

  std::size_t settings() const { return settings_.size(); }
  std::size_t plans() const { return plans_; }

 private:
  struct Figures {
    std::int64_t bytes = 0;
    double seconds = 0;
  };

  static bool together(const Setting& setting) { return setting.order == "layer_first"; }

  /// Seconds that the first micro-batch takes more than the others: reduction and optimizer. No matter of policy and chunk.
  double once_a_step(const Setting& setting) {
    const auto [place, is_new] = once_.try_emplace({setting.strategy, setting.rows});
    if (is_new) place->second = 2 * figures(setting, 1).seconds - figures(setting, 2).seconds;
    return place->second;
  }

  const Figures& figures(Setting setting, std::int64_t micro_batches) {
    setting.micro_batches = micro_batches;
    const auto [place, is_new] = known_.try_emplace(setting);
    if (is_new) {
      const PlannedSettings planned = plan(setting);
      place->second = {planned.bytes, planned.plan.time->seconds};
    }
    return place->second;
  }

  const Choices& choices_;
  const std::set<std::string>& given_;
  std::map<Setting, Figures> known_;
  std::map<std::pair<std::string, std::int64_t>, double> once_;  ///< by strategy and rows
  std::set<Setting> settings_;
  std::size_t plans_ = 0;
};

[[noreturn]] void refuse(double budget_gb, const Setting& least, const Choices& choices, PlanProber& prober) {
  std::string with;
  for (const auto& [name, value] : choices.named(least)) with += fmt::format(" --{} {}", name, value);
  fail(ErrorClass::kUsage,
       "--fit {}: nothing fits; the least is {:.3f} GB a device, with{}; give that, start more ranks, lower "
       "--max_length or leave the search more options",
       budget_gb, gb_at_least(prober.plan(least).bytes), with.empty() ? " the options as they are" : with);
}

/// The fastest of what the search found, now with all micro-batches, which decide about place and budget.
std::vector<std::pair<Setting, PlannedSettings>> confirm(const std::vector<Candidate>& candidates,
                                                         std::int64_t budget_bytes, PlanProber& prober) {
  std::vector<std::pair<Setting, PlannedSettings>> confirmed;
  for (const Candidate& candidate : candidates) {
    if (confirmed.size() == kFew) break;
    PlannedSettings planned = prober.plan(candidate.setting);
    if (planned.bytes <= budget_bytes) confirmed.emplace_back(candidate.setting, std::move(planned));
  }
  std::ranges::stable_sort(confirmed, {}, [](const auto& one) { return one.second.plan.time.value().seconds; });
  return confirmed;
}

}  // namespace

Fit find_fit(const options::ParseResult& parsed, const std::set<std::string>& explicitly_set) {
  const auto begin = std::chrono::steady_clock::now();
  const PlanOptions& job = parsed.options.plan;
  const auto budget_bytes = static_cast<std::int64_t>(job.fit_gb * 1e9);
  const model::ModelConfig config = model::read_config(parsed.options.model.model_name_or_path);
  const Choices choices(parsed.options, explicitly_set, config.layers);
  PlanProber prober(choices, explicitly_set);
  const Found found = search(choices.space(), budget_bytes, prober);
  auto confirmed = confirm(found.fitting, budget_bytes, prober);
  if (confirmed.empty()) refuse(job.fit_gb, found.least.setting, choices, prober);

  Fit fit;
  fit.effective = parsed.effective;
  fit.settings = prober.settings();
  fit.plans = prober.plans();
  for (const auto& [name, value] : choices.named(confirmed.front().first))
    for (options::EffectiveOption& option : fit.effective)
      if (option.name == name) option = {name, value, "fit"};
  for (auto& [setting, planned] : confirmed) fit.fastest.push_back(std::move(planned));
  fit.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!job.trace.empty()) {
    options::RunOptions traced = fit.fastest.front().options;
    traced.plan.trace = job.trace;
    make_plan(traced, explicitly_set);
  }
  return fit;
}

}  // namespace shardtune::train::plan
