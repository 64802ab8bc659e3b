#include "manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shardtune/io/json.h"

namespace shardtune::checkpoint {

void bad_checkpoint(const std::filesystem::path& folder, const std::string& reason) {
  fail(ErrorClass::kBadCheckpoint, "{}: {}", folder.string(), reason);
}

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kSchema = 2;

ordered_json parameters_json(fsdp::ShardedModel& shards) {
  ordered_json list = ordered_json::array();
  for (std::size_t unit = 0; unit < shards.units(); ++unit)
    for (const model::Parameter& parameter : shards.spec(unit).parameters)
      if (parameter.trainable && !parameter.borrowed)
        list.push_back({{"name", parameter.name}, {"shape", parameter.shape}, {"unit", unit}});
  return list;
}

ordered_json roles_json(const fsdp::ShardedModel& shards, const optim::Optimizer& optimizer) {
  ordered_json list = ordered_json::array();
  for (const optim::StateRole& role : roles_of(shards, optimizer))
    list.push_back({{"name", role.name}, {"dtype", dtype_name(role.dtype)}});
  return list;
}

/// Checked access to manifest.json.
class Reader {
 public:
  Reader(const json& root, std::filesystem::path folder) : root_(root), folder_(std::move(folder)) {
    if (!root.is_object()) bad("is not a JSON object");
  }

  std::string folder_name() const {
    return (folder_.has_filename() ? folder_ : folder_.parent_path()).filename().string();
  }

  [[noreturn]] void bad(const std::string& reason) const { bad_checkpoint(folder_, "manifest.json " + reason); }
  [[noreturn]] void differs(const std::string& reason) const { bad_checkpoint(folder_, reason); }

  const json& at(const char* key) const {
    if (!root_.contains(key)) bad(fmt::format("has no '{}'", key));
    return root_[key];
  }
  /// A whole number from 0 on; 2.7 is none.
  std::int64_t count(const char* key) const {
    const json& value = at(key);
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > 9e15)
      bad(fmt::format("says {} for '{}', expected a whole number", value.dump(), key));
    return value.get<std::int64_t>();
  }
  double finite(const char* key) const {
    const json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      bad(fmt::format("says {} for '{}', expected a number", value.dump(), key));
    return value.get<double>();
  }

 private:
  const json& root_;
  std::filesystem::path folder_;
};

void check_settings(const Reader& manifest, const RunState& expected) {
  const json& fixed = manifest.at("fixed");
  for (const auto& [name, value] : expected.fixed) {
    const bool stored = fixed.is_object() && fixed.contains(name) && fixed[name].is_string();
    if (const std::string then = stored ? fixed[name].get<std::string>() : "(not stored)"; then != value)
      manifest.differs(fmt::format("--{} was {} in the checkpoint's run and is {} now; a resumed run must keep it",
                                   name, then, value));
  }
}

/// A setting that this run does not have, as one that only some runs have.
void check_no_other_setting(const Reader& manifest, const RunState& expected) {
  const json& fixed = manifest.at("fixed");
  if (!fixed.is_object() || expected.fixed.empty()) return;
  const auto is_set = [&](const std::string& name) {
    return std::ranges::any_of(expected.fixed, [&](const auto& one) { return one.first == name; });
  };
  for (const auto& [name, value] : fixed.items())
    if (!is_set(name))
      manifest.differs(fmt::format("--{} was {} in the checkpoint's run and is another now; a resumed run must keep it",
                                   name, value.is_string() ? value.get<std::string>() : value.dump()));
}

void check_optimizer(const Reader& manifest, const fsdp::ShardedModel& shards, const optim::Optimizer& optimizer) {
  // Before schema 2 there was one optimizer.
  const bool older = manifest.count("schema") < 2;
  const json then = older ? json("adamw_torch") : manifest.at("optim");
  if (!then.is_string()) manifest.bad(fmt::format("says {} for 'optim', expected a name", then.dump()));
  if (const auto name = then.get<std::string>(); name != optimizer.name())
    manifest.differs(
        fmt::format("--optim was {} in the checkpoint's run and is {} now, which keeps another state; a "
                    "resumed run must keep it",
                    name, optimizer.name()));
  if (older) return;
  const json now = roles_json(shards, optimizer);
  if (const json& roles = manifest.at("roles"); roles != now)
    manifest.bad(fmt::format("has 'roles' {}, expected {}", roles.dump(), now.dump()));
}

void check_parameters(const Reader& manifest, fsdp::ShardedModel& shards) {
  const json now = parameters_json(shards);
  const json& then = manifest.at("parameters");
  if (!then.is_array()) manifest.bad("has no list 'parameters'");
  for (std::size_t i = 0; i < std::max(now.size(), then.size()); ++i) {
    const std::string left = i < then.size() ? then[i].dump() : "nothing",
                      right = i < now.size() ? now[i].dump() : "nothing";
    if (left != right)
      manifest.differs(fmt::format(
          "trained parameter {} is {} in the checkpoint and {} in this run; keep the model, the adapter's options, "
          "--fsdp_auto_wrap_policy and --fsdp_min_num_params of the checkpoint's run",
          i, left, right));
  }
}

