#pragma once
#include <cstdint>
#include <string>

namespace shardtune::data {

/// Data part of the run's options; names as in TRL's SFT script.
struct DataOptions {
  std::string dataset_name;  ///< a .jsonl file, or a folder with TRAIN_SPLIT.jsonl and TEST_SPLIT.jsonl
  std::string dataset_train_split = "train";
  std::string dataset_test_split = "test";
  std::string dataset_text_field = "text";  ///< column of plain-text rows
  std::string chat_template_format = "tokenizer";  ///< tokenizer | chatml
  std::int64_t max_length = 1024;  ///< tokens per row
  bool packing = false;
  std::string packing_strategy = "bfd";  ///< bfd | bfd_split | wrapped
  std::string wrapped_attention = "row";  ///< row | documents: how far attention reaches in wrapped rows
  bool shuffle = true;
  std::uint64_t seed = 42;
};

}  // namespace shardtune::data
