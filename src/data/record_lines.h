#pragma once
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardtune::data {

/// Calls visit(record, "FILE line N", N) for each line of a JSON Lines file that is not blank. Error(kBadData) for what is not
/// UTF-8 or no JSON, and what LineReader refuses.
void for_each_record(
    const std::filesystem::path& file,
    const std::function<void(const nlohmann::json& record, const std::string& where, std::int64_t line)>& visit);

}  // namespace shardtune::data
