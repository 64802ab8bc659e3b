#include "shardtune/comm/agree.h"

#include <algorithm>
#include <new>
#include <string_view>

namespace shardtune::comm {
namespace {

Failure out_of_memory(std::string_view detail) {
  return {ErrorClass::kOutOfMemory,
          fmt::format("out of memory: {}; start more ranks, or lower --per_device_train_batch_size or --max_length",
                      detail)};
}

Failure foreign_failure(std::string_view text) {
  // LibTorch appends its stack trace after the first line.
  text = text.substr(0, text.find('\n'));
  // The allocator of the host puts its source line first.
  if (const auto host = text.find("DefaultCPUAllocator: "); host != std::string_view::npos)
    return out_of_memory(text.substr(host + 21));
  if (text.find("out of memory") != std::string_view::npos) return out_of_memory(text);
  return {ErrorClass::kInternal, std::string(text)};
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.error_class(), error.what()};
  } catch (const std::bad_alloc&) {
    return out_of_memory("an allocation failed");
  } catch (const std::exception& error) {
    return foreign_failure(error.what());
  }
}

void agree_or_throw(Communicator& communicator, const std::optional<Failure>& local) {
  const std::vector<int> failed = communicator.gather_values(local.has_value() ? 1 : 0);
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) return;
  const int root = static_cast<int>(first - failed.begin());
  int error_class = local ? static_cast<int>(local->error_class) : 0;
  communicator.broadcast(std::as_writable_bytes(std::span(&error_class, 1)), root);
  const std::string message = communicator.broadcast_text(local ? local->message : "", root);
  const bool same = local.has_value() && local->message == message;
  const std::vector<int> all_same = communicator.gather_values(same ? 1 : 0);
  const bool everywhere = std::all_of(all_same.begin(), all_same.end(), [](int flag) { return flag == 1; });
  throw AgreedError(static_cast<ErrorClass>(error_class),
                    everywhere ? message : fmt::format("rank {}: {}", root, message));
}

void agree(Communicator& communicator, const std::function<void()>& phase) {
  std::optional<Failure> failure;
  try {
    phase();
  } catch (...) {
    failure = current_failure();
  }
  agree_or_throw(communicator, failure);
}

}  // namespace shardtune::comm
