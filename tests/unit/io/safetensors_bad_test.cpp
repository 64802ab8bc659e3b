// Case A33: broken safetensors files, each refused with its own reason.
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;

/// The words that say why, per file. Names come from the case, reasons from what is wrong with the file.
const std::map<std::string, std::vector<std::string>> kReasons{
    {"01-empty-file", {"has 0 bytes", "at least 8"}},
    {"02-seven-bytes", {"has 7 bytes", "at least 8"}},
    {"03-header-longer-than-file", {"header is longer than the file"}},
    {"04-header-length-huge", {"more than the 100000000 allowed"}},
    {"05-header-not-json", {"not valid JSON", "column 24", "unexpected end of input"}},
    {"06-header-is-array", {"not a JSON object"}},
    {"07-data-truncated", {"tensor 'a'", "data is cut", "needs 16 data bytes", "has 15"}},
    {"08-trailing-bytes", {"4 trailing bytes"}},
    {"09-overlap", {"tensor 'b'", "overlap those of tensor 'a'"}},
    {"10-same-range-twice", {"'k_proj'", "'v_proj'", "same"}},
    {"11-hole", {"tensor 'b'", "hole", "16 to 24"}},
    {"12-duplicate-name", {"'a' is given twice"}},
    {"13-shape-bytes-mismatch", {"tensor 'a'", "need 4000000 bytes", "give 16"}},
    {"14-reversed-offsets", {"tensor 'a'", "reversed: [16, 0]"}},
    {"15-negative-offset", {"tensor 'a'", "negative: -16"}},
    {"16-shape-product-overflows", {"tensor 'a'", "overflows"}},
    {"17-unknown-dtype", {"tensor 'a'", "unknown dtype 'Q9'"}},
    {"18-invalid-utf8-name", {"invalid UTF-8"}},
    {"19-pointer-text", {"real file was not fetched"}},
    {"20-missing-dtype", {"tensor 'a'", "'dtype' is missing"}},
    {"21-three-offsets", {"tensor 'a'", "must be 2 numbers, found 3"}},
    {"22-header-zero-length", {"header is empty"}},
};

TEST(CaseA33, EveryFileIsRefusedWithPathAndReason) {
  const auto expected = nlohmann::json::parse(read_bytes(case_file("safetensors-bad-expected.json")));
  EXPECT_EQ(expected.size(), 22u);
  EXPECT_EQ(kReasons.size(), 22u);
  for (const auto& [name, entry] : expected.items()) {
    SCOPED_TRACE(name);
    const fs::path path = case_file("safetensors-bad/" + name + ".safetensors");
    ASSERT_EQ(fs::file_size(path), entry["bytes"].get<std::uint64_t>());
    std::string text = expect_error(ErrorClass::kBadModel, {path.string()}, [&] { SafetensorsFile file(path); });
    // The file names hold the words, too: only what the message says besides the path counts.
    text.erase(text.find(path.string()), path.string().size());
    for (const std::string& word : kReasons.at(name))
      EXPECT_NE(text.find(word), std::string::npos) << word << " not in: " << text;
  }
}

/// A file with this header and this many data bytes.
fs::path make_file(const TempFolder& folder, const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  const fs::path path = folder / "x.safetensors";
  write_bytes(path, text + header + std::string(data_bytes, '\0'));
  return path;
}

TEST(SafetensorsLimits, HeaderOneByteLongerThanWhatFollows) {
  const TempFolder folder;
  const fs::path path = make_file(folder, "{}", 0);
  std::string text = read_bytes(path);
  for (const char length : {'\3', '\12'}) {  // one byte more than follows; as many as the whole file has
    text[0] = length;
    write_bytes(path, text);
    expect_error(ErrorClass::kBadModel, {std::to_string(static_cast<int>(length)) + " bytes stated, 2 bytes follow"},
                 [&] { SafetensorsFile file(path); });
  }
}

TEST(SafetensorsLimits, RefusesWhatTheFormatDoesNotMean) {
  const TempFolder folder;
  const auto refused = [&](const std::string& header, std::size_t data_bytes,
                           std::initializer_list<std::string> words) {
    const fs::path path = make_file(folder, header, data_bytes);
    expect_error(ErrorClass::kBadModel, words, [&] { SafetensorsFile file(path); });
  };
  refused(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
          {"'a'", "9 dimensions", "8 allowed"});
  refused(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, {"'a'", "whole number"});
  refused(R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", 1, {"'a'", "whole number"});
  refused(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1, {"'a'", "overflows"});
  refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, {"'a'", "negative"});
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, {"'a'", "hole", "0 to 1"});
  refused(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "'dtype' is not a string"});
  refused(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, {"'a'", "'shape' is not a list"});
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":{}}})", 1, {"'a'", "no list"});
  refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1, {"'a'", "'data_offsets' is missing"});
  refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'a'", "'shape' is missing"});
  refused(R"({"a":7})", 0, {"'a'", "not an object"});
  refused(R"({"__metadata__":{"k":1}})", 0, {"__metadata__", "'k'", "not a string"});
  refused(R"({"__metadata__":[]})", 0, {"__metadata__", "not an object"});
  refused(R"( {})", 0, {"starts with '{'"});
  refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"'dtype' is given twice"});
  refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})", 2,
      {"'e'", "overlap"});
  refused(std::string(20, '[') + std::string(20, ']'), 0, {"nested deeper"});
  refused("{\"a\nb\x01\":7}", 0, {"not valid JSON"});
}

TEST(SafetensorsLimits, CountsTensors) {
  const TempFolder folder;
  std::string header = "{";
  for (int i = 0; i <= 200'000; ++i)
    header += fmt::format("{}\"{}\":0", i ? "," : "", i);  // refused before an entry is read
  const fs::path path = make_file(folder, header + "}", 0);
  expect_error(ErrorClass::kBadModel, {"200001 tensors", "200000 allowed"}, [&] { SafetensorsFile file(path); });
}

TEST(SafetensorsLimits, LongNamesAreCutInMessages) {
  const TempFolder folder;
  const fs::path path = make_file(folder, "{\"" + std::string(1'000'000, 'n') + "\":7}", 0);
  const std::string text =
      expect_error(ErrorClass::kBadModel, {"(1000000 bytes)"}, [&] { SafetensorsFile file(path); });
  EXPECT_LT(text.size(), 1000u);
}

TEST(SafetensorsLimits, OnlyRegularFiles) {
  const TempFolder folder;
  expect_error(ErrorClass::kBadModel, {"none.safetensors", "No such file"},
               [&] { SafetensorsFile file(folder / "none.safetensors"); });
  expect_error(ErrorClass::kBadModel, {"a folder"}, [&] { SafetensorsFile file(folder.path()); });
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorClass::kBadModel, {"pipe"}, [&] { SafetensorsFile file(folder / "pipe"); });
}

TEST(SafetensorsLimits, EveryCutOfAGoodFileIsRefused) {
  const std::string whole = read_bytes(case_file("safetensors-odd/mixed-dtypes.safetensors"));
  const TempFolder folder;
  const fs::path path = folder / "cut.safetensors";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_bytes(path, whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile{path}, Error) << size;
  }
}

}  // namespace
}  // namespace shardtune::io
