#include "same_everywhere.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <memory>
#include <type_traits>
#include <utility>

#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"

namespace shardtune::train {
namespace {

/// XXH3 over what was added: a number that two different inputs hardly share.
class Digest {
 public:
  Digest() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(T number) { XXH3_64bits_update(state_.get(), &number, sizeof number); }
  void add(const std::string& text) { add_all(text); }
  void add(const std::vector<std::int32_t>& numbers) { add_all(numbers); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  /// The length first, so that neighbours cannot trade elements.
  template <typename Range>
  void add_all(const Range& range) {
    add(range.size());
    XXH3_64bits_update(state_.get(), range.data(), range.size() * sizeof(range[0]));
  }

  std::unique_ptr<XXH3_state_t, Free> state_;
};

std::uint64_t digest_of(const std::vector<data::Row>& rows) {
  Digest digest;
  for (const data::Row& row : rows)
    for (const auto* numbers : {&row.ids, &row.labels, &row.segments}) digest.add(*numbers);
  return digest.value();
}

std::uint64_t digest_of_model(const Run& run) {
  const model::ModelConfig& config = run.config;
  Digest digest;
  for (const model::UnitSpec& unit : run.model->units())
    for (const model::Parameter& parameter : unit.parameters) {
      digest.add(parameter.name);
      for (const std::int64_t size : parameter.shape) digest.add(size);
    }
  digest.add(static_cast<int>(run.precision.compute));
  digest.add(config.heads);
  digest.add(config.norm_epsilon);
  for (const float frequency : model::rotary_inverse_frequencies(config.rotary, config.head_dim)) digest.add(frequency);
  return digest.value();
}

/// What is compared, under the name that the message uses.
constexpr std::array<const char*, 4> kInputs = {"the model's config.json", "the adapter's adapter_config.json",
                                                "the training rows", "the evaluation rows"};

}  // namespace

void check_same_options(const options::ParseResult& parsed, comm::Communicator& communicator) {
  std::string text;  // name, value and source of each option, each with a zero byte behind it: no option holds one
  for (const options::EffectiveOption& option : parsed.effective)
    for (const std::string* part : {&option.name, &option.value, &option.source}) text += *part + '\0';
  const std::string rank0 = communicator.broadcast_text(text, 0);
  comm::agree(communicator, [&] {
    std::size_t at = 0;
    const auto next = [&] {
      const std::size_t end = rank0.find('\0', at);
      SHARDTUNE_CHECK(end != std::string::npos, "rank 0 knows fewer options than this one");
      const std::size_t begin = std::exchange(at, end + 1);
      return rank0.substr(begin, end - begin);
    };
    for (const options::EffectiveOption& option : parsed.effective) {
      const std::string name = next(), value = next(), source = next();
      SHARDTUNE_CHECK(name == option.name, "rank 0 has option {} where this rank has {}", name, option.name);
      if (value != option.value)
        fail(ErrorClass::kUsage,
             "option {} is '{}' ({}) here and '{}' ({}) on rank 0; give every rank the same options", name,
             option.value, option.source, value, source);
    }
  });
}

void check_same_requests(comm::Communicator& communicator, const std::vector<Request>& requests) {
  Digest digest;
  for (const Request& request : requests)
    for (const auto* ids : {&request.ids, &request.ends}) digest.add(*ids);
  const auto all = communicator.gather_values(digest.value());
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw comm::AgreedError(
          ErrorClass::kBadData,
          fmt::format("rank {}: the prompts or the model's end-of-text tokens differ from those that rank 0 read; give "
                      "all nodes the same files",
                      rank));
}

void check_same_inputs(const Run& run) {
  Digest adapter;
  if (run.lora) {
    adapter.add(run.lora->scaling());
    for (const std::string& module : run.lora->modules) adapter.add(module);
  }
  const std::array<std::uint64_t, kInputs.size()> mine = {digest_of_model(run), adapter.value(),
                                                          digest_of(run.train_rows), digest_of(run.eval_rows)};
  const auto all = run.communicator->gather_values(mine);
  for (std::size_t input = 0; input < kInputs.size(); ++input)
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank][input] != all[0][input])
        throw comm::AgreedError(
            input < 2 ? ErrorClass::kBadModel : ErrorClass::kBadData,
            fmt::format("rank {}: {} differ from those that rank 0 read; give all nodes the same files", rank,
                        kInputs[input]));
}

}  // namespace shardtune::train
