#include "shardtune/core/work.h"

#include <utility>

namespace shardtune {
namespace {

WorkListener* current = nullptr;

}  // namespace

WorkListener* work_listener() { return current; }

ListenScope::ListenScope(WorkListener& listener) : before_(std::exchange(current, &listener)) {}
ListenScope::~ListenScope() { current = before_; }

}  // namespace shardtune
