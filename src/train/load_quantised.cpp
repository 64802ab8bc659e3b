#include "load_quantised.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "shardtune/adapters/quantise_weight.h"
#include "shardtune/adapters/stored_quantised.h"
#include "shardtune/core/error.h"
#include "shardtune/quant/quantise.h"

namespace shardtune::train {
namespace {

using quant::RecordLayout;
using quant::RecordRun;

/// Elements that are read before they are quantised: 16 MiB of fp32.
constexpr std::int64_t kReadElements = 4 << 20;

RecordRun records_around(std::int64_t begin, std::int64_t end, std::int64_t record_bytes) {
  const std::int64_t first = begin / record_bytes;
  return {first, (end + record_bytes - 1) / record_bytes - first};
}

/// The records that begin in bytes [begin, end): every record belongs to one rank.
RecordRun records_begun(std::int64_t begin, std::int64_t end, std::int64_t record_bytes) {
  const std::int64_t first = (begin + record_bytes - 1) / record_bytes;
  return {first, (end + record_bytes - 1) / record_bytes - first};
}

}  // namespace

RecordLayout QuantisedUnit::layout_of(std::size_t slot) const {
  const model::Parameter& parameter = run_.shards->spec(unit_).parameters[slot];
  return {*run_.lora->base_format, parameter.shape[0], parameter.shape[1]};
}

void QuantisedUnit::quantise(const io::SafetensorsFolder& base, const RecordLayout& layout, Started& started) const {
  const model::Parameter& parameter = run_.shards->spec(unit_).parameters[started.slot];
  const bool four_bit = layout.format().four_bit();
  const std::int64_t each = layout.elements_per_record(), bytes = layout.bytes_per_record();
  const std::int64_t step = std::max<std::int64_t>(1, kReadElements / each);
  started.records.resize(static_cast<std::size_t>(started.run.count * bytes));
  if (four_bit) started.absmax.resize(static_cast<std::size_t>(layout.blocks_in(started.run)));
  for (std::int64_t done = 0; done < started.run.count; done += step) {
    const RecordRun run{started.run.first + done, std::min(step, started.run.count - done)};
    const at::Tensor values = adapters::read_values(base, parameter.name, run.first * each, layout.elements_in(run),
                                                    run_.precision.base, /*through_half=*/!four_bit);
    std::span<float> absmax;
    if (four_bit)
      absmax = std::span(started.absmax).subspan(layout.blocks_in({started.run.first, done}), layout.blocks_in(run));
    adapters::quantise_records(layout, run, values, absmax,
                               std::span(started.records).subspan(done * bytes, run.count * bytes));
  }
}

void QuantisedUnit::read(const io::SafetensorsFolder& base, std::size_t slot, std::int64_t begin, std::int64_t end,
                         const at::Tensor& part) {
  const RecordLayout layout = layout_of(slot);
  Started started{.slot = slot,
                  .begin = begin,
                  .run = records_around(begin, end, layout.bytes_per_record()),
                  .absmax = {},
                  .records = {},
                  .part = part};
  if (run_.config.quantisation)
    started.records = adapters::read_stored(base, run_.shards->spec(unit_).parameters[slot], layout, started.run);
  else quantise(base, layout, started);
  started_.push_back(std::move(started));
}

/// The scales of the whole matrix, from the ranks that hold it.
std::vector<float> QuantisedUnit::gather_absmax(std::size_t tensor, const RecordLayout& layout, const Started* own) {
  comm::Communicator& holders = run_.shards->shares_base() ? run_.mesh->node() : run_.mesh->shard();
  const fsdp::ShardLayout& cut = run_.shards->frozen(unit_).layout();
  std::vector<RecordRun> of_rank(static_cast<std::size_t>(holders.size()));
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
    for (const fsdp::TensorRange& range : cut.ranges(static_cast<std::int64_t>(rank)))
      if (range.tensor == tensor) {
        of_rank[rank] = records_begun(range.begin, range.end, layout.bytes_per_record());
        most = std::max(most, layout.blocks_in(of_rank[rank]));
      }
  std::vector<float> mine(static_cast<std::size_t>(most)), all(mine.size() * of_rank.size());
  const RecordRun& begun = of_rank[static_cast<std::size_t>(holders.rank())];
  if (begun.count > 0) {
    const std::int64_t skipped = layout.blocks_in({own->run.first, begun.first - own->run.first});
    std::copy_n(own->absmax.begin() + skipped, layout.blocks_in(begun), mine.begin());
  }
  holders.all_gather_start(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)))->wait();
  std::vector<float> whole;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
    whole.insert(whole.end(), first, first + layout.blocks_in(of_rank[rank]));
  }
  return whole;
}

void QuantisedUnit::finish() {
  const fsdp::FlatShard& shard = run_.shards->frozen(unit_);
  const auto& parameters = run_.shards->spec(unit_).parameters;
  for (std::size_t tensor = 0; tensor < shard.layout().tensors(); ++tensor) {
    const std::size_t slot = shard.slot(tensor);
    if (parameters[slot].packed_bytes == 0) continue;
    const RecordLayout layout = layout_of(slot);
    const auto own = std::ranges::find(started_, slot, &Started::slot);
    Started* const found = own == started_.end() ? nullptr : &*own;
    if (layout.format().four_bit() && !run_.config.quantisation) {
      std::vector<float> absmax = gather_absmax(tensor, layout, found);
      const float offset = layout.format().double_quantisation ? adapters::mean_of_scales(absmax) : 0;
      if (found != nullptr) quant::write_scales(layout, found->run, absmax, offset, found->records);
    }
    if (found == nullptr) continue;
    const std::int64_t skipped = found->begin - found->run.first * layout.bytes_per_record();
    std::memcpy(found->part.mutable_data_ptr(), found->records.data() + skipped,
                static_cast<std::size_t>(found->part.numel()));
    found->records = {};
  }
}

}  // namespace shardtune::train
