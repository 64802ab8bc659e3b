#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

Counts& Counts::operator+=(const Counts& other) {
  all_gathers += other.all_gathers;
  all_gather_bytes += other.all_gather_bytes;
  exchanges += other.exchanges;
  exchange_bytes += other.exchange_bytes;
  control += other.control;
  return *this;
}

std::string Communicator::broadcast_text(const std::string& text, int root) {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string out = text;
  out.resize(length);
  broadcast(std::as_writable_bytes(std::span(out.data(), out.size())), root);
  return out;
}

}  // namespace shardtune::comm
