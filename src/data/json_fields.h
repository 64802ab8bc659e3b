#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "shardtune/core/error.h"

namespace shardtune::data {

/// A member of a model file's object; Error(kBadModel) with `where` when it is missing.
inline const nlohmann::json& need(const nlohmann::json& object, const char* key, std::string_view where) {
  if (!object.is_object()) fail(ErrorClass::kBadModel, "{}: expected an object, found {}", where, object.type_name());
  const auto found = object.find(key);
  if (found == object.end()) fail(ErrorClass::kBadModel, "{}: field '{}' is missing", where, key);
  return *found;
}

inline std::string need_string(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = need(object, key, where);
  if (!value.is_string())
    fail(ErrorClass::kBadModel, "{}: field '{}' must be a string, found {}", where, key, value.type_name());
  return value.get<std::string>();
}

/// A member that may be missing or null; Error(kBadModel) when it is there and no boolean.
inline bool flag_or(const nlohmann::json& object, const char* key, bool otherwise, const std::string& where) {
  if (!object.is_object()) fail(ErrorClass::kBadModel, "{}: expected an object, found {}", where, object.type_name());
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  if (!found->is_boolean())
    fail(ErrorClass::kBadModel, "{}: field '{}' must be true or false, found {}", where, key, found->type_name());
  return found->get<bool>();
}

/// A token id as model files hold it: an integer in [0, 2^31 - 1).
inline std::int32_t need_token_id(const nlohmann::json& value, const std::string& where) {
  constexpr std::int64_t kLimit = 0x7FFFFFFF;
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kLimit)
    fail(ErrorClass::kBadModel, "{}: a token id must be an integer from 0 to {}, found {}", where, kLimit - 1,
         value.dump());
  return static_cast<std::int32_t>(value.get<std::int64_t>());
}

}  // namespace shardtune::data
