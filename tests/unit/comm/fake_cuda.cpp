// CUDA's and NCCL's functions as far as the communicator calls them. See fake_cuda.h.
#include "unit/comm/fake_cuda.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace {

using shardtune::testing::fake;

constexpr std::array kStreamNames = {"compute", "gather", "reduce"};
std::array<char, 3> stream_marks;  // their addresses are the handles

std::string name_of(cudaStream_t stream) {
  const auto index = reinterpret_cast<char*>(stream) - stream_marks.data();
  return index >= 0 && index < 3 ? kStreamNames.at(static_cast<std::size_t>(index)) : "an unknown stream";
}

/// Events and communicators are numbers, counted from 1.
template <typename T>
T handle(std::size_t number) {
  return reinterpret_cast<T>(number);  // NOLINT(performance-no-int-to-ptr)
}
template <typename T>
std::size_t number(T* handle) {
  return reinterpret_cast<std::size_t>(handle);
}

std::size_t events_made = 0;

void note(std::string call) { fake().calls.push_back(std::move(call)); }

cudaError_t query() {
  if (fake().not_ready == 0) return cudaSuccess;
  --fake().not_ready;
  return cudaErrorNotReady;
}

}  // namespace

namespace shardtune::testing {

Fake& fake() {
  static Fake one;
  return one;
}

int Fake::count(const std::string& start) const {
  return static_cast<int>(
      std::count_if(calls.begin(), calls.end(), [&](const std::string& call) { return call.starts_with(start); }));
}

std::size_t Fake::place(const std::string& start) const {
  const auto found =
      std::find_if(calls.begin(), calls.end(), [&](const std::string& call) { return call.starts_with(start); });
  return static_cast<std::size_t>(found - calls.begin());
}

comm::DeviceStreams fake_streams() {
  fake() = {};
  events_made = 0;
  comm::DeviceStreams streams;
  streams.device = 0;
  const auto stream = [](std::size_t i) { return comm::OwnedStream(reinterpret_cast<cudaStream_t>(&stream_marks[i])); };
  streams.compute = stream(0);
  streams.gather = stream(1);
  streams.reduce = stream(2);
  return streams;
}

}  // namespace shardtune::testing

extern "C" {

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return query(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return query(); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = handle<cudaEvent_t>(++events_made);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  note("record " + std::to_string(number(event)) + " on " + name_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  note(name_of(stream) + " waits for " + std::to_string(number(event)));
  return cudaSuccess;
}

const char* ncclGetLastError(ncclComm_t) { return "the wire is cut"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return fake().id_result; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  *comm = handle<ncclComm_t>(static_cast<std::size_t>(++fake().communicators));
  note("connect rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
       (config->blocking == 0 ? ", non-blocking" : ", blocking"));
  return fake().taken_up;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  note("look");
  *state = fake().in_progress > 0 ? ncclInProgress : fake().state;
  if (fake().in_progress > 0) --fake().in_progress;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  note("finalise");
  return fake().finalise_result;
}
ncclResult_t ncclCommDestroy(ncclComm_t) {
  note("destroy");
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  note("abort " + std::to_string(number(comm)));
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++fake().open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --fake().open_groups;
  return fake().taken_up;
}
ncclResult_t ncclAllGather(const void* local, void* full, size_t count, ncclDataType_t, ncclComm_t,
                           cudaStream_t stream) {
  note("all-gather of " + std::to_string(count) + " on " + name_of(stream));
  std::memmove(full, local, count);
  return fake().taken_up;
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t stream) {
  note("send " + std::to_string(count) + " to " + std::to_string(peer) + " on " + name_of(stream));
  const auto* bytes = static_cast<const char*>(data);
  fake().sent[peer].assign(bytes, bytes + count);
  return fake().send_result;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t stream) {
  note("receive " + std::to_string(count) + " from " + std::to_string(peer) + " on " + name_of(stream));
  std::memcpy(data, fake().sent.at(peer).data(), count);
  return ncclSuccess;
}
}
