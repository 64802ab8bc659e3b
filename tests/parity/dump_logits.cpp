// dump_logits MODEL ADAPTER OUT.safetensors: what this program computes with an exported adapter on two rows of 48 ids, for
// tools/check_with_peft.py.
#include <ATen/ATen.h>

#include <cstdio>
#include <exception>

#include "shardtune/comm/self.h"
#include "shardtune/io/safetensors.h"
#include "support/runs.h"

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

void dump(const char* model, const char* adapter, const char* out) {
  using namespace shardtune;
  constexpr std::int64_t kRows = 2, kLength = 48;
  const std::int64_t vocabulary = model::read_config(model).vocab_size;
  const at::Tensor ids =
      (at::arange(kRows * kLength, at::kLong) * 7919 + 13).remainder(vocabulary).view({kRows, kLength});
  testing::Scratch scratch;
  testing::write_rows(scratch / "rows.jsonl", ids, ids);
  options::RunOptions options = testing::plain_options(model, scratch / "rows.jsonl");
  options.adapter.adapter_name_or_path = adapter;
  const auto communicator = comm::make_self_communicator();
  const auto run = train::build_run(options, *communicator);
  const at::Tensor logits = run->engine->logits(data::collate(run->train_rows, {0, 1})).contiguous();
  io::write_safetensors(out,
                        {{"input_ids", Dtype::kI64, {kRows, kLength}, bytes_of(ids)},
                         {"logits", Dtype::kF32, {kRows, kLength, vocabulary}, bytes_of(logits)}},
                        {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: dump_logits MODEL ADAPTER OUT.safetensors\n", stderr);
    return 2;
  }
  try {
    dump(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_logits: %s\n", error.what());
    return 1;
  }
}
