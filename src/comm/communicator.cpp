#include "shardtune/comm/communicator.h"

namespace shardtune::comm {

void Counts::count_all_gather(std::uint64_t local_bytes, int ranks) {
  if (ranks == 1) return;
  ++all_gathers;
  all_gather_bytes += local_bytes * static_cast<std::uint64_t>(ranks - 1);
}

void Counts::count_exchange(std::uint64_t piece_bytes, int ranks) {
  if (ranks == 1) return;
  ++exchanges;
  exchange_bytes += piece_bytes * static_cast<std::uint64_t>(ranks - 1);
}

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
