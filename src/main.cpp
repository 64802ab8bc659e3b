// Parse, initialise, build, run, finish.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "shardtune/comm/agree.h"
#include "shardtune/comm/mpi.h"
#include "shardtune/core/blas.h"
#include "shardtune/core/ledger_allocator.h"
#include "shardtune/core/memory_reserve.h"
#include "shardtune/options/run_options.h"
#include "shardtune/train/evaluate.h"
#include "shardtune/train/generate.h"
#include "shardtune/train/merge_command.h"
#include "shardtune/train/plan.h"
#include "shardtune/train/threads.h"
#include "shardtune/train/trainer.h"

extern char** environ;

namespace {

using namespace shardtune;

/// A result that did not arrive is no success. A run's own files hold all that its log says.
int end_of_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  comm::print_failure(
      {ErrorClass::kBadStorage,
       "standard output could not be written to its end; see that what it goes to has room and takes it"});
  return std::max(code, 1);
}

/// `shardtune plan` is one process on its own, without MPI: of those that a launcher started, the first one works.
int run_plan(const options::ParseResult& parsed) {
  if (!comm::MpiSession::is_first_process()) return 0;
  if (const int processes = comm::MpiSession::launched_processes(); processes > 1)
    fmt::print(stderr,
               "notice: {} processes were started, and one of them plans; the ranks of the job are those of "
               "--world_size, here {}\n",
               processes, parsed.options.plan.world_size);
  try {
    ops::choose_blas(parsed.options.model.blas);
    train::run_plan_command(parsed);
    return 0;
  } catch (...) {
    const auto [error_class, message] = comm::current_failure();
    comm::print_failure({error_class, message});
    return error_class == ErrorClass::kUsage ? 2 : 1;
  }
}

void run_command(const options::ParseResult& parsed, comm::Communicator& communicator) {
  if (parsed.options.command == "evaluate") return train::run_evaluate_command(parsed, communicator);
  if (parsed.options.command == "merge") return train::run_merge_command(parsed, communicator);
  if (parsed.options.command == "generate") return train::run_generate_command(parsed, communicator);
  train::train(parsed, communicator);
}

int run(int argc, char** argv) {
  options::ParseResult parsed;
  std::exception_ptr parse_error;
  try {
    parsed = options::parse_options(argc, argv, environ);
  } catch (...) {
    parse_error = std::current_exception();
  }
  if (!parse_error && !parsed.help.empty()) {
    if (comm::MpiSession::is_first_process()) std::fputs(parsed.help.c_str(), stdout);
    return 0;
  }
  ops::install_ledger(c10::DeviceType::CPU);
  if (!parse_error && parsed.options.command == "plan") return run_plan(parsed);
  comm::MpiSession session(&argc, &argv);
  const auto communicator = comm::make_mpi_communicator();
  try {
    comm::agree(*communicator, [&] {
      if (parse_error) std::rethrow_exception(parse_error);
    });
    train::choose_threads(*communicator);
    comm::agree(*communicator, [&] { ops::choose_blas(parsed.options.model.blas); });
    run_command(parsed, *communicator);
    return 0;
  } catch (const comm::AgreedError& error) {
    // Every rank is here: rank 0 speaks, all leave in order.
    if (communicator->rank() == 0) comm::print_failure({error.error_class(), error.what()});
    return error.exit_code();
  } catch (...) {
    // The others do not know: end the job, this rank's line is the cause.
    const auto [error_class, message] = comm::current_failure();
    const std::string place = fmt::format("rank {} on {}", communicator->rank(), comm::MpiSession::host_name());
    comm::print_failure({error_class, fmt::format("{}: {}", place, message)});
    comm::MpiSession::abort(error_class == ErrorClass::kUsage ? 2 : 1);
  }
}

/// Ends the process without the destructors of LibTorch's tables of operators: everything of a run is closed, and they are a quarter
/// of what starting and ending costs. The leak check of the sanitizer needs the ordinary way out.
[[noreturn]] void leave(int code) {
#if defined(__SANITIZE_ADDRESS__)
  std::exit(code);
#else
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  reserve_memory_for_errors();
  train::keep_freed_memory();
  leave(end_of_output(run(argc, argv)));
}
