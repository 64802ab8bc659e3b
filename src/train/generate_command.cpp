#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "decoder.h"
#include "forward_plan.h"
#include "ledger_report.h"
#include "memory_check.h"
#include "same_everywhere.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/counted.h"
#include "shardtune/core/error.h"
#include "shardtune/data/chat.h"
#include "shardtune/io/files.h"
#include "shardtune/train/generate.h"

namespace shardtune::train {
namespace {

using nlohmann::ordered_json;

void check_lengths(const Run& run, const std::vector<data::Prompt>& prompts) {
  const std::int64_t wanted = run.options.generate.max_new_tokens, positions = run.config.max_positions;
  if (wanted >= positions)
    fail(ErrorClass::kUsage,
         "--max_new_tokens {} leaves no prompt a place among the model's {} positions (max_position_embeddings); lower "
         "it",
         wanted, positions);
  for (const data::Prompt& prompt : prompts)
    if (const std::int64_t tokens = std::ssize(prompt.ids); tokens + wanted > positions)
      fail(ErrorClass::kBadData,
           "{}: the prompt has {} tokens, and the model {} positions (max_position_embeddings): no room for "
           "--max_new_tokens {}; shorten the prompt or lower --max_new_tokens",
           prompt.where, tokens, positions, wanted);
}

void check_vocabulary(const Run& run, const std::vector<data::Prompt>& prompts) {
  for (const data::Prompt& prompt : prompts)
    for (const std::int32_t id : prompt.ids)
      if (id >= run.config.vocab_size)
        fail(
            ErrorClass::kBadData,
            "{}: token id {} of the prompt is outside the model's vocabulary of {} rows; use the model's own tokenizer",
            prompt.where, id, run.config.vocab_size);
}

/// Prompts, and the tokens that end their continuations.
struct Work {
  std::optional<data::Tokenizer> tokenizer;
  std::vector<data::Prompt> prompts;
  std::vector<Request> requests;

  void read(const Run& run) {
    const options::RunOptions& options = run.options;
    const std::filesystem::path model = options.model.model_name_or_path;
    tokenizer.emplace(data::Tokenizer::load(model));
    if (options.generate.prompts.empty()) prompts.push_back(data::text_prompt(options.generate.prompt, *tokenizer));
    else prompts = data::read_prompts(options.generate.prompts, options.data, *tokenizer);
    check_vocabulary(run, prompts);
    check_lengths(run, prompts);
    const std::vector<std::int32_t> ends = data::read_end_ids(model, *tokenizer, run.config.vocab_size);
    const auto end_of_message = tokenizer->id_of(data::ChatRenderer::kEndOfMessage);
    for (const data::Prompt& prompt : prompts) {
      requests.push_back({.ids = prompt.ids, .ends = ends});
      if (prompt.conversation && end_of_message) requests.back().ends.push_back(*end_of_message);
    }
  }
};

bool holds_results(const std::filesystem::path& file) {
  constexpr std::size_t kMost = 16u << 20;  // of a line; other files may have none that ends
  std::ifstream in(file, std::ios::binary);
  std::string line(std::min<std::uintmax_t>(kMost, std::filesystem::file_size(file)), '\0');
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.erase(std::min(line.find('\n'), line.size()));
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("completion");
}

/// --output replaces results of an earlier run and nothing else.
void check_output(const GenerateOptions& options) {
  namespace fs = std::filesystem;
  const fs::path output = options.output;
  std::error_code unknown;
  if (!options.prompts.empty() && fs::equivalent(output, options.prompts, unknown))
    fail(ErrorClass::kUsage, "--output '{}' is the file of --prompts; give another name", options.output);
  if (!fs::is_regular_file(output, unknown) || fs::is_empty(output) || holds_results(output)) return;
  fail(ErrorClass::kBadStorage,
       "--output '{}' exists and holds no results of generate; give another name, or move it away", options.output);
}

/// Takes the results on rank 0 and hands them on: a text alone as it is, else a JSON object a line.
class Results {
 public:
  Results(const GenerateOptions& options, const Work& work) : options_(options), work_(work) {}

