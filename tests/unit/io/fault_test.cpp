// Disk-full, flush and lock faults. ctest loads the fault library of tests/parity/data/cases/io-faults.c into this program;
// each test lets a child process, whose byte counter starts at zero, run into its fault.
#include <sys/wait.h>

#include <functional>

#include "shardtune/io/files.h"
#include "shardtune/io/hdf5.h"
#include "support.h"

/// Asked by the leak sanitizer: HDF5 1.10.8 itself loses some memory when closing a file fails.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

/// What a child reported: the message of its Error, or "no error"; and how it ended.
struct Outcome {
  std::string message;
  int status = 0;
};

/// Runs `action` in a child with the fault switched on for files below `folder`. The child ends through exit(), so that the
/// exit handlers of all libraries run as well.
Outcome run_with_fault(const TempFolder& folder, const char* fault, const std::string& value,
                       const std::function<void()>& action) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("IOF_MATCH", folder.path().filename().c_str(), 1);
    ::setenv(fault, value.c_str(), 1);
    std::string text = "no error";
    try {
      action();
    } catch (const Error& error) {
      text = fmt::format("{}: {}", error_class_name(error.error_class()), error.what());
    }
    const bool sent = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    std::exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) != 0;)
    if (got > 0) outcome.message.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  while (::waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {}
  return outcome;
}

void expect_message(const Outcome& outcome, std::initializer_list<std::string> words) {
  EXPECT_EQ(outcome.status, 0) << "the child ended by signal or with another code: " << outcome.message;
  for (const std::string& word : words)
    EXPECT_NE(outcome.message.find(word), std::string::npos) << "'" << word << "' is not in: " << outcome.message;
}

constexpr std::size_t kBytes = 1'000'000;

void write_shard(const fs::path& path) {
  const std::vector<std::byte> data(kBytes, std::byte{1});
  Hdf5File file = Hdf5File::create(path);
  file.write("/state/weight", Dtype::kU8, data.size(), data);
  file.write_attribute("/meta", "finished", std::int64_t{1});
  file.close();
}

TEST(CaseA27, DiskFullWhileAShardIsWritten) {
  for (const std::size_t limit : {std::size_t{1000}, kBytes / 2}) {
    const TempFolder folder;
    const auto outcome = run_with_fault(folder, "IOF_ENOSPC_AFTER", std::to_string(limit),
                                        [&] { write_shard(folder / "rank-00000.h5"); });
    expect_message(outcome, {"bad_storage", "rank-00000.h5", "'/state/weight'", "No space left on device"});
  }
}

TEST(CaseA27, DiskFullWhileAShardIsClosed) {
  const TempFolder folder;
  const auto outcome = run_with_fault(folder, "IOF_ENOSPC_AFTER", std::to_string(kBytes + 500),
                                      [&] { write_shard(folder / "rank-00000.h5"); });
  expect_message(outcome, {"bad_storage", "rank-00000.h5", "No space left on device"});
  EXPECT_THROW(Hdf5File::open(folder / "rank-00000.h5"), Error);
}

TEST(CaseA27, AFailedCloseIsToldAgainAndLaterFilesWork) {
  const TempFolder folder;
  const auto outcome = run_with_fault(folder, "IOF_ENOSPC_AFTER", std::to_string(kBytes + 500), [&] {
    const std::vector<std::byte> data(kBytes, std::byte{1});
    Hdf5File file = Hdf5File::create(folder / "first.h5");
    file.write("/d", Dtype::kU8, data.size(), data);
    const std::size_t open_before = names_in("/proc/self/fd").size();
    std::string first;
    try {
      file.close();
    } catch (const Error& error) {
      first = error.what();
    }
    // The descriptor is free, or a removed file would go on filling the disk.
    if (names_in("/proc/self/fd").size() != open_before - 1) fail(ErrorClass::kInternal, "the descriptor stays open");
    ::unsetenv("IOF_ENOSPC_AFTER");  // space again
    for (int i = 0; i < 20; ++i) {
      const fs::path path = folder / fmt::format("later-{}.h5", i);
      write_shard(path);
      if (Hdf5File::open(path).info("/state/weight").elements != kBytes)
        fail(ErrorClass::kInternal, "later file is wrong");
    }
    try {
      file.close();
    } catch (const Error& error) {
      if (first != error.what()) fail(ErrorClass::kInternal, "first '{}', then '{}'", first, error.what());
      throw;
    }
  });
  expect_message(outcome, {"bad_storage", "first.h5", "No space left on device"});
}

