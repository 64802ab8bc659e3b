#include "shardtune/model/config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numbers>

#include "shardtune/core/error.h"
#include "shardtune/io/json.h"

namespace shardtune::model {
namespace {

using nlohmann::json;

/// Checked access to config.json; every message names the file and the key.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorClass::kBadModel, "{}: expected a JSON object", where_);
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const json& at(const char* key) const { return object_[key]; }
  const std::string& where() const { return where_; }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    if (!has(key)) fail(ErrorClass::kBadModel, "{}: '{}' is missing", where_, key);
    const json& value = object_[key];
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(low) ||
        value.get<double>() > static_cast<double>(high))
      fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected an integer from {} to {}", where_, key, value.dump(), low,
           high);
    return value.get<std::int64_t>();
  }
  std::int64_t integer_or(const char* key, std::int64_t low, std::int64_t high, std::int64_t otherwise) const {
    return has(key) ? integer(key, low, high) : otherwise;
  }
  double number(const char* key, double low, double high) const {
    if (!has(key)) fail(ErrorClass::kBadModel, "{}: '{}' is missing", where_, key);
    const json& value = object_[key];
    if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high))
      fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected a number from {} to {}", where_, key, value.dump(), low,
           high);
    return value.get<double>();
  }
  double number_or(const char* key, double low, double high, double otherwise) const {
    return has(key) ? number(key, low, high) : otherwise;
  }
  /// Refuses a setting that this program does not compute unless it has the value that changes nothing.
  void only(const char* key, double neutral, const char* reason) const {
    if (!has(key) || (object_[key].is_number() && object_[key].get<double>() == neutral)) return;
    fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected {}: {}", where_, key, object_[key].dump(), neutral, reason);
  }
  bool boolean_or(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_boolean())
      fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected true or false", where_, key, object_[key].dump());
    return object_[key].get<bool>();
  }
  std::string text_or(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_string())
      fail(ErrorClass::kBadModel, "{}: '{}' is {}, expected text", where_, key, object_[key].dump());
    return object_[key].get<std::string>();
  }

 private:
  const json& object_;
  std::string where_;
};

// Wide around what Llama models have (epsilon 1e-6 and 1e-5, theta 1e4 to 1e7, factors 1 to 32), and such that everything
// computed from them is a normal number of fp32. Theta below 1 would turn later components faster than earlier ones.
constexpr double kLowEpsilon = 1e-12, kHighEpsilon = 1;
constexpr double kLowTheta = 1, kHighTheta = 1e12;
constexpr double kLowBand = 1e-3, kHighFactor = 1e6;

void check_architecture(const Reader& config) {
  const std::string type = config.text_or("model_type", "");
  std::string architecture = type == "llama" ? "LlamaForCausalLM" : "";
  if (config.has("architectures")) {
    const json& list = config.at("architectures");
    if (!list.is_array() || list.empty() || !list[0].is_string())
      fail(ErrorClass::kBadModel, "{}: 'architectures' is {}, expected a list of names", config.where(), list.dump());
    architecture = list[0].get<std::string>();
  }
  if (architecture != "LlamaForCausalLM" || (!type.empty() && type != "llama"))
    fail(ErrorClass::kBadModel,
         "{}: architecture '{}' (model_type '{}') is not supported; this program trains LlamaForCausalLM",
         config.where(), architecture, type);
  for (const char* bias : {"attention_bias", "mlp_bias"})
    if (config.boolean_or(bias, false))
      fail(ErrorClass::kBadModel, "{}: '{}' is true; linear layers with a bias are not supported", config.where(),
           bias);
  // The other keys that LlamaForCausalLM of Transformers 5.24 follows; keys of other models (sliding_window,
  // attn_logit_softcapping, num_local_experts) and pretraining_tp mean nothing to it.
  config.only("attention_dropout", 0, "dropout on attention is not supported");
  if (!config.boolean_or("is_causal", true))
    fail(ErrorClass::kBadModel, "{}: 'is_causal' is false; attention in both directions is not supported",
         config.where());
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu")
    fail(ErrorClass::kBadModel, "{}: hidden_act '{}' is not supported, only silu", config.where(), activation);
}

RotaryConfig read_rotary(const Reader& config) {
  RotaryConfig rotary;
  const bool new_spelling = config.has("rope_parameters");
  rotary.theta = config.number_or("rope_theta", kLowTheta, kHighTheta, 10000.0);
  const char* key = new_spelling ? "rope_parameters" : "rope_scaling";
  if (!config.has(key)) return rotary;
  const Reader rope(config.at(key), config.where() + " " + key);
  rotary.theta = rope.number_or("rope_theta", kLowTheta, kHighTheta, rotary.theta);
  rotary.type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (rotary.type == "default") return rotary;
  if (rotary.type != "llama3")
    fail(ErrorClass::kBadModel, "{}: rope type '{}' is not supported; known types: default, llama3", rope.where(),
         rotary.type);
  for (const Reader& reader : {config, rope})  // only the types with a factor read it
    reader.only("partial_rotary_factor", 1, "a rotary embedding of a part of the head is not supported");
  rotary.factor = rope.number("factor", 1, kHighFactor);
  rotary.low_freq_factor = rope.number("low_freq_factor", kLowBand, kHighFactor);
  rotary.high_freq_factor = rope.number("high_freq_factor", kLowBand, kHighFactor);
  rotary.original_length = rope.integer("original_max_position_embeddings", 1, 1ll << 40);
  if (rotary.high_freq_factor <= rotary.low_freq_factor)
    fail(ErrorClass::kBadModel, "{}: high_freq_factor {} must be above low_freq_factor {}", rope.where(),
         rotary.high_freq_factor, rotary.low_freq_factor);
  return rotary;
}

