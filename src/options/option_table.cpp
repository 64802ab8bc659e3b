#include "option_table.h"

#include <algorithm>

#include "shardtune/core/error.h"

namespace shardtune::options {
namespace {

using adapters::AdapterOptions;
using data::DataOptions;
using exporting::MergeOptions;
using fsdp::FsdpOptions;
using model::ModelOptions;
using optim::OptimOptions;
using quant::QuantOptions;
using train::GenerateOptions;
using train::PlanOptions;
using train::TrainOptions;

/// The slot of a member of one of the parts of RunOptions.
template <typename Part, typename Value>
std::function<Slot(RunOptions&)> in(Part RunOptions::*part, Value Part::*value) {
  return [=](RunOptions& options) { return Slot(&(options.*part.*value)); };
}

template <typename Value>
auto in_model(Value ModelOptions::*value) {
  return in(&RunOptions::model, value);
}
template <typename Value>
auto in_data(Value DataOptions::*value) {
  return in(&RunOptions::data, value);
}
template <typename Value>
auto in_adapter(Value AdapterOptions::*value) {
  return in(&RunOptions::adapter, value);
}
template <typename Value>
auto in_quant(Value QuantOptions::*value) {
  return in(&RunOptions::quant, value);
}
template <typename Value>
auto in_fsdp(Value FsdpOptions::*value) {
  return in(&RunOptions::fsdp, value);
}
template <typename Value>
auto in_optim(Value OptimOptions::*value) {
  return in(&RunOptions::optim, value);
}
template <typename Value>
auto in_train(Value TrainOptions::*value) {
  return in(&RunOptions::train, value);
}

template <typename Value>
auto in_plan(Value PlanOptions::*value) {
  return in(&RunOptions::plan, value);
}

template <typename Value>
auto in_merge(Value MergeOptions::*value) {
  return in(&RunOptions::merge, value);
}

template <typename Value>
auto in_generate(Value GenerateOptions::*value) {
  return in(&RunOptions::generate, value);
}

// More steps, tokens or rows than any run has; a larger value is a slip of the finger.
constexpr std::uint64_t kMaxSteps = 1'000'000'000;
constexpr std::uint64_t kMaxTokens = 16'777'216;
constexpr std::uint64_t kMaxRows = 65'536;
constexpr std::uint64_t kMaxVocabulary = 1'048'576;
// The optimizer computes in fp32, which holds 1.2e-38 to 3.4e38; what lies between is room for products of these values.
constexpr double kTiny = 1e-30, kHuge = 1e30;
constexpr NumberRange kPositive{.min = kTiny, .max = kHuge};
constexpr NumberRange kWeightDecay{.min = 0, .max = 1e6};  // times a learning rate of kHuge it is still finite
// AdamW squares the clipped gradients: smaller ones become 0 by that.
constexpr NumberRange kGradientNorm{.min = 1e-10, .max = kHuge, .or_zero = true};
constexpr NumberRange kLoraAlpha{.min = 1e-6, .max = 1e6};
constexpr NumberRange kShare{.min = 0, .max = 1, .below_max = true};
constexpr NumberRange kDropout{.min = 0, .max = 0.999999};  // nearer to 1 the share that stays is 0 in fp32

using Rows = std::vector<OptionSpec>;

OptionSpec required(OptionSpec spec) {
  spec.required = true;
  return spec;
}
OptionSpec only_with(const Needs& needs, OptionSpec spec) {
  spec.needs = needs;
  return spec;
}
/// Other tools, or older releases of the same, call it by these names.
OptionSpec elsewhere(std::vector<std::string_view> names, OptionSpec spec) {
  spec.older_names = std::move(names);
  return spec;
}
OptionSpec only_of(std::string_view command, OptionSpec spec) {
  spec.command = command;
  return spec;
}
OptionSpec limited_to(Scope scope, OptionSpec spec) {
  spec.scope = scope;
  return spec;
}

Rows general_rows() {
  const std::string_view group = "General";
  const auto config = [](RunOptions& options) { return Slot(&options.config); };
  const auto nowhere = [](RunOptions&) { return Slot(); };
  return {
      limited_to(Scope::kNotInFile, {"config", group, "", Text{"FILE"}, config, "INI file with NAME = VALUE lines."}),
      limited_to(Scope::kCommandLineOnly, {"help", group, "", Flag{}, nowhere, "Print this text and exit."}),
      limited_to(Scope::kCommandLineOnly, {"version", group, "", Flag{}, nowhere, "Print the version and exit."}),
  };
}

Rows model_rows() {
  const std::string_view group = "Model";
  return {
      required({"model_name_or_path", group, "", Text{"FOLDER"}, in_model(&ModelOptions::model_name_or_path),
                "Hugging Face model folder (config.json, safetensors files, tokenizer). Nothing is downloaded."}),
      elsewhere({"torch_dtype"},
                {"dtype", group, "", Choices{{"auto", "float32", "bfloat16"}}, in_model(&ModelOptions::dtype),
                 "Storage and compute type of the base weights; auto takes the type of the files."}),
      {"resize_token_embeddings", group, "rows", IntegerRange{0, kMaxVocabulary},
       in_model(&ModelOptions::resize_token_embeddings),
       "Grow embedding and head to this many rows, for a tokenizer with more tokens; new rows start as the mean of the "
       "old ones and must be trained: fully, or by lora_modules_to_save. 0: as the model has them."},
      elsewhere(
          {"bf16", "fp16"},
          {"mixed_precision", group, "", Choices{{"no", "bf16", "fp16"}}, in_model(&ModelOptions::mixed_precision),
           "Type of the computation: no computes in dtype; trained weights and the optimizer are fp32 in any case. "
           "fp16 scales the loss and skips steps that overflow."}),
      {"blas", group, "", Choices{{"auto", "mkl", "openblas"}}, in_model(&ModelOptions::blas),
       "Library for fp32 matrix products on the CPU. auto: OpenBLAS on AMD processors where it is installed, else MKL, "
       "which is part of LibTorch."},
      {.name = "gradient_checkpointing",
       .group = group,
       .unit = "",
       .allowed = Flag{},
       .slot = in_model(&ModelOptions::gradient_checkpointing),
       .help =
           "True: compute the layers again in the backward pass; False: keep their intermediate results, which takes "
           "more memory and less time.",
       .default_text = "as activation_policy says"},
      {"use_reentrant", group, "", Flag{}, in_model(&ModelOptions::use_reentrant),
       "Taken, and without effect here: the layers' backward is not recorded."},
      {"activation_policy", group, "", Text{"POLICY"}, in_model(&ModelOptions::activation_policy),
       "Layers that keep their intermediate results: recompute (none), keep (all), every_N, last_K, or auto: as many "
       "as "
       "memory allows. inputs_every_N: none, and only one layer in N keeps its input; the others run forward once "
       "more. Empty: as gradient_checkpointing when that is given, else auto."},
      {"ffn_chunk_tokens", group, "tokens", IntegerRange{1, kMaxTokens}, in_model(&ModelOptions::ffn_chunk_tokens),
       "Tokens that a layer takes at once, so that its work space does not grow with the batch: the feed-forward half "
       "exactly, the attention half whole documents (or rows), at least one."},
      {"table_pieces", group, "pieces", IntegerRange{0, 4096}, in_model(&ModelOptions::table_pieces),
       "Pieces of rows in which a frozen embedding table and a frozen head without adapter are gathered, one after the "
       "other; 0: as many as make a piece no larger than a quarter of a layer's weights, or than 32 Mi weights. "
       "Changes "
       "the loss in its last bits."},
      {"memory_budget_gib", group, "GiB", NumberRange{.min = 0, .max = 1e6}, in_model(&ModelOptions::memory_budget_gib),
       "Resident memory that a rank may take, for activation_policy auto; 0: 80 % of what is free on the node."},
  };
}

Rows data_rows() {
  const std::string_view group = "Data";
  return {
      required({"dataset_name", group, "", Text{"PATH"}, in_data(&DataOptions::dataset_name),
                "A .jsonl file, or a folder with one .jsonl file for each split."}),
      {"dataset_train_split", group, "", Text{"NAME"}, in_data(&DataOptions::dataset_train_split),
       "Training split: NAME.jsonl in the folder of dataset_name."},
      {"dataset_test_split", group, "", Text{"NAME"}, in_data(&DataOptions::dataset_test_split),
       "Evaluation split: NAME.jsonl in the folder of dataset_name."},
      {"dataset_text_field", group, "", Text{"NAME"}, in_data(&DataOptions::dataset_text_field),
       "Column of rows that hold plain text."},
      {"chat_template_format", group, "", Choices{{"tokenizer", "chatml"}}, in_data(&DataOptions::chat_template_format),
       "How conversations are written out: by the tokenizer's own template, or as plain ChatML."},
      elsewhere({"max_seq_length"}, {"max_length", group, "tokens", IntegerRange{2, kMaxTokens},
                                     in_data(&DataOptions::max_length), "Longest row."}),
      {"packing", group, "", Flag{}, in_data(&DataOptions::packing), "Put several documents into one row."},
      only_with(
          {"packing", {"True"}},
          {"packing_strategy", group, "", Choices{{"bfd", "bfd_split", "wrapped"}},
           in_data(&DataOptions::packing_strategy),
           "bfd: best fit, a document is never split, and what exceeds max_length is cut off. bfd_split: the same, but "
           "what exceeds max_length goes on in another row. wrapped: all tokens in order, documents are split at row "
           "ends."}),
      only_with(
          {"packing_strategy", {"wrapped"}},
          {"wrapped_attention", group, "", Choices{{"row", "documents"}}, in_data(&DataOptions::wrapped_attention),
           "How far attention reaches in a wrapped row: over all of it, or inside each document only, with "
           "positions that start anew."}),
      elsewhere({"shuffle_dataset"}, {"shuffle", group, "", Flag{}, in_data(&DataOptions::shuffle),
                                      "Another order of the training rows in each epoch."}),
      {"seed", group, "", IntegerRange{0, std::numeric_limits<std::uint64_t>::max()}, in_data(&DataOptions::seed),
       "Seed of the row order, the new adapter weights and dropout; of sampled tokens."},
  };
}

Rows adapter_rows() {
  const std::string_view group = "Adapter";
  const Needs lora{"use_peft_lora", {"True"}};
  return {
      elsewhere({"use_peft", "use_lora"},
                {"use_peft_lora", group, "", Flag{}, in_adapter(&AdapterOptions::use_peft_lora),
                 "Train LoRA adapters and leave the base weights as they are."}),
      only_with(lora, {"lora_r", group, "", IntegerRange{1, 65'536}, in_adapter(&AdapterOptions::lora_r),
                       "Rank of the adapters."}),
      only_with(lora, {"lora_alpha", group, "", kLoraAlpha, in_adapter(&AdapterOptions::lora_alpha),
                       "Numerator of the adapters' scale, lora_alpha / lora_r."}),
      only_with(lora, {"lora_dropout", group, "", kDropout, in_adapter(&AdapterOptions::lora_dropout),
                       "Share of the adapters' inputs set to zero in training."}),
      only_with(lora,
                {"lora_target_modules", group, "", Text{"MODULES"}, in_adapter(&AdapterOptions::lora_target_modules),
                 "Modules that get an adapter: all-linear, a comma-separated list of names, or one regular "
                 "expression for the full name."}),
      only_with(lora, {"exclude_modules", group, "", Text{"MODULES"}, in_adapter(&AdapterOptions::exclude_modules),
                       "Of the targets, those that get no adapter: a list of names, or one regular expression."}),
      only_with(lora,
                {"layers_to_transform", group, "", Text{"LAYERS"}, in_adapter(&AdapterOptions::layers_to_transform),
                 "Adapters in these layers only: comma-separated numbers from 0. Empty: in all."}),
      only_with(lora,
                {"layers_pattern", group, "", Text{"NAMES"}, in_adapter(&AdapterOptions::layers_pattern),
                 "Names before the layer's number, for layers_to_transform; in the models here: layers. Empty: any."}),
      only_with(lora, {"rank_pattern", group, "", Text{"RANKS"}, in_adapter(&AdapterOptions::rank_pattern),
                       "Other ranks than lora_r by module: KEY=RANK,... or a JSON object. A key is a regular "
                       "expression for the full name or what follows one of its dots; the first that matches counts."}),
      only_with(lora, {"alpha_pattern", group, "", Text{"ALPHAS"}, in_adapter(&AdapterOptions::alpha_pattern),
                       "The same for lora_alpha."}),
      elsewhere({"autocast_adapter_dtype"},
                only_with(lora, {"adapter_dtype", group, "", Choices{{"float32", "bfloat16"}},
                                 in_adapter(&AdapterOptions::adapter_dtype),
                                 "Type of the adapters' weights in the step and in the adapter's file; the optimizer "
                                 "keeps them in fp32 in any case."})),
      elsewhere(
          {"modules_to_save"},
          only_with(lora, {"lora_modules_to_save", group, "", Text{"MODULES"},
                           in_adapter(&AdapterOptions::lora_modules_to_save),
                           "Modules that are trained whole and saved with the adapter: a comma-separated list such "
                           "as embed_tokens,lm_head."})),
      only_with(lora, {"trainable_token_indices", group, "", Text{"IDS"},
                       in_adapter(&AdapterOptions::trainable_token_indices),
                       "Tokens whose rows of the embedding (and of a tied head) are trained, as in 17,128009."}),
      only_with(lora,
                {"ensure_weight_tying", group, "", Flag{}, in_adapter(&AdapterOptions::ensure_weight_tying),
                 "Of a model with tied embeddings: trained copies of the table and the head stay one. False: they "
                 "part, as in PEFT."}),
      only_with(lora, {"use_rslora", group, "", Flag{}, in_adapter(&AdapterOptions::use_rslora),
                       "Scale by lora_alpha / sqrt(lora_r) instead."}),
      only_with(lora, {"use_dora", group, "", Flag{}, in_adapter(&AdapterOptions::use_dora),
                       "DoRA: train a magnitude for each output feature beside the low-rank direction. On a quantised "
                       "base this is QDoRA."}),
      elsewhere({"bias"}, only_with(lora, {"lora_bias", group, "", Choices{{"none", "all", "lora_only"}},
                                           in_adapter(&AdapterOptions::lora_bias),
                                           "Which biases of the base are trained. The models here have none, so that "
                                           "all and lora_only add nothing."})),
      only_with(lora, {"init_lora_weights", group, "",
                       Choices{.names = {"true", "false", "gaussian", "pissa", "olora"}, .numbered = "pissa_niter_"},
                       in_adapter(&AdapterOptions::init_lora_weights),
                       "How a new adapter begins. true: A uniform, B zero. gaussian: A normal, B zero. false: both "
                       "uniform, so that the first step sees another model than the base. pissa: the first singular "
                       "vectors and values of each weight; pissa_niter_N: the same by N rounds of subspace iteration. "
                       "olora: the first rows and columns of each weight's QR decomposition."}),
      only_with(lora,
                {"adapter_name_or_path", group, "", Text{"FOLDER"}, in_adapter(&AdapterOptions::adapter_name_or_path),
                 "PEFT adapter folder to start from instead of new adapter weights."}),
      only_with(lora,
                {"other_adapters", group, "", Text{"NAME=FOLDER,..."}, in_adapter(&AdapterOptions::other_adapters),
                 "PEFT adapter folders that take part beside that adapter and stay as they are."}),
  };
}

Rows quantisation_rows() {
  const std::string_view group = "Quantised base";
  const Needs four_bit{"use_4bit_quantization", {"True"}};
  return {
      elsewhere({"load_in_4bit"},
                {"use_4bit_quantization", group, "", Flag{}, in_quant(&QuantOptions::use_4bit_quantization),
                 "Store the frozen linears of the layers in 4 bits (QLoRA), quantised while they are read. Embedding, "
                 "norms and head stay in dtype. Needs use_peft_lora."}),
      elsewhere({"load_in_8bit"},
                {"use_8bit_quantization", group, "", Flag{}, in_quant(&QuantOptions::use_8bit_quantization),
                 "The same in 8 bits, with a scale for each row; weights alone, the products are made in dtype."}),
      only_with(four_bit, {"bnb_4bit_quant_type", group, "", Choices{{"nf4", "fp4"}},
                           in_quant(&QuantOptions::bnb_4bit_quant_type), "The 16 values that 4 bits stand for."}),
      elsewhere({"bnb_4bit_use_double_quant"},
                only_with(four_bit, {"use_nested_quant", group, "", Flag{}, in_quant(&QuantOptions::use_nested_quant),
                                     "Quantise the scales of the blocks, too (double quantisation)."})),
      only_with(four_bit,
                {"bnb_4bit_blocksize", group, "elements", IntegerRange{64, 4096},
                 in_quant(&QuantOptions::bnb_4bit_blocksize), "Weights that share one scale: a power of two."}),
      only_with(four_bit, {"bnb_4bit_compute_dtype", group, "", Choices{{"auto", "float32", "bfloat16", "float16"}},
                           in_quant(&QuantOptions::bnb_4bit_compute_dtype),
                           "Type of the products. auto: that of the computation (dtype, mixed_precision); another one "
                           "is refused."}),
      only_with(four_bit,
                {"bnb_4bit_quant_storage_dtype", group, "", Choices{{"uint8", "float32", "bfloat16", "float16"}},
                 in_quant(&QuantOptions::bnb_4bit_quant_storage_dtype),
                 "Taken, and without effect here: shards are cut in bytes, so no type has to stand for "
                 "them."}),
      {"quantised_cache", group, "", Text{"FOLDER"}, in_quant(&QuantOptions::quantised_cache),
       "Keep the quantised weights there, so that the next start reads them instead of the model's files. What is "
       "stale "
       "or damaged is made anew, with a warning."},
  };
}

Rows sharding_rows() {
  const std::string_view group = "Sharding";
  return {
      {"fsdp_version", group, "", IntegerRange{1, 2}, in_fsdp(&FsdpOptions::version),
       "Whose names are used: 1 has fsdp_sharding_strategy, 2 has fsdp_reshard_after_forward. The engine is the same."},
      elsewhere({"fsdp", "sharding_strategy"},
                {"fsdp_sharding_strategy", group, "",
                 Choices{{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}},
                 in_fsdp(&FsdpOptions::sharding_strategy),
                 "FULL_SHARD: weights are gathered for forward and again for backward. SHARD_GRAD_OP: they stay from "
                 "forward to backward. HYBRID: shards inside a group, copies across groups. NO_SHARD: whole copies."}),
      {"shard_group_size", group, "ranks", IntegerRange{0, 65'536}, in_fsdp(&FsdpOptions::shard_group_size),
       "Ranks that hold one copy together under the HYBRID strategies; 0: those of a node."},
      {"fsdp_reshard_after_forward", group, "", Text{"WHEN"}, in_fsdp(&FsdpOptions::reshard_after_forward),
       "true: let weights go after forward; false: keep them to backward; a number: spread them over that many ranks. "
       "Empty: as the strategy has it."},
      {"fsdp_backward_prefetch", group, "", Choices{{"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}},
       in_fsdp(&FsdpOptions::backward_prefetch),
       "Fetch the next unit before (two gather buffers) or after (one) the gradients of this one."},
      {"fsdp_forward_prefetch", group, "", Flag{}, in_fsdp(&FsdpOptions::forward_prefetch),
       "Fetch the next unit while this one computes."},
      {"fsdp_auto_wrap_policy", group, "", Choices{{"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}},
       in_fsdp(&FsdpOptions::auto_wrap_policy),
       "What is gathered at once: one layer, layers up to a size, everything."},
      {"fsdp_min_num_params", group, "parameters", IntegerRange{1, 1'000'000'000'000},
       in_fsdp(&FsdpOptions::min_num_params), "Least size of a unit under SIZE_BASED_WRAP; not looked at otherwise."},
      {"fsdp_transformer_layer_cls_to_wrap", group, "", Choices{{"LlamaDecoderLayer"}},
       in_fsdp(&FsdpOptions::transformer_layer_cls_to_wrap), "The layer class; this program has one."},
      {"reduce_dtype", group, "", Choices{{"float32", "bfloat16"}}, in_fsdp(&FsdpOptions::reduce_dtype),
       "Type in which gradients travel between ranks; their sums are fp64."},
      {"share_base_on_node", group, "", Choices{{"auto", "true", "false"}}, in_fsdp(&FsdpOptions::share_base_on_node),
       "One copy of the frozen base for the ranks of a node, in shared memory, which is then never gathered. auto: "
       "when "
       "a shard group lies inside a node."},
  };
}

Rows optimizer_rows() {
  const std::string_view group = "Optimizer";
  const Needs lora{"use_peft_lora", {"True"}};
  const Needs adamw{
      "optim",
      {"adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"}};
  Choices optimizers{adamw.values};
  optimizers.names.emplace_back("sgd");
  return {
      {"optim", group, "", optimizers, in_optim(&OptimOptions::optim),
       "AdamW of PyTorch (fused is the same here), of bitsandbytes with 8-bit state, with state paged to the host's "
       "memory in 32 or 8 bits, or SGD without momentum."},
      elsewhere({"lr"},
                {"learning_rate", group, "", kPositive, in_optim(&OptimOptions::learning_rate), "Peak learning rate."}),
      elsewhere(
          {"lr_scheduler"},
          {"lr_scheduler_type", group, "", Choices{{"linear", "cosine", "constant", "constant_with_warmup"}},
           in_optim(&OptimOptions::lr_scheduler_type), "Course of the learning rate; linear and cosine end at 0."}),
      elsewhere({"warmup_ratio"},
                {"warmup_steps", group, "steps", NumberRange{.min = 0, .max = static_cast<double>(kMaxSteps)},
                 in_optim(&OptimOptions::warmup_steps),
                 "Steps of linear growth from 0 to learning_rate: a whole number, or below 1 a share of all steps."}),
      {"weight_decay", group, "", kWeightDecay, in_optim(&OptimOptions::weight_decay),
       "Decoupled weight decay; norm weights and biases have none. With sgd it is added to the gradient, as in "
       "PyTorch."},
      {"max_grad_norm", group, "", kGradientNorm, in_optim(&OptimOptions::max_grad_norm),
       "Gradients are scaled down to this global norm; 0 turns it off."},
      only_with(adamw, {"adam_beta1", group, "", kShare, in_optim(&OptimOptions::adam_beta1),
                        "Decay of AdamW's first moment."}),
      only_with(adamw, {"adam_beta2", group, "", kShare, in_optim(&OptimOptions::adam_beta2),
                        "Decay of AdamW's second moment."}),
      only_with(adamw, {"adam_epsilon", group, "", kPositive, in_optim(&OptimOptions::adam_epsilon),
                        "Added to the denominator of AdamW's update."}),
      only_with(lora, {"loraplus_lr_ratio", group, "", NumberRange{.min = 1e-6, .max = 1e6, .or_zero = true},
                       in_optim(&OptimOptions::loraplus_lr_ratio),
                       "LoRA+: learning rate of the B matrices and of all vectors over learning_rate; 0: off."}),
      only_with(lora, {"loraplus_lr_embedding", group, "", kPositive, in_optim(&OptimOptions::loraplus_lr_embedding),
                       "With loraplus_lr_ratio: learning rate of an adapter on embed_tokens."}),
  };
}

Rows training_rows() {
  const std::string_view group = "Training";
  return {
      elsewhere({"epochs", "num_epochs"},
                {"num_train_epochs", group, "epochs", NumberRange{.min = 0, .max = 1e6, .above_min = true},
                 in_train(&TrainOptions::num_train_epochs), "Passes over the training rows; fractions are possible."}),
      {"max_steps", group, "steps", IntegerRange{1, kMaxSteps, -1}, in_train(&TrainOptions::max_steps),
       "Optimizer steps of the run; wins over num_train_epochs. -1: num_train_epochs decides."},
      elsewhere({"batch_size", "train_batch_size"},
                {"per_device_train_batch_size", group, "rows", IntegerRange{1, kMaxRows},
                 in_train(&TrainOptions::per_device_train_batch_size), "Rows of one micro-batch on each rank."}),
      {"gradient_accumulation_steps", group, "micro-batches", IntegerRange{1, kMaxRows},
       in_train(&TrainOptions::gradient_accumulation_steps), "Micro-batches of each rank in one optimizer step."},
      {"accumulation_order", group, "", Choices{{"micro_batch_first", "layer_first"}},
       in_train(&TrainOptions::accumulation_order),
       "layer_first: all micro-batches of a step pass through a unit before the next is gathered, so a unit is "
       "gathered "
       "once a pass and step; their layer inputs are kept meanwhile. The numbers are the same."},
      {"ignore_plan", group, "", Flag{}, in_train(&TrainOptions::ignore_plan),
       "Start even when the plan that is made at the start says that memory will not suffice."},
  };
}

Rows evaluation_rows() {
  const std::string_view group = "Evaluation and logging";
  return {
      {"logging_steps", group, "steps", IntegerRange{1, kMaxSteps}, in_train(&TrainOptions::logging_steps),
       "A line of training metrics every so many optimizer steps."},
      elsewhere({"evaluation_strategy"}, {"eval_strategy", group, "", Choices{{"no", "steps", "epoch"}},
                                          in_train(&TrainOptions::eval_strategy), "When to evaluate."}),
      only_with({"eval_strategy", {"steps"}},
                {"eval_steps", group, "steps", IntegerRange{0, kMaxSteps}, in_train(&TrainOptions::eval_steps),
                 "Optimizer steps between evaluations; 0: as logging_steps."}),
      {"eval_on_start", group, "", Flag{}, in_train(&TrainOptions::eval_on_start),
       "Evaluate before the first step too, whatever eval_strategy says."},
      elsewhere({"eval_batch_size"},
                {"per_device_eval_batch_size", group, "rows", IntegerRange{1, kMaxRows},
                 in_train(&TrainOptions::per_device_eval_batch_size),
                 "Rows of one evaluation batch on each rank; prompts that a rank continues together."}),
  };
}

Rows output_rows() {
  const std::string_view group = "Output and checkpoints";
  return {
      required({"output_dir", group, "", Text{"FOLDER"}, in_train(&TrainOptions::output_dir),
                "Folder of the run: metrics, checkpoints and the trained weights. For evaluate, which does not require "
                "it: where "
                "eval_results.json is written."}),
      {"overwrite_output_dir", group, "", Flag{}, in_train(&TrainOptions::overwrite_output_dir),
       "Start anew in a folder that already holds a run."},
      {"save_strategy", group, "", Choices{{"no", "steps", "epoch"}}, in_train(&TrainOptions::save_strategy),
       "When to save a checkpoint."},
      only_with({"save_strategy", {"steps"}},
                {"save_steps", group, "steps", IntegerRange{1, kMaxSteps}, in_train(&TrainOptions::save_steps),
                 "Optimizer steps between checkpoints."}),
      only_with({"save_strategy", {"steps", "epoch"}},
                {"save_total_limit", group, "checkpoints", IntegerRange{0, 1'000'000},
                 in_train(&TrainOptions::save_total_limit),
                 "Older checkpoints beyond this number are removed; 0 keeps all."}),
      {"resume_from_checkpoint", group, "", PathOrFlag{}, in_train(&TrainOptions::resume_from_checkpoint),
       "Go on from this checkpoint folder; True or the option alone: from the newest complete one in output_dir."},
  };
}

Rows generation_rows() {
  const std::string_view group = "Generation (shardtune generate)";
  const Needs sampling{"do_sample", {"True"}};
  Rows rows = {
      {"prompt", group, "", Text{"TEXT"}, in_generate(&GenerateOptions::prompt), "Text to continue, as it is."},
      {"prompts", group, "", Text{"FILE"}, in_generate(&GenerateOptions::prompts),
       "JSON Lines file of prompts: each record has `prompt` (a text to continue) or `messages` (a conversation to "
       "answer)."},
      {"output", group, "", Text{"FILE"}, in_generate(&GenerateOptions::output),
       "JSON Lines file for the results; otherwise they are printed."},
      {"max_new_tokens", group, "tokens", IntegerRange{1, kMaxTokens}, in_generate(&GenerateOptions::max_new_tokens),
       "Longest continuation of a prompt."},
      {"do_sample", group, "", Flag{}, in_generate(&GenerateOptions::do_sample),
       "Draw each token from the model's distribution; otherwise the likeliest one is taken."},
      only_with(sampling, {"temperature", group, "", kPositive, in_generate(&GenerateOptions::temperature),
                           "Divides the logits: below 1 likely tokens become more likely."}),
      only_with(sampling, {"top_p", group, "", NumberRange{.min = 0, .max = 1, .above_min = true},
                           in_generate(&GenerateOptions::top_p),
                           "Draw from the likeliest tokens alone that together have this probability."}),
      only_with(sampling, {"top_k", group, "tokens", IntegerRange{0, kMaxTokens}, in_generate(&GenerateOptions::top_k),
                           "Draw from so many of the likeliest tokens; 0: from all (Transformers has 50)."}),
  };
  for (OptionSpec& row : rows) row = only_of("generate", std::move(row));
  return rows;
}

Rows planning_rows() {
  const std::string_view group = "Planning (shardtune plan)";
  Rows rows = {
      elsewhere({"num_processes", "nproc"}, {"world_size", group, "ranks", IntegerRange{1, 1'000'000},
                                             in_plan(&PlanOptions::world_size), "Ranks of the job that is planned."}),
      {"plan_rank", group, "", IntegerRange{0, 999'999}, in_plan(&PlanOptions::rank), "The rank whose part is shown."},
      elsewhere({"nproc_per_node", "gpus_per_node"},
                {"ranks_per_node", group, "ranks", IntegerRange{1, 1024}, in_plan(&PlanOptions::ranks_per_node),
                 "Consecutive ranks that share a node."}),
      {"plan_device", group, "", Choices{{"cuda", "cpu"}}, in_plan(&PlanOptions::device),
       "Whose kernels' memory is counted: the GPU's, or this machine's processor."},
      {"plan_document_tokens", group, "tokens", IntegerRange{0, kMaxTokens}, in_plan(&PlanOptions::document_tokens),
       "Length of every document; rows are filled with them when packing. 0: a row is one document of max_length."},
      {"plan_trained_fraction", group, "", NumberRange{.min = 0, .max = 1, .above_min = true},
       in_plan(&PlanOptions::trained_fraction), "Share of a document's tokens that are trained on."},
      {"hardware", group, "", Text{"FILE"}, in_plan(&PlanOptions::hardware),
       "Figures of the device and its links, as in configs/hardware: estimates the time of a step, too."},
      {"fit", group, "GB", NumberRange{.min = 0, .max = 1e6}, in_plan(&PlanOptions::fit_gb),
       "Search the fastest settings for devices with so much memory (10^9 bytes) and print them as an INI file; see "
       "docs/planning.md for what is searched. Options that are given stay as they are. Wants hardware. 0: no search."},
      {"trace", group, "", Text{"FILE"}, in_plan(&PlanOptions::trace),
       "Write the estimated course of a step for Perfetto or chrome://tracing. Wants hardware."},
      {"plan_json", group, "", Text{"FILE"}, in_plan(&PlanOptions::json), "Write the figures there as JSON, too."},
  };
  for (OptionSpec& row : rows) row = only_of("plan", std::move(row));
  return rows;
}

Rows merging_rows() {
  const std::string_view group = "Merging (shardtune merge)";
  Rows rows = {
      {"adapter_weights", group, "", Text{"NUMBERS"}, in_merge(&MergeOptions::adapter_weights),
       "Weights of the adapters of adapter_name_or_path, which may then be a list: comma-separated numbers. The "
       "weighted "
       "changes are added, as by PEFT's add_weighted_adapter with combination_type cat. None: 1 each."},
      {"merge_base", group, "", Choices{{"trained", "original"}}, in_merge(&MergeOptions::merge_base),
       "What the adapter is added to. trained: the base it was trained on, for a 4-bit or 8-bit run the dequantised "
       "weights; original: the weights of the files."},
      {"max_shard_size", group, "", Text{"SIZE"}, in_merge(&MergeOptions::max_shard_size),
       "Largest file of the result, as in Transformers: a number with KB, MB, GB or TB (powers of 1000)."},
  };
  for (OptionSpec& row : rows) row = only_of("merge", std::move(row));
  return rows;
}

}  // namespace

const std::vector<OptionSpec>& option_table() {
  static const Rows table = [] {
    Rows all;
    for (const auto rows :
         {general_rows, model_rows, data_rows, adapter_rows, quantisation_rows, sharding_rows, optimizer_rows,
          training_rows, evaluation_rows, output_rows, generation_rows, planning_rows, merging_rows}) {
      for (OptionSpec& row : rows()) all.push_back(std::move(row));
    }
    return all;
  }();
  return table;
}

const OptionSpec* find_option(std::string_view name) {
  const auto& table = option_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const OptionSpec& spec) { return spec.name == name; });
  return row == table.end() ? nullptr : &*row;
}

std::string nearest_option(std::string_view unknown) {
  std::vector<std::string_view> names;
  for (const OptionSpec& spec : option_table()) {
    names.push_back(spec.name);
    names.insert(names.end(), spec.older_names.begin(), spec.older_names.end());
  }
  const std::string nearest = nearest_name(unknown, names);
  for (const OptionSpec& spec : option_table()) {
    if (std::find(spec.older_names.begin(), spec.older_names.end(), nearest) != spec.older_names.end())
      return std::string(spec.name);
  }
  return nearest;
}

}  // namespace shardtune::options