  void open() {
    if (options_.output.empty()) return;
    check_output(options_);
    file_.emplace(options_.output);
  }

  void take(std::size_t request, const Continuation& result) {
    tokens_ += std::ssize(result.ids);
    const std::string text = work_.tokenizer->decode(result.ids, /*skip_special_tokens=*/true);
    if (!file_ && !options_.prompt.empty()) return print(text);
    const data::Prompt& prompt = work_.prompts[request];
    ordered_json line = ordered_json::parse(prompt.given);
    line["completion"] = text;
    line["finish_reason"] = result.ended ? "stop" : "length";
    line["prompt_tokens"] = prompt.ids.size();
    line["token_ids"] = result.ids;
    // A text that max_new_tokens cuts may end inside a character.
    const std::string out = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (!file_) return print(out);
    const std::string with_end = out + "\n";
    file_->write(std::as_bytes(std::span(with_end)));
  }

  void finish(double seconds) {
    if (file_) file_->publish();
    fmt::print(stderr, "{} in {:.1f} s, {:.1f} tokens/s{}\n",
               counted(work_.prompts.size(), "prompt") + ", " + counted(tokens_, "token"), seconds,
               static_cast<double>(tokens_) / seconds, file_ ? "; wrote " + options_.output : "");
  }

 private:
  static void print(const std::string& text) {
    std::fputs((text + "\n").c_str(), stdout);
    std::fflush(stdout);
  }

  const GenerateOptions& options_;
  const Work& work_;
  std::optional<io::AtomicFile> file_;
  std::int64_t tokens_ = 0;
};

std::vector<std::int64_t> prompt_tokens(const std::vector<Request>& requests) {
  std::vector<std::int64_t> tokens;
  for (const Request& request : requests) tokens.push_back(std::ssize(request.ids));
  return tokens;
}

/// What stands, and what the keys and values of a batch add, which the ledger has under kept_activations.
std::string describe_memory(const Run& run, const std::vector<Request>& requests) {
  const plan::PromptLengths largest =
      plan::largest_batch(prompt_tokens(requests), run.options.train.per_device_eval_batch_size,
                          run.communicator->rank(), run.communicator->size());
  std::int64_t tokens = 0;
  for (const std::int64_t prompt : largest.batch) tokens += prompt + run.options.generate.max_new_tokens;
  const std::int64_t cache = cache_bytes_of_token(run.config, run.precision.compute) * tokens;
  const BytesByPurpose live = ledger().live();
  const auto gb = [&](Purpose purpose) { return figure(gigabytes(live[static_cast<std::size_t>(purpose)]), 4); };
  return fmt::format(
      "memory of rank 0 [GB]: weight shards {}, shared by the node {}, gather buffers {}, key/value cache {} at most\n",
      gb(Purpose::kWeightShards), gb(Purpose::kHostShared), gb(Purpose::kGatherBuffers), figure(gigabytes(cache), 4));
}

}  // namespace

void run_generate_command(const options::ParseResult& parsed, comm::Communicator& communicator) {
  check_same_options(parsed, communicator);
  Work work;
  Results results(parsed.options.generate, work);
  comm::agree_on_root(communicator, [&] { results.open(); });
  const std::set<std::string> given = options::given_names(parsed.effective);
  const std::unique_ptr<Run> run =
      build_run(parsed.options, communicator, given, {.kind = RunKind::kGeneration, .before_weights = [&](Run& built) {
                                                        comm::agree(communicator, [&] { work.read(built); });
                                                        check_same_requests(communicator, work.requests);
                                                        if (parsed.options.train.ignore_plan) return;
                                                        refuse_generation_that_cannot_fit(built, given,
                                                                                          prompt_tokens(work.requests));
                                                      }});
  comm::agree_on_root(communicator, [&] { fmt::print(stderr, "{}", describe_memory(*run, work.requests)); });
  const auto start = std::chrono::steady_clock::now();
  generate(*run, work.requests, [&](std::size_t i, const Continuation& result) { results.take(i, result); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  comm::agree_on_root(communicator, [&] { results.finish(seconds); });
}

}  // namespace shardtune::train
