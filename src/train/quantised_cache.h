#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardtune/io/safetensors.h"
#include "shardtune/train/run.h"

namespace shardtune::train {

/// The frozen bytes of the units with quantised weights, kept from an earlier start in --quantised_cache: a folder for each
/// model folder and format, with manifest.json and a file part-N.h5 for each rank that wrote. A file holds a dataset of bytes
/// for each unit, and XXH3-64 of each MiB of it. Any number of ranks may read it. It is known by a fingerprint over names,
/// types, shapes, places, sizes and times of the model's files, the dtype, and how the units are put together.
class QuantisedCache {
 public:
  /// Rank 0 looks at the model's files. Collective; Error(kBadStorage) is agreed.
  QuantisedCache(Run& run, const io::SafetensorsFolder& base);

  /// Fills the frozen shards of the units with quantised weights. False, with the reason in problem(), when there is nothing
  /// that fits or something is damaged: all of them are then to be loaded. Collective.
  bool read();
  /// Why read() gave false; empty when there was nothing yet.
  const std::string& problem() const { return problem_; }
  /// Writes what was loaded in place of what is there. Collective; errors are agreed.
  void write();

  const std::filesystem::path& folder() const { return folder_; }

 private:
  /// The ranks that hold one base together.
  comm::Communicator& holders() const;
  void read_shards(const std::string& manifest);
  void read_part(std::int64_t part, const std::vector<std::int64_t>& part_bytes);
  std::vector<std::size_t> quantised_units() const;

  Run& run_;
  std::filesystem::path folder_;
  std::string fingerprint_, problem_;
};

}  // namespace shardtune::train
