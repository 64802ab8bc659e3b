#include "shardtune/export/merge.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "merge_files.h"
#include "merge_plan.h"
#include "merge_rows.h"
#include "merge_sources.h"
#include "shardtune/checkpoint/base_fingerprint.h"
#include "shardtune/comm/agree.h"
#include "shardtune/core/error.h"
#include "shardtune/core/ops.h"
#include "shardtune/export/carried_files.h"
#include "shardtune/io/files.h"

namespace shardtune::exporting {
namespace {

namespace fs = std::filesystem;

/// What all ranks of a node may take together; fewer of them work where their buffers need more.
constexpr std::uint64_t kNodeBytes = 400'000'000;

at::ScalarType result_type(const MergeRequest& request, const MergeSources& sources) {
  return request.dtype == "auto" ? ops::scalar_type(sources.config.dtype) : *torch_type(request.dtype);
}

struct Share {
  std::int64_t part;  ///< this rank's number among those that work, -1 for one that does not
  std::int64_t parts;
};

/// Collective.
Share find_share(std::uint64_t bytes, comm::Communicator& communicator) {
  const std::uint64_t most = std::max<std::uint64_t>(1, kNodeBytes / std::max<std::uint64_t>(1, bytes));
  const auto node = communicator.split_by_node();
  const int works = static_cast<std::uint64_t>(node->rank()) < most;
  const std::vector<int> all = communicator.gather_values(works);
  const auto before = std::count(all.begin(), all.begin() + communicator.rank(), 1);
  return {works != 0 ? before : -1, std::count(all.begin(), all.end(), 1)};
}

std::uint64_t elements_of(const MergePlan& plan, const RowBlock& block) {
  return static_cast<std::uint64_t>(block.count * plan.tensors[block.tensor].columns());
}

/// The blocks whose middle lies in the part of all elements: neighbours stay together.
std::vector<RowBlock> blocks_of_part(const MergePlan& plan, std::int64_t part, std::int64_t parts) {
  std::vector<RowBlock> mine;
  if (part < 0) return mine;
  std::uint64_t total = 0, before = 0;
  for (const RowBlock& block : plan.blocks) total += elements_of(plan, block);
  for (const RowBlock& block : plan.blocks) {
    const std::uint64_t size = elements_of(plan, block), middle = before + size / 2;
    before += size;
    // In floating point: the product would leave 64 bits.
    const auto owner = static_cast<std::int64_t>(static_cast<double>(middle) / static_cast<double>(total) *
                                                 static_cast<double>(parts));
    if (std::min(owner, parts - 1) == part) mine.push_back(block);
  }
  return mine;
}

void write_blocks(const MergeSources& sources, const MergePlan& plan, const fs::path& folder,
                  const std::vector<RowBlock>& blocks) {
  MergedRows merged(sources, plan);
  std::map<std::size_t, io::SharedFile> files;
  const std::uint64_t width = c10::elementSize(plan.type);
  for (const RowBlock& block : blocks) {
    const ResultTensor& tensor = plan.tensors[block.tensor];
    const auto [file, offset] = plan.places[block.tensor];
    const auto open = files.try_emplace(file, folder / plan.files[file].name).first;
    const at::Tensor rows = merged.make(block);
    open->second.write(offset + static_cast<std::uint64_t>(block.first * tensor.columns()) * width,
                       ops::bytes_of(rows));
  }
  for (auto& [number, file] : files) file.finish();
}

void refuse_existing(const fs::path& output) {
  std::error_code error;
  const fs::file_type there = fs::symlink_status(output, error).type();
  if (there == fs::file_type::not_found || there == fs::file_type::none) return;
  fail(ErrorClass::kBadStorage,
       "--output_dir '{}' exists already; merge writes a new folder, give another name or remove it", output.string());
}

/// Ranks that read other files would write a mixture. Collective.
void check_same_plan(const MergePlan& plan, comm::Communicator& communicator) {
  std::string text;
  for (const ResultTensor& tensor : plan.tensors) {
    text += fmt::format("{} {} {} {}", tensor.name, tensor.rows(), tensor.columns(), tensor.quantised);
    for (const LowRankPart& part : tensor.parts)
      text += fmt::format(" {} {} {}", part.rank, part.scaling, part.adapter->weight.value_or(0));
    text += tensor.saved_name + "\n";
  }
  const std::string rank0 = communicator.broadcast_text(text, 0);
  comm::agree(communicator, [&] {
    if (text != rank0)
      fail(ErrorClass::kBadModel,
           "the model's or the adapters' files differ from those that rank 0 read; give all nodes the same files");
  });
}

}  // namespace

MergeReport merge(const MergeRequest& request, comm::Communicator& communicator) {
  MergeSources sources;
  MergePlan plan;
  comm::agree_on_root(communicator, [&] { refuse_existing(request.output); });
  comm::agree(communicator, [&] {
    sources = open_sources(request);
    plan = plan_merge(sources, result_type(request, sources), request.merge.max_shard_size);
  });
  check_same_plan(plan, communicator);
  comm::agree_on_root(communicator, [&] { check_carried_files(request.base, ResultKind::kMergedModel); });
  const std::string fingerprint = checkpoint::base_fingerprint(*sources.base, communicator);
  comm::agree(communicator, [&] { check_fingerprint(sources, fingerprint); });

  std::optional<io::AtomicFolder> folder;
  std::string path;
  comm::agree_on_root(communicator, [&] {
    folder.emplace(request.output);
    path = folder->path().string();
    for (const ResultFile& file : plan.files)
      io::SharedFile::create(folder->path() / file.name, std::as_bytes(std::span(file.layout.head)),
                             file.layout.file_bytes);
  });
  path = communicator.broadcast_text(path, 0);
  const Share share = find_share(working_bytes(sources, plan), communicator);
  comm::agree(communicator, [&] { write_blocks(sources, plan, path, blocks_of_part(plan, share.part, share.parts)); });
  comm::agree_on_root(communicator, [&] {
    write_merge_files(folder->path(), request, sources, plan, fingerprint);
    folder->publish();
  });

  MergeReport report{.base = sources.form.describe(),
                     .tensors = static_cast<std::int64_t>(plan.tensors.size()),
                     .files = plan.files.size(),
                     .bytes = plan.bytes(),
                     .untied = plan.untied,
                     .notices = sources.notices};
  for (const auto& adapter : sources.adapters)
    if (adapter->record && c10::elementSize(adapter->record->type) > c10::elementSize(plan.type))
      report.notices.push_back(
          fmt::format("{} was trained over a base in {}; in {} small changes are rounded away, --dtype {} keeps them",
                      adapter->folder.string(), torch_type_name(adapter->record->type), torch_type_name(plan.type),
                      torch_type_name(adapter->record->type)));
  report.changed = std::ranges::count_if(plan.tensors, [](const ResultTensor& tensor) {
    return tensor.saved != nullptr || !tensor.parts.empty() || !tensor.token_rows.empty();
  });
  return report;
}

}  // namespace shardtune::exporting