/// Numbers that no run writes would be trained with all the same.
void check_counters(const Reader& manifest, const RunState& state) {
  if (state.optimizer_steps > state.step)
    manifest.bad(fmt::format("has {} 'optimizer_steps' in {} steps", state.optimizer_steps, state.step));
  // The scale begins at 2^16 and is doubled and halved.
  int exponent = 0;
  if (std::frexp(state.loss_scale, &exponent) != 0.5 || exponent < -148 || exponent > 128)
    manifest.bad(fmt::format("has 'loss_scale' {}, expected a power of two that fp32 holds", state.loss_scale));
  if (state.good_steps >= kLossScaleGrowthSteps)
    manifest.bad(fmt::format("has {} 'good_steps', expected less than {}", state.good_steps, kLossScaleGrowthSteps));
  const std::string name = manifest.folder_name();
  if (is_checkpoint_name(name) && name != fmt::format("checkpoint-{}", state.step))
    manifest.bad(
        fmt::format("is of step {}, but the folder is called {}; give it its own name again", state.step, name));
}

std::vector<Hashes> read_hashes(const Reader& manifest, const std::vector<optim::StateRole>& roles, std::size_t ranks) {
  const json& list = manifest.at("xxh3_128");
  std::vector<Hashes> hashes(ranks);
  if (!list.is_array() || list.size() != ranks) manifest.bad(fmt::format("has no list 'xxh3_128' of {} ranks", ranks));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (const optim::StateRole& role : roles) {
      if (!list[rank].is_object() || !list[rank].contains(role.name) || !list[rank][role.name].is_string())
        manifest.bad(fmt::format("has no hash of rank {}'s '{}'", rank, role.name));
      hashes[rank].push_back(list[rank][role.name].get<std::string>());
    }
  return hashes;
}

}  // namespace

std::string manifest_text(const RunState& state, fsdp::ShardedModel& shards, const optim::Optimizer& optimizer,
                          const std::vector<Hashes>& hashes) {
  ordered_json fixed = ordered_json::object();
  for (const auto& [name, value] : state.fixed) fixed[name] = value;
  const std::vector<optim::StateRole> roles = roles_of(shards, optimizer);
  ordered_json ranks = ordered_json::array();
  for (const Hashes& rank : hashes) {
    ordered_json entry = ordered_json::object();
    for (std::size_t role = 0; role < roles.size(); ++role) entry[roles[role].name] = rank[role];
    ranks.push_back(entry);
  }
  const ordered_json manifest = {{"schema", kSchema},
                                 {"step", state.step},
                                 {"epoch", state.position.epoch},
                                 {"step_in_epoch", state.position.step_in_epoch},
                                 {"num_tokens", state.num_tokens},
                                 {"loss_sum", state.loss_sum},
                                 {"optimizer_steps", state.optimizer_steps},
                                 {"loss_scale", state.loss_scale},
                                 {"good_steps", state.good_steps},
                                 {"world_size", hashes.size()},
                                 {"fixed", fixed},
                                 {"parameters", parameters_json(shards)},
                                 {"optim", optimizer.name()},
                                 {"roles", roles_json(shards, optimizer)},
                                 {"xxh3_128", ranks}};
  return manifest.dump(1) + "\n";
}

Manifest read_manifest(const std::filesystem::path& folder, const RunState& expected, fsdp::ShardedModel& shards,
                       const optim::Optimizer& optimizer, int ranks) {
  const json root = io::read_json_file(folder / kManifest, ErrorClass::kBadCheckpoint);
  const Reader manifest(root, folder);
  if (const std::int64_t schema = manifest.count("schema"); schema < 1 || schema > kSchema)
    manifest.bad(fmt::format("has schema {}, this program knows 1 to {}", schema, kSchema));
  if (const std::int64_t written = manifest.count("world_size"); written != ranks)
    manifest.differs(
        fmt::format("written by {} ranks, this run has {}; start the same number of ranks", written, ranks));
  check_settings(manifest, expected);
  check_no_other_setting(manifest, expected);
  check_optimizer(manifest, shards, optimizer);
  check_parameters(manifest, shards);
  Manifest out;
  out.state.step = manifest.count("step");
  out.state.position = {manifest.count("epoch"), manifest.count("step_in_epoch")};
  out.state.num_tokens = manifest.count("num_tokens");
  out.state.loss_sum = manifest.finite("loss_sum");
  out.state.optimizer_steps = manifest.count("optimizer_steps");
  out.state.loss_scale = manifest.finite("loss_scale");
  out.state.good_steps = manifest.count("good_steps");
  check_counters(manifest, out.state);
  out.hashes = read_hashes(manifest, roles_of(shards, optimizer), static_cast<std::size_t>(ranks));
  return out;
}

}  // namespace shardtune::checkpoint
