#include "shardtune/io/hdf5.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <csignal>
#include <limits>

#include "io/hdf5_library.h"
#include "io/transfer.h"
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 37 + i / 251);
  return data;
}

std::vector<std::byte> read_all(const Hdf5File& file, const std::string& name) {
  const auto info = file.info(name);
  std::vector<std::byte> data(info.elements * dtype_bytes(info.dtype));
  file.read(name, 0, info.elements, data);
  return data;
}

constexpr Dtype kAll[]{Dtype::kBool,   Dtype::kU8,     Dtype::kI8,  Dtype::kI16,  Dtype::kU16,
                       Dtype::kI32,    Dtype::kU32,    Dtype::kI64, Dtype::kU64,  Dtype::kF16,
                       Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF32, Dtype::kBF16, Dtype::kF64};

TEST(Hdf5, RoundTripOfEveryType) {
  const TempFolder folder;
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  for (const Dtype dtype : kAll)
    file.write(fmt::format("/state/{}", dtype_name(dtype)), dtype, 1001, pattern(1001 * dtype_bytes(dtype)));
  file.close();
  const Hdf5File again = Hdf5File::open(folder / "a.h5");
  for (const Dtype dtype : kAll) {
    const std::string name = fmt::format("/state/{}", dtype_name(dtype));
    SCOPED_TRACE(name);
    EXPECT_EQ(again.info(name).dtype, dtype);
    EXPECT_EQ(again.info(name).elements, 1001u);
    EXPECT_EQ(read_all(again, name), pattern(1001 * dtype_bytes(dtype)));
    std::vector<std::byte> part(3 * dtype_bytes(dtype));
    again.read(name, 998, 3, part);
    const auto whole = pattern(1001 * dtype_bytes(dtype));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.end() - static_cast<std::ptrdiff_t>(part.size())));
  }
}

TEST(Hdf5, ZeroElements) {
  const TempFolder folder;
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  file.write("/none", Dtype::kF32, 0, {});
  file.write("/none16", Dtype::kBF16, 0, {});
  file.close();
  const Hdf5File again = Hdf5File::open(folder / "a.h5");
  EXPECT_EQ(again.info("/none").elements, 0u);
  EXPECT_EQ(again.info("/none16").dtype, Dtype::kBF16);
  again.read("/none", 0, 0, {});
  EXPECT_TRUE(read_all(again, "/none16").empty());
}

