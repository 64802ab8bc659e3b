#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "merge_sources.h"
#include "shardtune/io/safetensors_layout.h"

namespace shardtune::exporting {

/// A low-rank change of one weight.
struct LowRankPart {
  const AdapterSource* adapter = nullptr;
  std::string module;
  std::int64_t rank = 0;
  double scaling = 1;
};

/// Rows of an adapter that take the place of the base's.
struct TokenRows {
  const AdapterSource* adapter = nullptr;
  std::string name;  ///< in its files, [tokens, columns]
  std::vector<std::int64_t> tokens;
};

/// One tensor of the result and what it is made of.
struct ResultTensor {
  std::string name;
  model::Parameter base;  ///< where its values start from, in the model's files
  bool quantised = false;  ///< these are taken through the format of the base
  const AdapterSource* saved = nullptr;  ///< or from the copy of this adapter
  std::string saved_name;
  std::vector<LowRankPart> parts;
  std::vector<TokenRows> token_rows;
  bool table = false;  ///< the embedding's, whose low-rank product is made transposed

  std::int64_t rows() const { return base.shape[0]; }
  std::int64_t columns() const { return base.shape.size() > 1 ? base.shape[1] : 1; }
  std::uint64_t elements() const { return static_cast<std::uint64_t>(rows() * columns()); }
};

/// Rows [first, first + count) of a tensor: what one rank makes at once.
struct RowBlock {
  std::size_t tensor = 0;
  std::int64_t first = 0, count = 0;
};

struct ResultFile {
  std::string name;
  io::SafetensorsLayout layout;
};

struct MergePlan {
  at::ScalarType type{};  ///< of the result
  bool untied = false;  ///< a tied model gets a head of its own
  std::int64_t vocabulary = 0;  ///< rows of table and head
  std::vector<ResultTensor> tensors;  ///< in the order in which Transformers writes them
  std::vector<ResultFile> files;
  std::vector<std::pair<std::size_t, std::uint64_t>> places;  ///< file and offset of each tensor's first byte
  std::vector<RowBlock> blocks;  ///< the same for any number of ranks

  std::uint64_t bytes() const;
};

/// Elements of a block, about; tests lower it to see the cutting with small matrices.
extern std::int64_t block_elements;

/// Rows of `block_elements` elements, a multiple of 64 and at least that; the last block of a tensor may have up to twice as many. The library's products
/// have the same bits for any such cut, not for blocks of a few rows.
std::int64_t rows_of_block(std::int64_t columns);

/// Error(kUsage) for a size that cannot be read.
MergePlan plan_merge(const MergeSources& sources, at::ScalarType type, const std::string& max_shard_size);

/// "5GB" or "300MB" (powers of 1000, as in Transformers), or a number of bytes. Error(kUsage).
std::uint64_t parse_shard_size(const std::string& text);

}  // namespace shardtune::exporting
