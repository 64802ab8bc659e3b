#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "mpi_check.h"
#include "shardtune/comm/mpi.h"
#include "shardtune/core/error.h"

namespace shardtune::comm {

void check_mpi(int code, const char* expression, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fail(ErrorClass::kCommunication, "{} failed at {}:{} on rank {} ({}): {}", expression, file, line, rank,
       MpiSession::host_name(), text);
}

MpiSession::MpiSession(int* argc, char*** argv) {
  int provided = 0;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
    fail(ErrorClass::kCommunication, "MPI_Init_thread failed");
  if (provided < MPI_THREAD_SERIALIZED)
    fail(ErrorClass::kCommunication, "this MPI gives thread level {}, at least MPI_THREAD_SERIALIZED is needed",
         provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

MpiSession::~MpiSession() { MPI_Finalize(); }

void MpiSession::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();
}

std::string MpiSession::host_name() {
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  return {name, static_cast<std::size_t>(length)};
}

bool MpiSession::is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

int MpiSession::launched_processes() {
  // Slurm's own SLURM_NTASKS is set in a batch script, too, where one process runs.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* size = std::getenv(name)) return std::max(1, std::atoi(size));
  return 1;
}

}  // namespace shardtune::comm
