#include "shardtune/io/files.h"

#include <fcntl.h>

#include "shardtune/io/unfinished.h"
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

/// Without the rights of root while it lives, so that a folder can be unwritable for the test.
class PlainUser {
 public:
  PlainUser() {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) throw std::runtime_error("seteuid failed");
  }
  ~PlainUser() {
    if (::getuid() == 0 && ::seteuid(0) != 0) std::abort();
  }
};

TEST(Files, ReadTextFile) {
  const TempFolder folder;
  write_bytes(folder / "t", std::string("a\0\nb", 4));
  EXPECT_EQ(read_text_file(folder / "t", ErrorClass::kBadData), std::string("a\0\nb", 4));
  EXPECT_EQ(read_text_file(folder / "t", ErrorClass::kBadData, 4).size(), 4u);
  expect_error(ErrorClass::kBadData, {"4 bytes", "3 allowed"},
               [&] { read_text_file(folder / "t", ErrorClass::kBadData, 3); });
  expect_error(ErrorClass::kBadModel, {"none", "No such file"},
               [&] { read_text_file(folder / "none", ErrorClass::kBadModel); });
  expect_error(ErrorClass::kBadModel, {"a folder"}, [&] { read_text_file(folder.path(), ErrorClass::kBadModel); });
  ASSERT_EQ(::chmod((folder / "t").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const PlainUser user;
  expect_error(ErrorClass::kBadData, {"Permission denied"},
               [&] { read_text_file(folder / "t", ErrorClass::kBadData); });
}

TEST(Files, WriteFileAtomicReplaces) {
  const TempFolder folder;
  write_file_atomic(folder / "a", "old");
  write_file_atomic(folder / "a", "new and longer");
  EXPECT_EQ(read_bytes(folder / "a"), "new and longer");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
  fs::create_directory(folder / "d");
  expect_error(ErrorClass::kBadStorage, {(folder / "d").string(), "directory"},
               [&] { write_file_atomic(folder / "d", "x"); });
  expect_error(ErrorClass::kBadStorage, {"none/a", "No such file"}, [&] { write_file_atomic(folder / "none/a", "x"); });
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a", "d"}));
}

TEST(Files, UnpublishedFileVanishes) {
  const TempFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write({});
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Files, AppendLine) {
  const TempFolder folder;
  append_line(folder / "m.jsonl", "{\"a\":1}");
  append_line(folder / "m.jsonl", std::string(5000, 'x'));
  EXPECT_EQ(read_bytes(folder / "m.jsonl"), "{\"a\":1}\n" + std::string(5000, 'x') + "\n");
  expect_error(ErrorClass::kInternal, {"one line"}, [&] { append_line(folder / "m.jsonl", "a\nb"); });
  expect_error(ErrorClass::kBadStorage, {"none/m", "No such file"}, [&] { append_line(folder / "none/m", "a"); });
}

TEST(Files, FullDeviceIsReported) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const std::vector<int> data(100);
  expect_error(ErrorClass::kBadStorage, {"/dev/full", "wrote 0", "No space left on device"},
               [&] { write_exactly(full, bytes_of(data), "/dev/full"); });
  ::close(full);
}

TEST(Files, AppendLineStartsANewLine) {
  const TempFolder folder;
  write_bytes(folder / "m.jsonl", "{\"a\":1}\n{\"a\":");  // the node died while it wrote
  append_line(folder / "m.jsonl", "{\"a\":2}");
  append_line(folder / "m.jsonl", "{\"a\":3}");
  EXPECT_EQ(read_bytes(folder / "m.jsonl"), "{\"a\":1}\n{\"a\":\n{\"a\":2}\n{\"a\":3}\n");
}

TEST(Files, AppendLineWantsARegularFile) {
  const TempFolder folder;
  const auto refused = [&](const fs::path& path, const std::string& found) {
    expect_error(ErrorClass::kBadStorage, {path.string(), found}, [&] { append_line(path, "a"); });
  };
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0666), 0);
  refused(folder / "pipe", "device, pipe or socket");  // without a reader: would wait for ever
  write_bytes(folder / "elsewhere", "x");
  fs::create_symlink(folder / "elsewhere", folder / "link");
  refused(folder / "link", "a link");
  EXPECT_EQ(read_bytes(folder / "elsewhere"), "x");
  fs::create_directory(folder / "folder");
  refused(folder / "folder", "Is a directory");
  refused("/dev/full", "device, pipe or socket");
}

