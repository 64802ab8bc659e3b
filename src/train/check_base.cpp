#include "check_base.h"

#include <fmt/format.h>

#include <cstdio>

#include "shardtune/checkpoint/base_fingerprint.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/export/base_record.h"
#include "shardtune/io/safetensors.h"

namespace shardtune::train {
namespace {

std::string form(const std::optional<quant::Format>& format, at::ScalarType type) {
  const std::string name(exporting::torch_type_name(type));
  return format ? fmt::format("{} made from {}", quant::describe(*format), name) : name;
}

}  // namespace

const std::string& base_fingerprint(Run& run) {
  if (run.base_fingerprint.empty()) {
    std::optional<io::SafetensorsFolder> files;
    comm::agree(*run.communicator, [&] { files.emplace(run.options.model.model_name_or_path); });
    run.base_fingerprint = checkpoint::base_fingerprint(*files, *run.communicator);
  }
  return run.base_fingerprint;
}

void check_base_of(Run& run, const std::filesystem::path& adapter) {
  comm::Communicator& communicator = *run.communicator;
  std::optional<exporting::BaseRecord> record;
  comm::agree_on_root(communicator, [&] { record = exporting::read_base_record(adapter); });
  const std::string wanted = communicator.broadcast_text(record ? record->fingerprint : "", 0);
  if (wanted.empty()) return;
  const std::string& found = base_fingerprint(run);
  comm::agree(communicator, [&] {
    if (wanted != found)
      fail(ErrorClass::kBadModel,
           "{}: was trained on another base: its fingerprint is {}, that of --model_name_or_path is {}; give the model "
           "of the run, or take {} out of the folder to use the adapter all the same",
           adapter.string(), wanted, found, exporting::BaseRecord::kFileName);
  });
  if (!record) return;
  const std::string before = form(record->quantisation, record->type),
                    now = form(run.lora->base_format, run.precision.base);
  if (before != now)
    fmt::print(stderr, "notice: {} was trained over a base in {}; this run has it in {}\n", adapter.string(), before,
               now);
}

}  // namespace shardtune::train
