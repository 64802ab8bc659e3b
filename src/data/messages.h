#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shardtune/data/chat.h"

namespace shardtune::data {

/// The text that a field holds; Error(kBadData) for another type. `what` names it in the message.
std::string text_of(const nlohmann::json& value, const std::string& what, const std::string& where);

/// The conversation of a record's `messages`: a list of at least one {"role": TEXT, "content": TEXT}. Error(kBadData).
std::vector<Message> parse_messages(const nlohmann::json& value, const std::string& where);

}  // namespace shardtune::data
