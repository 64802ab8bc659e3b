#pragma once
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "shardtune/comm/communicator.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

/// An error that every rank knows about: all may leave in order, rank 0 prints it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// What a rank failed with, as class and one line.
struct Failure {
  ErrorClass error_class = ErrorClass::kInternal;
  std::string message;
};

/// Turns the exception in flight into a Failure; call inside a catch block.
Failure current_failure();

/// The one line about a failed run, on standard error.
void print_failure(const Failure& failure);

/// Tells all ranks whether any failed. Throws AgreedError with the first cause (lowest rank) when one did; the message names
/// the rank unless all ranks say the same. Collective.
void agree_or_throw(Communicator& communicator, const std::optional<Failure>& local);

/// Runs a rank-local phase and agrees on its outcome before anybody meets the next collective. `phase` must not
/// communicate. Collective.
void agree(Communicator& communicator, const std::function<void()>& phase);

/// The same for what rank 0 alone does for all, such as writing files of the run: the others only learn the outcome, and as no
/// other rank could have failed, the message names none. Collective.
void agree_on_root(Communicator& communicator, const std::function<void()>& phase);

}  // namespace shardtune::comm
