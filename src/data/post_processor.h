#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardtune::data {

/// What the post-processor puts around a single text: the ids before and after it.
struct PostProcessor {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;

  /// From the field "post_processor": null, ByteLevel (changes no ids), TemplateProcessing, or a Sequence of these.
  static PostProcessor from_json(const nlohmann::json& json, const std::string& where);
};

}  // namespace shardtune::data
