#include <algorithm>
#include <cmath>

#include "activation_policy.h"
#include "memory_check.h"
#include "plan/synthetic_rows.h"
#include "same_everywhere.h"
#include "sharding_setup.h"
#include "shardtune/adapters/embedding.h"
#include "shardtune/adapters/peft_folder.h"
#include "shardtune/adapters/start.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/model/piecewise_loss.h"
#include "shardtune/quant/options.h"
#include "shardtune/train/run.h"
#include "shardtune/train/run_adapters.h"
#include "start_adapters.h"

namespace shardtune::train {
namespace {

std::vector<data::Row> read_rows(const options::RunOptions& options, const data::TokenizerSource& tokenizer,
                                 const model::ModelConfig& config, bool train, data::RowStatistics& statistics) {
  const std::filesystem::path file = data::split_file(options.data, train);
  if (file.empty()) return {};
  const auto examples = data::read_examples(file, options.data, tokenizer, config.vocab_size);
  return data::make_rows(examples, options.data, statistics, file.string() + (train ? "" : " (evaluation)"));
}

void read_data(Run& run) {
  const options::RunOptions& options = run.options;
  std::optional<data::Tokenizer> loaded;
  const data::TokenizerSource tokenizer = [&]() -> const data::Tokenizer& {
    if (!loaded) loaded.emplace(data::Tokenizer::load(options.model.model_name_or_path));
    return *loaded;
  };
  if (run.kind != RunKind::kTraining) {
    // A data set of one file is evaluated itself.
    const bool one_file = data::split_file(options.data, /*train=*/false).empty() &&
                          !std::filesystem::is_directory(options.data.dataset_name);
    run.eval_rows = read_rows(options, tokenizer, run.config, one_file, run.eval_statistics);
    if (run.eval_rows.empty())
      fail(ErrorClass::kBadData, "--dataset_name '{}' has no file '{}.jsonl' (--dataset_test_split)",
           options.data.dataset_name, options.data.dataset_test_split);
    return;
  }
  run.train_rows = read_rows(options, tokenizer, run.config, true, run.train_statistics);
  const bool evaluates = options.train.eval_strategy != "no" || options.train.eval_on_start;
  if (!evaluates) return;
  run.eval_rows = read_rows(options, tokenizer, run.config, false, run.eval_statistics);
  if (run.eval_rows.empty())
    fail(ErrorClass::kBadData,
         "evaluation is asked for (--eval_strategy {}, --eval_on_start) but '{}' has no split '{}'; give a folder with "
         "one "
         ".jsonl file for each split",
         options.train.eval_strategy, options.data.dataset_name, options.data.dataset_test_split);
}

void make_loaders(Run& run) {
  const TrainOptions& train = run.options.train;
  const std::int64_t ranks = run.communicator->size();
  if (!run.eval_rows.empty())
    run.eval_loader = std::make_unique<data::Loader>(static_cast<std::int64_t>(run.eval_rows.size()),
                                                     train.per_device_eval_batch_size, ranks, 1, false, 0);
  if (run.kind != RunKind::kTraining) return;
  // Made-up rows stand for those of one step.
  const std::int64_t rows = run.shapes_only
                                ? train.per_device_train_batch_size * ranks * train.gradient_accumulation_steps
                                : static_cast<std::int64_t>(run.train_rows.size());
  run.train_loader =
      std::make_unique<data::Loader>(rows, train.per_device_train_batch_size, ranks, train.gradient_accumulation_steps,
                                     run.options.data.shuffle, run.options.data.seed);
  run.steps_per_epoch = run.train_loader->steps_per_epoch();
  run.total_steps = total_step_count(train, run.steps_per_epoch);
}

/// In which the layers' linears are stored: as the options ask, or as the files have them, which the options may repeat.
std::optional<quant::Format> choose_base_format(const Run& run, const std::set<std::string>& explicitly_set) {
  const quant::QuantOptions& wish = run.options.quant;
  if (!run.config.quantisation) return quant::format_of(wish);
  const model::StoredQuantisation& stored = *run.config.quantisation;
  const quant::QuantOptions files{.use_4bit_quantization = stored.four_bit,
                                  .use_8bit_quantization = !stored.four_bit,
                                  .bnb_4bit_quant_type = stored.type,
                                  .use_nested_quant = stored.nested};
  const quant::Format format = *quant::format_of(files);
  if (!wish.quantised_cache.empty())
    fail(ErrorClass::kUsage,
         "--quantised_cache: the model's files are quantised already, there is nothing to keep; leave the option out");
  const bool asks =
      std::ranges::any_of(std::initializer_list<const char*>{"use_4bit_quantization", "use_8bit_quantization"},
                          [&](const char* name) { return explicitly_set.contains(name); });
  if (asks && quant::format_of(wish) != format)
    fail(ErrorClass::kUsage,
         "--use_4bit_quantization, --use_8bit_quantization: the model's files are quantised already, as {}; leave the "
         "options of the quantised base out",
         quant::describe(format));
  return format;
}

/// An adapter without them would be lost on the model as it is: rows that nobody trained are in no file.
void check_new_rows_are_trained(const model::ModelConfig& config, const adapters::LoraConfig& lora) {
  if (config.vocab_size == config.stored_vocab_size) return;
  for (const char* module : {"model.embed_tokens", "lm_head"}) {
    if (lora.saved_modules.contains(module)) continue;
    if (config.tied_embeddings && lora.ties_saved_modules) continue;
    fail(ErrorClass::kUsage,
         "--resize_token_embeddings {}: the new rows of {} would be trained nowhere and saved nowhere; give "
         "--lora_modules_to_save embed_tokens,lm_head",
         config.vocab_size, module);
  }
}

void make_model(Run& run, const std::set<std::string>& explicitly_set, bool several_adapters) {
  if (run.options.adapter.use_peft_lora) {
    run.lora = adapters::make_lora_config(run.options.adapter, run.config, explicitly_set);
    run.lora->base_format = choose_base_format(run, explicitly_set);
    run.lora->keeps_originals = several_adapters || !run.options.adapter.other_adapters.empty();
    if (explicitly_set.contains("loraplus_lr_embedding") && !run.lora->modules.contains(adapters::kEmbedding))
      fail(ErrorClass::kUsage,
           "--loraplus_lr_embedding: there is no adapter on embed_tokens; remove it, or add embed_tokens to "
           "--lora_target_modules");
  }
  const bool trains = run.kind == RunKind::kTraining;
  if (!trains && !run.lora)
    if (const auto format = choose_base_format(run, explicitly_set))
      run.lora = adapters::LoraConfig{.modules = {}, .base_format = format};
  if (run.config.quantisation && !run.lora)
    fail(ErrorClass::kUsage,
         "{}: the model's files are quantised and cannot be trained themselves; give --use_peft_lora, or the original "
         "model",
         run.options.model.model_name_or_path);
  std::int64_t pieces = run.options.model.table_pieces;
  if (!run.lora) {
    run.model = std::make_unique<model::LlamaModel>(
        run.config, model::dense_linear_factory(trains), [trains](const std::string&) { return trains; },
        /*untie=*/false, model::EmbeddingAdapterFactory{}, pieces);
    return;
  }
  check_other_adapters(run);
  run.adapter_hosts = std::make_shared<adapters::AdapterHosts>();
  const std::set<std::string>& saved = run.lora->saved_modules;
  check_new_rows_are_trained(run.config, *run.lora);
  check_saved_modules(run.config, *run.lora);
  const bool in_place = !run.lora->keeps_originals;
  if (pieces == 0 && !in_place &&
      (adapters::needs_whole_tables(*run.lora) || others_need_whole_tables(run.options, run.config)))
    pieces = 1;
  // Tied copies go on as one table; others part, as PEFT has it.
  const bool untie =
      in_place && !run.lora->ties_saved_modules && (saved.contains("lm_head") || saved.contains("model.embed_tokens"));
  run.model = std::make_unique<model::LlamaModel>(
      run.config, adapters::lora_linear_factory(*run.lora, run.adapter_hosts),
      [&](const std::string& module) { return in_place && saved.contains(module); }, untie,
      adapters::embedding_adapter_factory(*run.lora, run.adapter_hosts), pieces);
  if (!in_place) adapters::enter_saved_modules(*run.lora, run.model->units_for_adapters());
  if (adapters::starts_from_base(*run.lora)) adapters::check_start_ranks(*run.lora, run.model->units());
}

}  // namespace

void check_saved_modules(const model::ModelConfig& model, const adapters::LoraConfig& lora) {
  for (const std::string& module : lora.saved_modules)
    if (model.quantisation && module.starts_with("model.layers.") && module.ends_with("_proj"))
      fail(ErrorClass::kUsage,
           "--lora_modules_to_save: {} is quantised in the model's files and cannot be trained itself; start from the "
           "original model",
           module);
}

std::int64_t total_step_count(const TrainOptions& options, std::int64_t steps_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  return static_cast<std::int64_t>(std::ceil(options.num_train_epochs * static_cast<double>(steps_per_epoch)));
}

std::unique_ptr<Run> build_run(const options::RunOptions& options, comm::Communicator& communicator,
                               const std::set<std::string>& explicitly_set, const BuildRequest& request) {
  const std::optional<ShapesOnly>& shapes_only = request.shapes_only;
  auto run = std::make_unique<Run>();
  run->shapes_only = shapes_only;
  run->options = options;
  run->kind = request.kind;
  run->communicator = &communicator;
  comm::agree(communicator, [&] {
    run->config = model::read_config(options.model.model_name_or_path);
    if (const std::int64_t rows = options.model.resize_token_embeddings; rows > 0)
      model::grow_vocabulary(run->config, rows);
    run->precision = choose_precision(options, run->config, ops::has_fp16() || plans_gpus(*run));
    if (run->precision.loss_scaling) run->scaler.emplace();
    make_model(*run, explicitly_set, request.several_adapters);
    if (shapes_only && run->kind != RunKind::kTraining) run->eval_rows = shapes_only->rows;
    else if (shapes_only) run->train_rows = shapes_only->rows.empty() ? synthetic_rows(options) : shapes_only->rows;
    else if (run->kind != RunKind::kGeneration) read_data(*run);
    make_loaders(*run);
  });
  check_same_inputs(*run);
  const bool trains = run->kind == RunKind::kTraining;
  if (!shapes_only && !options.train.ignore_plan) {
    if (trains) refuse_what_cannot_fit(*run, explicitly_set);
    if (run->kind == RunKind::kEvaluation) refuse_evaluation_that_cannot_fit(*run, explicitly_set);
  }
  // Before there are any shards: what generation needs may be more than can be had.
  const bool early = run->kind == RunKind::kGeneration;
  if (!shapes_only && early && request.before_weights) request.before_weights(*run);
  std::shared_ptr<const WeightFiles> files;
  if (!shapes_only) comm::agree(communicator, [&] { files = open_weight_files(*run); });
  const fsdp::ShardSettings settings = plan_sharding(*run);
  std::unique_ptr<comm::SharedMemory> base = make_shared_base(*run, settings);
  comm::agree(communicator, [&] {
    run->shards = std::make_unique<fsdp::ShardedModel>(run->model->units(), settings, *run->mesh, std::move(base));
    enter_frozen_start(*run);
    if (!trains) return;
    const auto host = plans_gpus(*run) ? optim::HostMemory::kApart : optim::HostMemory::kSameAsDevice;
    run->optimizer = optim::make_optimizer(options.optim, *run->shards, host);
  });
  if (!shapes_only && !early && request.before_weights) request.before_weights(*run);
  if (!shapes_only) {
    check_bases(*run);
    load_weights(*run, *files);
  }
  run->shards->base_loaded();
  load_other_adapters(*run);
  if (!shapes_only && !request.resumes) start_adapters(*run);
  std::vector<bool> kept = trains ? choose_kept_layers(*run, explicitly_set) : std::vector<bool>();
  comm::agree(communicator, [&] {
    StepSettings step{
        .compute_type = run->precision.compute,
        .input_block = run->policy.input_block,
        .ffn_chunk_tokens = options.model.ffn_chunk_tokens,
        .loss_groups = model::loss_groups(options.train.per_device_train_batch_size * options.data.max_length,
                                          run->config.hidden_size, run->precision.compute),
        .seed = options.data.seed,
        .device = device_of(*run)};
    run->kept_layers = static_cast<std::size_t>(std::count(kept.begin(), kept.end(), true));
    step.keep_layers = std::move(kept);
    run->engine = std::make_unique<StepEngine>(*run->model, *run->shards, run->policy, step);
  });
  return run;
}

}  // namespace shardtune::train