TEST(CaseA27, DiskFullAtEveryPlace) {
  // The whole file has kBytes and about 2 kB of structure; past that nothing fails.
  int failures = 0;
  for (std::size_t limit = kBytes - 200; limit < kBytes + 8000; limit += 173) {
    const TempFolder folder;
    const fs::path path = folder / "shard.h5";
    const auto outcome = run_with_fault(folder, "IOF_ENOSPC_AFTER", std::to_string(limit), [&] { write_shard(path); });
    EXPECT_EQ(outcome.status, 0) << limit;
    if (outcome.message != "no error") {
      ++failures;
      EXPECT_NE(outcome.message.find("No space left on device"), std::string::npos) << limit << ": " << outcome.message;
      EXPECT_THROW(Hdf5File::open(path), Error) << limit;
    } else {
      EXPECT_EQ(Hdf5File::open(path).read_int_attribute("/meta", "finished"), 1) << limit;
    }
  }
  EXPECT_GT(failures, 3);
  EXPECT_LT(failures, 45);
}

TEST(CaseA27, DiskFullInOtherFiles) {
  for (const char* limit : {"0", "100", "9999"}) {
    const TempFolder folder;
    write_bytes(folder / "old", "old");
    const std::string text(10'000, 'x');
    expect_message(run_with_fault(folder, "IOF_ENOSPC_AFTER", limit, [&] { write_file_atomic(folder / "old", text); }),
                   {"bad_storage", "old", "10000 bytes", std::string("wrote ") + limit, "No space left on device"});
    EXPECT_EQ(read_bytes(folder / "old"), "old");
    expect_message(run_with_fault(folder, "IOF_ENOSPC_AFTER", limit, [&] { append_line(folder / "log", text); }),
                   {"bad_storage", "log", "No space left on device"});
    EXPECT_EQ(read_bytes(folder / "log"), "");  // no half line
    expect_message(
        run_with_fault(folder, "IOF_ENOSPC_AFTER", limit,
                       [&] {
                         const std::vector<std::byte> data(20'000);
                         write_safetensors(folder / "w.safetensors", {{"t", Dtype::kU8, {20'000}, data}}, {});
                       }),
        {"bad_storage", "w.safetensors", "No space left on device"});
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"log", "old"}));
  }
}

TEST(CaseA27, FlushErrorsAreReported) {
  const TempFolder folder;
  expect_message(run_with_fault(folder, "IOF_FSYNC_EIO", "1", [&] { write_shard(folder / "shard.h5"); }),
                 {"bad_storage", "shard.h5", "Input/output error"});
  expect_message(run_with_fault(folder, "IOF_FSYNC_EIO", "1", [&] { write_file_atomic(folder / "a", "x"); }),
                 {"bad_storage", "/a", "Input/output error"});
  expect_message(run_with_fault(folder, "IOF_FSYNC_EIO", "1",
                                [&] {
                                  AtomicFolder out(folder / "out");
                                  write_bytes(out.path() / "f", "x");
                                  out.publish();
                                }),
                 {"bad_storage", "Input/output error"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"shard.h5"});
}

TEST(CaseA28, FileSystemWithoutLocks) {
  const TempFolder folder;
  const auto outcome = run_with_fault(folder, "IOF_NOLOCK", "1", [&] {
    write_shard(folder / "shard.h5");
    if (Hdf5File::open(folder / "shard.h5").info("/state/weight").elements != kBytes)
      fail(ErrorClass::kInternal, "wrong size");
  });
  expect_message(outcome, {"no error"});
}

}  // namespace
}  // namespace shardtune::io
