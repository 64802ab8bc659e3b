#include "merged_by_hand.h"

#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shardtune/core/ops.h"
#include "shardtune/io/safetensors.h"
#include "support/runs.h"

namespace shardtune::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
constexpr std::size_t kPrefix = std::string_view("base_model.model.").size();

Tensors read_folder(const std::filesystem::path& folder) {
  Tensors all;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      for (const auto& [name, tensor] : read_tensors(entry.path())) all[name] = tensor.to(at::kDouble);
  return all;
}

void merge_one(const Tensors& base, const std::filesystem::path& folder, Tensors& merged) {
  const auto config = read_json(folder / "adapter_config.json");
  const double scale = config["lora_alpha"].get<double>() / config["r"].get<double>();
  const Tensors adapter = read_folder(folder);
  const auto part = [&](const std::string& module, const char* name) {
    return adapter.at("base_model.model." + module + name);
  };
  for (const auto& [name, tensor] : adapter) {
    const std::string own = name.substr(kPrefix);
    if (const auto at = own.find(".lora_embedding_A"); at != std::string::npos) {
      const std::string module = own.substr(0, at);
      merged[module + ".weight"] =
          merged.at(module + ".weight") + scale * at::matmul(part(module, ".lora_embedding_B"), tensor).t();
    } else if (const auto begin = own.find(".lora_A"); begin != std::string::npos) {
      const std::string module = own.substr(0, begin), weight = module + ".weight";
      const at::Tensor product = scale * at::matmul(part(module, ".lora_B.weight"), tensor);
      merged[weight] = merged.at(weight) + product;
      if (!config["use_dora"].get<bool>()) continue;
      const at::Tensor norms = at::linalg_vector_norm(base.at(weight) + product, 2, {1});
      merged[weight] = merged[weight] * (part(module, ".lora_magnitude_vector") / norms).unsqueeze(1);
    } else if (own.find(".lora_") == std::string::npos) {
      merged[own] = tensor;
    }
  }
}

}  // namespace

void merge_by_hand(const std::filesystem::path& base, const std::vector<std::filesystem::path>& adapters,
                   const std::filesystem::path& to) {
  nlohmann::json config = read_json(base / "config.json");
  Tensors own = read_folder(base);
  if (config["tie_word_embeddings"].get<bool>()) own["lm_head.weight"] = own.at("model.embed_tokens.weight");
  config["tie_word_embeddings"] = false;
  Tensors merged = own;
  for (const auto& folder : adapters) merge_one(own, folder, merged);
  std::vector<io::TensorView> views;
  for (auto& [name, tensor] : merged) {
    tensor = tensor.to(at::kFloat).contiguous();
    views.push_back({name, Dtype::kF32, tensor.sizes().vec(), ops::bytes_of(tensor)});
  }
  std::ofstream(to / "config.json") << config.dump();
  io::write_safetensors(to / "model.safetensors", views, {{"format", "pt"}});
}

}  // namespace shardtune::testing