Dtype read_dtype(const Reader& config) {
  std::string name = config.text_or("dtype", config.text_or("torch_dtype", "float32"));
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return Dtype::kF32;
  if (name == "bfloat16") return Dtype::kBF16;
  if (name == "float16") return Dtype::kF16;
  fail(ErrorClass::kBadModel, "{}: dtype '{}' is not one of float32, bfloat16, float16", config.where(), name);
}

/// Linears that stay as they are: the head and nothing else, as here.
void check_skipped(const Reader& config) {
  if (!config.has("llm_int8_skip_modules")) return;
  const json& list = config.at("llm_int8_skip_modules");
  const bool head_alone =
      list.is_array() && std::ranges::all_of(list, [](const json& one) { return one == "lm_head"; });
  if (!head_alone)
    fail(ErrorClass::kBadModel, "{}: 'llm_int8_skip_modules' is {}, expected none but lm_head", config.where(),
         list.dump());
}

StoredQuantisation read_quantisation(const Reader& config) {
  const std::string method = config.text_or("quant_method", "bitsandbytes");
  StoredQuantisation out{.four_bit = config.boolean_or("load_in_4bit", false),
                         .type = config.text_or("bnb_4bit_quant_type", "fp4"),
                         .nested = config.boolean_or("bnb_4bit_use_double_quant", false)};
  if (method != "bitsandbytes")
    fail(ErrorClass::kBadModel,
         "{}: weights quantised by '{}' cannot be read; use the original model, or one that bitsandbytes stored in 4 "
         "or 8 bits",
         config.where(), method);
  if (const bool eight_bit = config.boolean_or("load_in_8bit", false); out.four_bit == eight_bit)
    fail(ErrorClass::kBadModel, "{}: 'load_in_4bit' and 'load_in_8bit' are both {}, expected one of them to be true",
         config.where(), eight_bit);
  if (out.four_bit && out.type != "nf4" && out.type != "fp4")
    fail(ErrorClass::kBadModel, "{}: 'bnb_4bit_quant_type' is '{}', expected nf4 or fp4", config.where(), out.type);
  check_skipped(config);
  return out;
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (std::filesystem::is_regular_file(folder))
    fail(ErrorClass::kBadModel, "'{}' is a file; --model_name_or_path takes the folder of the model{}", folder.string(),
         folder.has_parent_path() ? fmt::format(", here '{}'", folder.parent_path().string()) : "");
  if (!std::filesystem::is_directory(folder))
    fail(ErrorClass::kBadModel,
         "model folder '{}' does not exist (--model_name_or_path takes a local Hugging Face folder)", folder.string());
  const json root = io::read_json_file(file, ErrorClass::kBadModel, {.max_bytes = 1ull << 20});
  const Reader config(root, file.string());
  check_architecture(config);
  ModelConfig out;
  out.vocab_size = out.stored_vocab_size = config.integer("vocab_size", 1, 1 << 20);
  out.hidden_size = config.integer("hidden_size", 1, 65536);
  out.intermediate_size = config.integer("intermediate_size", 1, 1 << 20);
  out.layers = config.integer("num_hidden_layers", 1, 1024);
  out.heads = config.integer("num_attention_heads", 1, 1024);
  out.kv_heads = config.integer_or("num_key_value_heads", 1, 1024, out.heads);
  if (out.heads % out.kv_heads != 0)
    fail(ErrorClass::kBadModel, "{}: {} attention heads cannot share {} key/value heads evenly", file.string(),
         out.heads, out.kv_heads);
  if (!config.has("head_dim") && out.hidden_size % out.heads != 0)
    fail(ErrorClass::kBadModel, "{}: hidden_size {} is not a multiple of {} heads and head_dim is missing",
         file.string(), out.hidden_size, out.heads);
  out.head_dim = config.integer_or("head_dim", 2, 65536, out.hidden_size / out.heads);
  if (out.head_dim % 2 != 0) fail(ErrorClass::kBadModel, "{}: head_dim {} is odd", file.string(), out.head_dim);
  out.max_positions = config.integer_or("max_position_embeddings", 1, 1ll << 40, 2048);
  out.norm_epsilon = config.number_or("rms_norm_eps", kLowEpsilon, kHighEpsilon, 1e-6);
  out.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  // Transformers also takes the negative spelling of "none".
  out.padding_index = config.integer_or("pad_token_id", -1, out.vocab_size - 1, -1);
  out.dtype = read_dtype(config);
  out.rotary = read_rotary(config);
  if (config.has("quantization_config"))
    out.quantisation = read_quantisation({config.at("quantization_config"), file.string() + ": quantization_config"});
  return out;
}

void grow_vocabulary(ModelConfig& config, std::int64_t rows) {
  if (rows < config.vocab_size)
    fail(ErrorClass::kUsage,
         "--resize_token_embeddings {}: the model has {} rows already, and rows are not taken away; give at least that",
         rows, config.vocab_size);
  config.vocab_size = rows;
}

std::vector<float> rotary_inverse_frequencies(const RotaryConfig& config, std::int64_t head_dim) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (config.type == "llama3") {
      const double turns = static_cast<double>(config.original_length) * frequency / (2 * std::numbers::pi);
      const double share = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
      const double smooth = std::clamp(share, 0.0, 1.0);
      frequency = (1 - smooth) * frequency / config.factor + smooth * frequency;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace shardtune::model
