#include <algorithm>
#include <set>

#include "option_table.h"

namespace shardtune::options {
namespace {

/// Those of `merge` that others have, too.
const std::set<std::string_view> kOfMerging = {"config",
                                               "help",
                                               "version",
                                               "model_name_or_path",
                                               "resize_token_embeddings",
                                               "dtype",
                                               "adapter_name_or_path",
                                               "use_4bit_quantization",
                                               "use_8bit_quantization",
                                               "bnb_4bit_quant_type",
                                               "use_nested_quant",
                                               "bnb_4bit_blocksize",
                                               "bnb_4bit_compute_dtype",
                                               "output_dir"};

}  // namespace

const std::vector<std::string_view>& commands() {
  static const std::vector<std::string_view> names = {"train", "plan", "merge"};
  return names;
}

bool takes(std::string_view command, const OptionSpec& spec) {
  if (!spec.command.empty()) return spec.command == command;
  if (command == "merge") return kOfMerging.contains(spec.name);
  return true;
}

std::vector<std::string_view> commands_of(const OptionSpec& spec) {
  std::vector<std::string_view> having;
  std::ranges::copy_if(commands(), std::back_inserter(having), [&](auto command) { return takes(command, spec); });
  return having;
}

}  // namespace shardtune::options
