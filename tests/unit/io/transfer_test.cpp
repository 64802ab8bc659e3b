// Cases A30 and A31: sizes above 2 GiB, short transfers, files that shrink.
#include "io/transfer.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "shardtune/io/files.h"
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

TEST(CaseA31, TheFaultLibraryActsWhenItIsLoaded) {
  const char* preload = std::getenv("LD_PRELOAD");
  const bool loaded = preload != nullptr && std::string(preload).find("io_faults") != std::string::npos;
  const int file = ::open(case_file("base-gqa/model.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  std::vector<char> buffer(5000);
  int interrupts = 0;
  for (int i = 0; i < 14; ++i) {
    const ssize_t got = ::pread(file, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) ++interrupts;
    else EXPECT_EQ(got, loaded ? 1000 : 5000);
  }
  ::close(file);
  EXPECT_EQ(interrupts, loaded ? 2 : 0);
}

TEST(CaseA31, FoldersLoadWithTheBytesOfTheFiles) {
  for (const char* name : {"base-gqa", "base-sharded-mixed"}) {
    const SafetensorsFolder folder(case_file(name));
    for (const std::string& tensor : folder.names()) {
      const std::string whole = read_bytes(folder.file_of(tensor));
      const TensorInfo& info = folder.tensor(tensor);
      const auto data = read_whole(folder, tensor);
      EXPECT_EQ(std::memcmp(data.data(), whole.data() + info.file_offset, data.size()), 0) << tensor;
    }
  }
}

TEST(CaseA31, FileThatShrinksWhileItIsRead) {
  const TempFolder folder;
  const fs::path path = folder / "model.safetensors";
  fs::copy_file(case_file("base-gqa/model.safetensors"), path);
  const SafetensorsFile file(path);
  const TensorInfo& info = file.tensor("model.embed_tokens.weight");
  ASSERT_EQ(info.bytes, 520u * 32u * 4u);
  fs::resize_file(path, info.file_offset + 3000);
  std::vector<std::byte> data(info.bytes);
  expect_error(ErrorClass::kBadStorage,
               {path.string(), "model.embed_tokens.weight", "wanted 66560 bytes", "got 3000", "became shorter"},
               [&] { file.read("model.embed_tokens.weight", 0, data); });
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  expect_error(ErrorClass::kBadStorage, {path.string(), "wanted 66560 bytes", "got 3000"},
               [&] { read_exactly(descriptor, info.file_offset, data, path); });
  ::close(descriptor);
}

TEST(CaseA31, TransfersAreCutIntoPieces) {
  const Restored<std::uint64_t> small(detail::max_piece_bytes, 7);
  const TempFolder folder;
  const std::string text = read_bytes(case_file("safetensors-bad-expected.json"));
  write_file_atomic(folder / "a", text);
  EXPECT_TRUE(read_text_file(folder / "a", ErrorClass::kBadData) == text);
}

TEST(CaseA31, ReadErrorsNameTheReason) {
  std::vector<std::byte> data(4);
  const int folder = ::open("/", O_RDONLY | O_CLOEXEC);
  expect_error(ErrorClass::kBadStorage, {"some/path", "wanted 4 bytes", "Is a directory"},
               [&] { read_exactly(folder, 0, data, "some/path"); });
  ::close(folder);
}

/// A sparse file with one U8 or F32 tensor; the last 16 data bytes are 1..16.
void make_sparse(const fs::path& path, const std::string& dtype, const std::string& shape, std::uint64_t bytes) {
  std::string header =
      fmt::format(R"({{"big":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})", dtype, shape, bytes);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string start(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  write_bytes(path, start + header);
  const std::uint64_t size = 8 + header.size() + bytes;
  fs::resize_file(path, size - 16);
  std::ofstream end(path, std::ios::binary | std::ios::app);
  for (char i = 1; i <= 16; ++i) end.put(i);
}

TEST(CaseA30, SizesNeverPassThroughInt) {
  const TempFolder folder;
  struct Big {
    const char* dtype;
    std::string shape;
    std::uint64_t bytes;
  };
  constexpr std::uint64_t k2GiB = 1ull << 31;
  for (const Big& big :
       {Big{"U8", "[2147483647]", k2GiB - 1}, Big{"U8", "[2147483648]", k2GiB}, Big{"U8", "[2147483656]", k2GiB + 8},
        Big{"F32", "[128256,8192]", 4'202'692'608ull}, Big{"F32", "[4294967296,4]", 1ull << 36}}) {
    SCOPED_TRACE(big.shape);
    const fs::path path = folder / "big.safetensors";
    make_sparse(path, big.dtype, big.shape, big.bytes);
    const SafetensorsFile file(path);
    EXPECT_EQ(file.tensor("big").bytes, big.bytes);
    std::vector<std::byte> last(16);
    file.read("big", big.bytes - 16, last);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(std::to_integer<std::size_t>(last[i]), i + 1);
    std::vector<std::byte> edge(4096, std::byte{9});  // a hole of the sparse file, around 2^31 - 1
    file.read("big", k2GiB - 8192, edge);
    EXPECT_EQ(edge, std::vector<std::byte>(4096));
    fs::remove(path);
  }
}

TEST(CaseA30, WritesAboveTwoGiB) {
  // The null device takes the bytes without touching the pages, so the memory is never really used.
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (const std::uint64_t bytes : {(1ull << 31) - 1, 1ull << 31, (1ull << 31) + 8, 4'202'692'608ull}) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    const detail::Transfer done = detail::write_next(null, {static_cast<const std::byte*>(memory), bytes});
    EXPECT_EQ(done.bytes, bytes);
    EXPECT_EQ(done.error, 0);
    ::munmap(memory, bytes);
  }
  ::close(null);
}

}  // namespace
}  // namespace shardtune::io
