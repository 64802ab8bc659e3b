#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

std::string Communicator::broadcast_text(const std::string& text, int root) {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string out = text;
  out.resize(length);
  broadcast(std::as_writable_bytes(std::span(out.data(), out.size())), root);
  return out;
}

}  // namespace shardtune::comm
