#include "post_processor.h"

#include "json_fields.h"

namespace shardtune::data {
namespace {

/// Appends the ids of one special token of a template.
void append_special(const nlohmann::json& special_tokens, const std::string& name, std::vector<std::int32_t>& out,
                    const std::string& where) {
  const nlohmann::json& entry = need(special_tokens, name.c_str(), where + ": special_tokens");
  const nlohmann::json& ids = need(entry, "ids", fmt::format("{}: special token '{}'", where, name));
  if (!ids.is_array()) fail(ErrorClass::kBadModel, "{}: ids of special token '{}' must be a list", where, name);
  for (const nlohmann::json& id : ids) out.push_back(need_token_id(id, where));
}

PostProcessor read_template(const nlohmann::json& json, const std::string& where) {
  const nlohmann::json& single = need(json, "single", where);
  if (!single.is_array())
    fail(ErrorClass::kBadModel, "{}: 'single' must be a list, found {}", where, single.type_name());
  PostProcessor result;
  int texts = 0;
  for (const nlohmann::json& part : single) {
    if (part.is_object() && part.contains("Sequence")) {
      if (need_string(part["Sequence"], "id", where) != "A")
        fail(ErrorClass::kBadModel, "{}: 'single' may only hold sequence A", where);
      ++texts;
    } else {
      const std::string name = need_string(need(part, "SpecialToken", where), "id", where);
      append_special(need(json, "special_tokens", where), name, texts == 0 ? result.before : result.after, where);
    }
  }
  if (texts != 1) fail(ErrorClass::kBadModel, "{}: 'single' holds sequence A {} times, expected once", where, texts);
  return result;
}

}  // namespace

PostProcessor PostProcessor::from_json(const nlohmann::json& json, const std::string& where) {
  if (json.is_null()) return {};
  const std::string type = need_string(json, "type", where + ": post_processor");
  const std::string here = where + ": post_processor " + type;
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(json, here);
  if (type != "Sequence")
    fail(ErrorClass::kBadModel,
         "{}: this kind is not supported; supported are ByteLevel, TemplateProcessing and Sequence", here);
  PostProcessor result;
  const nlohmann::json& parts = need(json, "processors", here);
  if (!parts.is_array()) fail(ErrorClass::kBadModel, "{}: processors must be a list", here);
  for (const nlohmann::json& part : parts) {  // each one wraps what the ones before it made
    const PostProcessor outer = from_json(part, where);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

}  // namespace shardtune::data