TEST(Hdf5, Attributes) {
  const TempFolder folder;
  const std::string most(65'536, 'x');
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  file.write("/d", Dtype::kU8, 1, pattern(1));
  file.write_attribute("/", "smallest", std::numeric_limits<std::int64_t>::min());
  file.write_attribute("/meta", "third", 1.0 / 3);
  file.write_attribute("/meta", "text", std::string_view("Gr\u00fc\u00dfe\0, innen", 15));
  file.write_attribute("/meta", "empty", std::string_view());
  file.write_attribute("/d", "most", most);
  expect_error(ErrorClass::kBadStorage, {"a.h5", "'/d@more'", "65537 bytes", "65536 allowed", "dataset"},
               [&] { file.write_attribute("/d", "more", most + "x"); });
  file.write_attribute("/a/b/c", "finished", std::int64_t{1});  // a refused value does not spoil the file
  file.close();
  const Hdf5File again = Hdf5File::open(folder / "a.h5");
  EXPECT_EQ(again.read_int_attribute("/", "smallest"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(again.read_double_attribute("/meta", "third"), 1.0 / 3);
  EXPECT_EQ(again.read_string_attribute("/meta", "text"), std::string("Gr\u00fc\u00dfe\0, innen", 15));
  EXPECT_EQ(again.read_string_attribute("/meta", "empty"), "");
  EXPECT_EQ(again.read_string_attribute("/d", "most"), most);
  EXPECT_EQ(again.read_int_attribute("/a/b/c", "finished"), 1);
  expect_error(ErrorClass::kBadCheckpoint, {"no attribute '/meta@none'"},
               [&] { again.read_int_attribute("/meta", "none"); });
  expect_error(ErrorClass::kBadCheckpoint, {"no object '/none'"}, [&] { again.read_int_attribute("/none", "x"); });
  expect_error(ErrorClass::kBadCheckpoint, {"'/meta@third'", "not a single number"},
               [&] { again.read_int_attribute("/meta", "third"); });
  expect_error(ErrorClass::kBadCheckpoint, {"'/meta@third'", "not one text"},
               [&] { again.read_string_attribute("/meta", "third"); });
}

TEST(Hdf5, LargeTextAsDataset) {
  const TempFolder folder;
  const auto text = pattern(9'000'000);
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  file.write("/meta/tokenizer", Dtype::kU8, text.size(), text);
  file.close();
  EXPECT_TRUE(read_all(Hdf5File::open(folder / "a.h5"), "/meta/tokenizer") == text);
}

TEST(Hdf5, NamesThatAreNotThere) {
  const TempFolder folder;
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  file.write("/g/d", Dtype::kF32, 2, pattern(8));
  EXPECT_TRUE(file.contains("/"));
  EXPECT_TRUE(file.contains("/g"));
  EXPECT_TRUE(file.contains("/g/d"));
  EXPECT_TRUE(file.contains("g/d"));
  EXPECT_FALSE(file.contains("/g/e"));
  EXPECT_FALSE(file.contains("/x/y/z"));
  file.close();
  const Hdf5File again = Hdf5File::open(folder / "a.h5");
  expect_error(ErrorClass::kBadCheckpoint, {"a.h5", "no dataset '/g/e'"}, [&] { again.info("/g/e"); });
  expect_error(ErrorClass::kBadCheckpoint, {"a.h5", "'/g'", "HDF5 says"}, [&] { again.info("/g"); });
  std::vector<std::byte> out(8);
  expect_error(ErrorClass::kBadCheckpoint, {"'/g/d' has 2 elements", "wanted 2 from element 1"},
               [&] { again.read("/g/d", 1, 2, out); });
  expect_error(ErrorClass::kInternal, {"do not fill"}, [&] { again.read("/g/d", 0, 1, out); });
  expect_error(ErrorClass::kBadCheckpoint, {"none.h5", "No such file"}, [&] { Hdf5File::open(folder / "none.h5"); });
}

TEST(Hdf5, PiecesGiveTheSameFileAtAnyTime) {
  const TempFolder folder;
  const std::uint64_t usual = detail::max_piece_bytes;
  for (const std::uint64_t piece : {std::uint64_t{1000}, usual}) {
    const Restored<std::uint64_t> small(detail::max_piece_bytes, piece);
    const fs::path path = folder / fmt::format("{}.h5", piece);
    Hdf5File file = Hdf5File::create(path);
    file.write("/group/d", Dtype::kF64, 10'007, pattern(80'056));
    file.write_attribute("/meta", "finished", std::int64_t{1});
    file.close();
    EXPECT_TRUE(read_all(Hdf5File::open(path), "/group/d") == pattern(80'056));
    ::usleep(1'100'000);  // HDF5 time stamps count seconds
  }
  EXPECT_TRUE(read_bytes(folder / "1000.h5") == read_bytes(folder / fmt::format("{}.h5", usual)));
}

TEST(Hdf5, LargeDatasetsAreAlignedSmallOnesAreNot) {
  const TempFolder folder;
  constexpr std::size_t kAlignment = 4u << 20;
  {
    Hdf5File file = Hdf5File::create(folder / "small.h5");
    for (int i = 0; i < 100; ++i) file.write(fmt::format("/d{}", i), Dtype::kF32, 256, pattern(1024));
    file.close();
    EXPECT_LT(fs::file_size(folder / "small.h5"), 200'000u);
  }
  const auto large = pattern(kAlignment + 1);
  Hdf5File file = Hdf5File::create(folder / "large.h5");
  file.write("/one", Dtype::kU8, kAlignment, std::span(large).first(kAlignment));
  file.write("/two", Dtype::kU8, kAlignment + 1, large);
  file.close();
  // Read apart from the class, with the library alone.
  const detail::Hdf5FileId raw(H5Fopen((folder / "large.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  for (const char* name : {"/one", "/two"}) {
    const detail::Hdf5Dataset dataset(H5Dopen2(raw.get(), name, H5P_DEFAULT));
    const haddr_t offset = H5Dget_offset(dataset.get());
    EXPECT_EQ(offset % kAlignment, 0u) << name;
    const detail::Hdf5Properties creation(H5Dget_create_plist(dataset.get()));
    EXPECT_EQ(H5Pget_layout(creation.get()), H5D_CONTIGUOUS);
    EXPECT_EQ(H5Pget_nfilters(creation.get()), 0);
    // The bytes lie at this offset: readers may go around the library.
    const std::string bytes = read_bytes(folder / "large.h5").substr(offset, 1000);
    EXPECT_EQ(std::memcmp(bytes.data(), pattern(1000).data(), 1000), 0);
  }
}

TEST(Hdf5, ExistingFileIsNotReplaced) {
  const TempFolder folder;
  write_bytes(folder / "a.h5", "precious");
  expect_error(ErrorClass::kBadStorage, {"a.h5", "cannot create", "exists"},
               [&] { Hdf5File::create(folder / "a.h5"); });
  EXPECT_EQ(read_bytes(folder / "a.h5"), "precious");
  expect_error(ErrorClass::kBadStorage, {"none/a.h5", "No such file"}, [&] { Hdf5File::create(folder / "none/a.h5"); });
}

TEST(Hdf5, MovedAndClosedFiles) {
  const TempFolder folder;
  Hdf5File first = Hdf5File::create(folder / "a.h5");
  Hdf5File second(std::move(first));
  second.write("/d", Dtype::kU8, 1, pattern(1));
  second.close();
  second.close();  // once more does no harm
  expect_error(ErrorClass::kInternal, {"closed"}, [&] { second.write("/e", Dtype::kU8, 1, pattern(1)); });
  second = Hdf5File::open(folder / "a.h5");
  expect_error(ErrorClass::kInternal, {"reading only"}, [&] { second.write("/e", Dtype::kU8, 1, pattern(1)); });
  EXPECT_EQ(read_all(second, "/d"), pattern(1));
}

/// Runs `action` in a child process and returns its wait status.
template <typename Action>
int in_child(Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      std::exit(action());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      std::_Exit(99);
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

TEST(Hdf5, KilledWriterLeavesAFileThatIsRefused) {
  const TempFolder folder;
  const fs::path path = folder / "a.h5";
  const int status = in_child([&] {
    Hdf5File file = Hdf5File::create(path);
    file.write("/d", Dtype::kU8, 100'000, pattern(100'000));
    // All open files are flushed, so everything is on disk; only the closing is missing.
    std::vector<hid_t> open(1);
    if (H5Fget_obj_ids(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_FILE, 1, open.data()) != 1) return 1;
    if (H5Fflush(open[0], H5F_SCOPE_GLOBAL) < 0) return 2;
    std::_Exit(0);
  });
  ASSERT_EQ(status, 0);
  expect_error(ErrorClass::kBadCheckpoint, {"a.h5", "not closed by its writer"}, [&] { Hdf5File::open(path); });
}

TEST(Hdf5, EveryCutOfAFileIsRefused) {
  const TempFolder folder;
  Hdf5File file = Hdf5File::create(folder / "a.h5");
  file.write("/g/d", Dtype::kBF16, 1000, pattern(2000));
  file.close();
  const std::string whole = read_bytes(folder / "a.h5");
  for (std::size_t size = 0; size < whole.size(); size += size < 64 ? 1 : 97) {
    write_bytes(folder / "cut.h5", whole.substr(0, size));
    EXPECT_THROW(Hdf5File::open(folder / "cut.h5"), Error) << size;
  }
}

TEST(Hdf5, FileSizeLimitIsReportedAndTheProcessEndsWell) {
  const TempFolder folder;
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    Hdf5File file = Hdf5File::create(folder / "a.h5");
    std::string first;
    try {
      file.write("/d", Dtype::kU8, 1'000'000, pattern(1'000'000));
      return 2;
    } catch (const Error& error) {
      first = error.what();
      if (error.error_class() != ErrorClass::kBadStorage) return 3;
    }
    if (first.find("File too large") == std::string::npos || first.find("'/d'") == std::string::npos) return 4;
    try {
      file.write("/e", Dtype::kU8, 1, pattern(1));
      return 5;
    } catch (const Error& error) {
      if (first != error.what()) return 6;
    }
    try {
      file.close();
      return 7;
    } catch (const Error& error) {
      if (first != error.what()) return 8;
    }
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace shardtune::io
