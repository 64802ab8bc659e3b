#pragma once
#include <vector>

#include "shardtune/io/safetensors.h"
#include "shardtune/quant/records.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// Quantises the parameters of one unit while they are read, unless the files have them quantised: every rank the records that
/// its bytes lie in, so that the shards are those that one rank alone would make. Used once for each unit: read() what this
/// rank has of each parameter, then finish().
class QuantisedUnit {
 public:
  QuantisedUnit(Run& run, std::size_t unit) : run_(run), unit_(unit) {}

  /// Reads and quantises the records that bytes [begin, end) of the parameter in `slot` lie in. `part` receives these bytes in
  /// finish(). No communication. Error(kBadModel) for values that cannot be quantised.
  void read(const io::SafetensorsFolder& base, std::size_t slot, std::int64_t begin, std::int64_t end,
            const at::Tensor& part);
  /// Brings the block scales of each parameter together and completes the records. Every rank that holds a part of the base
  /// must call this, also one that has read nothing. Collective.
  void finish();

 private:
  /// Records that are not in the shard yet; the scales of 4-bit ones may still be missing.
  struct Started {
    std::size_t slot = 0;
    std::int64_t begin = 0;  ///< byte
    quant::RecordRun run;
    std::vector<float> absmax;
    std::vector<std::byte> records;
    at::Tensor part;
  };

  quant::RecordLayout layout_of(std::size_t slot) const;
  void quantise(const io::SafetensorsFolder& base, const quant::RecordLayout& layout, Started& started) const;
  std::vector<float> gather_absmax(std::size_t tensor, const quant::RecordLayout& layout, const Started* own);

  Run& run_;
  std::size_t unit_;
  std::vector<Started> started_;
};

}  // namespace shardtune::train
