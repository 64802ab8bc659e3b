#include "shardtune/io/json.h"

#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;
using nlohmann::json;

json parse(const std::string& text, const JsonLimits& limits = {}) {
  return parse_json(text, "config.json", ErrorClass::kBadModel, limits);
}

void refused(const std::string& text, std::initializer_list<std::string> words, const JsonLimits& limits = {}) {
  SCOPED_TRACE(text.substr(0, 100));
  const std::string message = expect_error(ErrorClass::kBadModel, words, [&] { parse(text, limits); });
  EXPECT_TRUE(message.starts_with("config.json")) << message;
}

TEST(Json, BuildsTheSameValueAsTheLibrary) {
  for (const std::string text :
       {R"({"a":[1,-2,3.5,{"b":null}],"c":true,"d":"x\u00e9\n","e":{},"f":[[],[[]]]})", "7", "\"s\"", "null",
        "[18446744073709551615,-9223372036854775808,1e300]", "  {\"k\" : [ ] }\n"})
    EXPECT_EQ(parse(text), json::parse(text)) << text;
  EXPECT_TRUE(parse("18446744073709551615").is_number_unsigned());
}

TEST(Json, DuplicateKeysAreAnError) {
  refused("{\"a\":1,\n \"b\":{\"c\":1,\"c\":2}}", {"line 2", "'c' is given twice"});
  refused(R"({"a":1,"\u0061":1})", {"'a' is given twice"});
  EXPECT_EQ(parse(R"([{"a":1},{"a":2}])").size(), 2u);  // the same name in two objects is fine
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += i % 2 ? "[" : "{\"k\":";
    text += "0";
    for (int i = depth; i-- > 0;) text += i % 2 ? "]" : "}";
    return text;
  };
  EXPECT_NO_THROW(parse(nested(64)));
  refused(nested(65), {"nested deeper than the 64 levels"});
  refused(std::string(1'000'000, '['), {"nested deeper"});
}

TEST(Json, SizeAndNumberOfValuesAreLimited) {
  EXPECT_NO_THROW(parse("[1,2,3]", {7, 64, 4}));
  refused("[1,2,3]", {"7 bytes", "6 allowed"}, {6, 64, 4});
  refused("[1,2,3]", {"column 7", "more than the 3 values"}, {7, 64, 3});
}

TEST(Json, ReasonsHaveAPosition) {
  refused("{\n  \"a\": }", {"line 2, column 8", "not valid JSON"});
  refused("", {"not valid JSON"});
  refused("{} {}", {"column 4", "not valid JSON"});
  // The caller knows which line of its file it is.
  const std::string one_line = expect_error(ErrorClass::kBadModel, {"column 4"}, [] { parse("{} {}"); });
  EXPECT_EQ(one_line.find("line"), std::string::npos) << one_line;
  refused("{\"a\":1,}", {"not valid JSON"});
  refused("[NaN]", {"not valid JSON"});
  refused("[1e999]", {"not valid JSON", "1e999"});
  refused("[01]", {"not valid JSON"});
  refused("// comment\n{}", {"not valid JSON"});
  refused("[\"\\ud800\"]", {"not valid JSON"});
  refused("[\"a\tb\"]", {"not valid JSON"});
  const std::string message =
      expect_error(ErrorClass::kBadModel, {"not valid JSON"}, [] { parse("[" + std::string(100'000, 'n')); });
  EXPECT_LT(message.size(), 600u);
  const std::string unfinished =
      expect_error(ErrorClass::kBadModel, {"..."}, [] { parse("[\"" + std::string(100'000, 'n')); });
  EXPECT_LT(unfinished.size(), 600u);
}

TEST(Json, OnlyValidUtf8) {
  refused("\n[\"\xff\"]", {"line 2, column 3", "invalid UTF-8", "0xff"});
  for (const std::string bad : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\xaf",
                                "\xe4\xb8", "\x80", "\xc3("})
    EXPECT_EQ(find_invalid_utf8("ok" + bad), 2u);
  for (const std::string good :
       {"", "abc", "\u00e9", "\u4e16", "\U0001f600", "\uffff", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(find_invalid_utf8(good), std::string::npos);
}

TEST(Json, FromAFile) {
  const TempFolder folder;
  write_bytes(folder / "a.json", "{\"a\":1}");
  EXPECT_EQ(read_json_file(folder / "a.json", ErrorClass::kBadData), json::parse("{\"a\":1}"));
  expect_error(ErrorClass::kBadData, {"a.json", "7 bytes", "6 allowed"}, [&] {
    read_json_file(folder / "a.json", ErrorClass::kBadData, {6, 64, 100});
  });
  expect_error(ErrorClass::kBadData, {"b.json", "No such file"},
               [&] { read_json_file(folder / "b.json", ErrorClass::kBadData); });
}

}  // namespace
}  // namespace shardtune::io
