#include "shardtune/comm/agree.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
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

/// A path that cannot even be examined (a loop of links, a name that is too long, missing rights): the storage's fault.
Failure path_failure(const std::filesystem::filesystem_error& error) {
  return {ErrorClass::kBadStorage,
          escape_control(fmt::format("{}: {}", error.path1().string(), error.code().message()))};
}

std::optional<Failure> failure_of(const std::function<void()>& phase) {
  try {
    phase();
    return std::nullopt;
  } catch (...) {
    return current_failure();
  }
}

/// The failure of rank `root`, on every rank.
Failure broadcast_failure(Communicator& communicator, const std::optional<Failure>& local, int root) {
  int error_class = local ? static_cast<int>(local->error_class) : 0;
  communicator.broadcast(std::as_writable_bytes(std::span(&error_class, 1)), root);
  return {static_cast<ErrorClass>(error_class), communicator.broadcast_text(local ? local->message : "", root)};
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.error_class(), error.what()};
  } catch (const std::bad_alloc&) {
    return out_of_memory("an allocation failed");
  } catch (const std::filesystem::filesystem_error& error) {
    return path_failure(error);
  } catch (const std::exception& error) {
    return foreign_failure(error.what());
  }
}

void print_failure(const Failure& failure) {
  std::fputs(fmt::format("shardtune: error ({}): {}\n", error_class_name(failure.error_class), failure.message).c_str(),
             stderr);
  std::fflush(stderr);
}

void agree_or_throw(Communicator& communicator, const std::optional<Failure>& local) {
  const std::vector<int> failed = communicator.gather_values(local.has_value() ? 1 : 0);
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) return;
  const int root = static_cast<int>(first - failed.begin());
  const auto [error_class, message] = broadcast_failure(communicator, local, root);
  const bool same = local.has_value() && local->message == message;
  const std::vector<int> all_same = communicator.gather_values(same ? 1 : 0);
  const bool everywhere = std::all_of(all_same.begin(), all_same.end(), [](int flag) { return flag == 1; });
  throw AgreedError(error_class, everywhere ? message : fmt::format("rank {}: {}", root, message));
}

void agree(Communicator& communicator, const std::function<void()>& phase) {
  agree_or_throw(communicator, failure_of(phase));
}

void agree_on_root(Communicator& communicator, const std::function<void()>& phase) {
  const std::optional<Failure> local = communicator.rank() == 0 ? failure_of(phase) : std::nullopt;
  int failed = local.has_value() ? 1 : 0;
  communicator.broadcast(std::as_writable_bytes(std::span(&failed, 1)), 0);
  if (failed == 0) return;
  const auto [error_class, message] = broadcast_failure(communicator, local, 0);
  throw AgreedError(error_class, message);
}

}  // namespace shardtune::comm