TEST(AtomicFolder, AppearsWhenPublished) {
  const TempFolder folder;
  AtomicFolder out(folder / "runs/out/");
  EXPECT_EQ(out.path().parent_path(), folder / "runs");
  EXPECT_TRUE(out.path().filename().string().starts_with(".tmp-out."));
  write_bytes(out.path() / "a", "x");
  fs::create_directory(out.path() / "sub");
  write_bytes(out.path() / "sub/b", "y");
  EXPECT_FALSE(fs::exists(folder / "runs/out"));
  out.publish();
  EXPECT_EQ(names_in(folder / "runs"), std::vector<std::string>{"out"});
  EXPECT_EQ(read_bytes(folder / "runs/out/sub/b"), "y");
  expect_error(ErrorClass::kInternal, {"published already"}, [&] { out.publish(); });
}

TEST(AtomicFolder, UnfinishedOnesAreFound) {
  const TempFolder folder;
  fs::create_directory(folder / ".tmp-out2.1.0.00000000");  // of another name
  EXPECT_TRUE(unfinished_siblings(folder / "out").empty());
  EXPECT_TRUE(unfinished_siblings(folder / "nowhere/out").empty());
  AtomicFolder out(folder / "out/");
  EXPECT_EQ(unfinished_siblings(folder / "out/"), std::vector<fs::path>{out.path()});
  EXPECT_EQ(unfinished_siblings(folder / "out"), std::vector<fs::path>{out.path()});
  out.publish();
  EXPECT_TRUE(unfinished_siblings(folder / "out").empty());
}

TEST(AtomicFolder, UnpublishedVanishes) {
  const TempFolder folder;
  {
    AtomicFolder out(folder / "out");
    write_bytes(out.path() / "a", "x");
    EXPECT_EQ(names_in(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(AtomicFolder, ExistingTargetIsRefused) {
  const TempFolder folder;
  fs::create_directory(folder / "out");
  expect_error(ErrorClass::kBadStorage, {(folder / "out").string(), "already exists"},
               [&] { AtomicFolder out(folder / "out"); });
  fs::create_symlink("nowhere", folder / "link");
  expect_error(ErrorClass::kBadStorage, {"already exists"}, [&] { AtomicFolder out(folder / "link"); });
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"link", "out"}));
}

TEST(AtomicFolder, TargetMadeMeanwhileStays) {
  const TempFolder folder;
  {
    AtomicFolder out(folder / "out");
    fs::create_directory(folder / "out");  // even an empty one, which rename() alone would replace
    expect_error(ErrorClass::kBadStorage, {"by another program meanwhile"}, [&] { out.publish(); });
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"out"});
  EXPECT_TRUE(names_in(folder / "out").empty());
}

TEST(EnsureWritableFolder, MakesItAndLeavesNothing) {
  const TempFolder folder;
  ensure_writable_folder(folder / "a/b");
  ensure_writable_folder(folder / "a/b");
  EXPECT_TRUE(names_in(folder / "a/b").empty());
  write_bytes(folder / "file", "x");
  expect_error(ErrorClass::kBadStorage, {"file", "cannot make"}, [&] { ensure_writable_folder(folder / "file"); });
  expect_error(ErrorClass::kBadStorage, {"file/x", "Not a directory"},
               [&] { ensure_writable_folder(folder / "file/x"); });
}

TEST(EnsureWritableFolder, UnwritableFolder) {
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  {
    const PlainUser user;
    expect_error(ErrorClass::kBadStorage,
                 {folder.path().string(), "cannot create a file", "Permission denied", "choose another"},
                 [&] { ensure_writable_folder(folder.path()); });
    expect_error(ErrorClass::kBadStorage, {"sub", "cannot make this folder", "Permission denied"},
                 [&] { ensure_writable_folder(folder / "sub"); });
    expect_error(ErrorClass::kBadStorage, {"sub", "cannot make this folder", "Permission denied"},
                 [&] { AtomicFolder out(folder / "sub"); });
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
}

}  // namespace
}  // namespace shardtune::io
