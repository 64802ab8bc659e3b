#include "shardtune/data/dataset.h"

#include "data/line_reader.h"
#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

std::vector<Example> read(const std::filesystem::path& file, const Tokenizer& tokenizer, std::int64_t vocabulary,
                          DataOptions options = {}) {
  return read_examples(
      file, options, [&]() -> const Tokenizer& { return tokenizer; }, vocabulary);
}

std::vector<Example> read_text(std::string_view content, std::int64_t vocabulary = 512) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(tiny_model());
  return read(folder.write("data.jsonl", content), tokenizer, vocabulary);
}

TEST(CaseA11, LinesEndOnlyAtLineFeeds) {
  const json expected = read_json(cases() / "lines-expected.json");
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  const std::vector<Example> examples = read(cases() / "lines.jsonl", tokenizer, 520);
  ASSERT_EQ(examples.size(), expected["records"].get<std::size_t>());
  std::vector<std::int64_t> lines;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    EXPECT_EQ(tokenizer.decode(examples[i].ids),
              "<|begin_of_text|>" + expected["texts"][i].get<std::string>() + "<|eot_id|>");
    lines.push_back(examples[i].line);
  }
  EXPECT_EQ(lines, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 12}));  // 10 and 11 are blank
}

TEST(CaseA11, LinesAreHandedOutWithoutTheirEnds) {
  const TemporaryFolder folder;
  LineReader reader(folder.write("lines.txt",
                                 "\xEF\xBB\xBF"
                                 "a\rb\r\n\r\n\xEF\xBB\xBF"
                                 "c\u2028d\n\ne"));
  std::vector<std::string> lines;
  while (reader.next()) lines.emplace_back(reader.line());
  EXPECT_EQ(lines, (std::vector<std::string>{"a\rb", "",
                                             "\uFEFF"
                                             "c\u2028d",
                                             "", "e"}));
  EXPECT_EQ(reader.number(), 5);
}

TEST(CaseA11, LinesLongerThanAChunk) {
  const TemporaryFolder folder;
  const std::string first((3u << 20) + 17, 'x');
  const std::string second((1u << 20) - 1, 'y');  // its line end is the last byte of a chunk
  LineReader reader(folder.write("lines.txt", first + "\n" + second + "\n"));
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.line(), first);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.line(), second);
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.number(), 2);
}

TEST(CaseA11, ByteOrderMarkInsideTheFileIsAnError) {
  expect_error(ErrorClass::kBadData, {"data.jsonl line 2", "byte order mark"},
               [] { read_text("\xEF\xBB\xBF{\"text\": \"a\"}\n\xEF\xBB\xBF{\"text\": \"b\"}\n"); });
}

TEST(CaseA11, MessagesCountPhysicalLines) {
  expect_error(ErrorClass::kBadData, {"data.jsonl line 4"},
               [] { read_text("\xEF\xBB\xBF{\"text\": \"a\u2028b\"}\r\n\n  \r\n{\"text\": 1}\n"); });
}

TEST(RowsUneven, IdsOfTextRows) {
  const json expected = read_json(cases() / "rows-uneven-expected.json")["rows"];
  const Tokenizer tokenizer = Tokenizer::load(cases() / "base-gqa");
  const std::vector<Example> examples = read(cases() / "rows-uneven.jsonl", tokenizer, 520);
  ASSERT_EQ(examples.size(), 6u);
  for (std::size_t i = 0; i < examples.size(); ++i) {
    EXPECT_EQ(examples[i].ids, expected[i]["ids"].get<Ids>());
    EXPECT_EQ(examples[i].labels, examples[i].ids);
  }
}

TEST(CaseA04, TextRowsGetOneBeginningAndOneEnd) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  const auto file = folder.write("data.jsonl",
                                 "{\"text\": \"No.\"}\n{\"text\": \"<|begin_of_text|>No.\"}\n"
                                 "{\"text\": \"<|begin_of_text|>No.<|eot_id|>\"}\n{\"text\": \"\"}\n");
  const std::vector<Example> examples = read(file, tokenizer, 520);
  ASSERT_EQ(examples.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(examples[i].ids, (Ids{506, 45, 78, 13, 510})) << i;
  EXPECT_EQ(examples[3].ids, (Ids{506, 510}));
}

TEST(CaseA45, IdsInSpareRowsAreLegalBeyondThemNot) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(cases() / "base-gqa");
  const auto good = folder.write("good.jsonl", "{\"input_ids\": [506, 519, 0]}\n");
  EXPECT_EQ(read(good, tokenizer, 520).at(0).ids, (Ids{506, 519, 0}));
  const auto bad = folder.write("bad.jsonl", "{\"input_ids\": [506, 519, 0]}\n\n{\"input_ids\": [506, 520]}\n");
  expect_error(ErrorClass::kBadData, {"bad.jsonl line 3", "entry 2 is 520", "0 to 519"},
               [&] { read(bad, tokenizer, 520); });
  // Tokens of the tokenizer beyond the model.
  const auto text = folder.write("text.jsonl", "{\"text\": \"fine\"}\n{\"text\": \"<row>\"}\n");
  const Tokenizer added = Tokenizer::load(cases() / "tok-bpe-added");
  EXPECT_EQ(read(text, added, 520).size(), 2u);
  expect_error(ErrorClass::kBadData, {"text.jsonl line 2", "513", "512"}, [&] { read(text, added, 512); });
  expect_error(ErrorClass::kBadData, {"text.jsonl line 2", "513"}, [&] { read(text, added, 513); });
}

TEST(Dataset, ConversationsAreRenderedWithoutFurtherTokens) {
  const std::vector<Example> examples = read_text(
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes\"}]}");
  const Tokenizer tokenizer = Tokenizer::load(tiny_model());
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_EQ(tokenizer.decode(examples[0].ids),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n");
}

TEST(Dataset, LabelsAreTakenAsTheyAre) {
  const std::vector<Example> examples =
      read_text("{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, -100], \"text\": \"not used\"}");
  EXPECT_EQ(examples.at(0).ids, (Ids{5, 6, 7}));
  EXPECT_EQ(examples.at(0).labels, (Ids{-100, 6, -100}));
}

TEST(Dataset, IdsNeedNoTokenizer) {
  const TemporaryFolder folder;
  const TokenizerSource none = []() -> const Tokenizer& { fail(ErrorClass::kBadModel, "cannot be followed"); };
  const auto ids = folder.write("ids.jsonl", "{\"input_ids\": [5, 6]}\n{\"input_ids\": [7], \"labels\": [7]}\n");
  EXPECT_EQ(read_examples(ids, {}, none, 512).size(), 2u);
  for (const char* other : {"{\"text\": \"a\"}", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"}) {
    const auto mixed = folder.write("mixed.jsonl", std::string("{\"input_ids\": [5, 6]}\n") + other);
    expect_error(ErrorClass::kBadModel, {"cannot be followed"}, [&] { read_examples(mixed, {}, none, 512); });
  }
}

TEST(Dataset, TextColumnByOption) {
  const TemporaryFolder folder;
  DataOptions options;
  options.dataset_text_field = "content";
  const Tokenizer tokenizer = Tokenizer::load(tiny_model());
  const auto file = folder.write("data.jsonl", "{\"content\": \"abc<|im_end|>\", \"text\": \"other\"}");
  EXPECT_EQ(tokenizer.decode(read(file, tokenizer, 512, options).at(0).ids), "abc<|im_end|>");
}

TEST(Dataset, BadRecordsNameFileAndLine) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"{\"text\": \"a\"", {}},
      {"{\"text\": \"a\"} {\"text\": \"b\"}", {}},
      {"[1]", {"expected a JSON object", "array"}},
      {"{\"prompt\": \"a\", \"completion\": \"b\"}",
       {"no known column", "'completion', 'prompt'", "--dataset_text_field"}},
      {"{}", {"no column"}},
      {"{\"text\": null}", {"'text'", "string", "null"}},
      {"{\"messages\": []}", {"'messages'"}},
      {"{\"messages\": [{\"role\": \"user\"}]}", {"message 1", "'content'"}},
      {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}", {"message 1", "null"}},
      {"{\"input_ids\": 5}", {"'input_ids'"}},
      {"{\"input_ids\": [1, -2]}", {"entry 2 is -2"}},
      {"{\"input_ids\": [1.0]}", {"entry 1 is 1.0"}},
      {"{\"input_ids\": [true]}", {"entry 1 is true"}},
      {"{\"input_ids\": [-100]}", {"entry 1 is -100"}},
      {"{\"input_ids\": [99999999999999999999]}", {"entry 1"}},
      // Beyond 64 bits with a sign; the first would be -100 if it wrapped around.
      {"{\"input_ids\": [1, 2], \"labels\": [1, 18446744073709551516]}", {"'labels' entry 2 is 18446744073709551516"}},
      {"{\"input_ids\": [1], \"labels\": [9223372036854775808]}", {"'labels' entry 1 is 9223372036854775808"}},
      {"{\"input_ids\": [1], \"labels\": [-9223372036854775809]}", {"'labels' entry 1"}},
      {"{\"input_ids\": [1], \"labels\": [4294967196]}", {"'labels' entry 1 is 4294967196"}},
      {"{\"input_ids\": [1], \"labels\": [-100.0]}", {"'labels' entry 1 is -100.0"}},
      {"{\"input_ids\": [1], \"labels\": [false]}", {"'labels' entry 1 is false"}},
      {"{\"input_ids\": [1], \"labels\": [null]}", {"'labels' entry 1 is null"}},
      {"{\"input_ids\": [9223372036854775813]}", {"entry 1 is 9223372036854775813"}},
      {"{\"input_ids\": [18446744073709551617]}", {"entry 1"}},
      {"{\"input_ids\": [4294967297]}", {"entry 1 is 4294967297"}},
      {"{\"input_ids\": [1, 2], \"labels\": [1]}", {"1 labels for 2 input_ids"}},
      {"{\"input_ids\": [1], \"labels\": [-101]}", {"'labels' entry 1 is -101"}},
      {"{\"text\": \"\xFF\"}", {"not UTF-8", "byte 11"}},
      {"{\"text\": \"\\ud83d\"}", {}},  // half a surrogate pair
  };
  for (const auto& [record, parts] : bad) {
    std::vector<std::string> all = parts;
    all.push_back("data.jsonl line 2");
    expect_error(ErrorClass::kBadData, all, [text = "{\"text\": \"good\"}\n" + record + "\n"] { read_text(text); });
  }
  expect_error(ErrorClass::kBadData, {"no record"}, [] { read_text("\n \r\n"); });
  expect_error(ErrorClass::kBadData, {"no record"}, [] { read_text(""); });
}

TEST(Dataset, UnknownTemplateNamesTheLineAndTheFix) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-bpe");
  expect_error(ErrorClass::kBadModel, {"chat.jsonl line 1", "--chat_template_format chatml"},
               [&] { read(cases() / "chat.jsonl", tokenizer, 520); });
}

TEST(Dataset, LineOverTheLimit) {
  std::string content = "{\"text\": \"a\"}\n{\"text\": \"";
  content.append((64u << 20) + 1, 'x');
  expect_error(ErrorClass::kBadData, {"line 2", "67108864"}, [&] { read_text(content + "\"}\n{\"text\": \"b\"}\n"); });
}

TEST(Dataset, SplitFiles) {
  const TemporaryFolder folder;
  DataOptions options;
  expect_error(ErrorClass::kUsage, {"--dataset_name"}, [&] { split_file(options, true); });
  options.dataset_name = folder.path().string();
  expect_error(ErrorClass::kBadData, {"train.jsonl", "--dataset_train_split"}, [&] { split_file(options, true); });
  EXPECT_TRUE(split_file(options, false).empty());
  const auto file = folder.write("train.jsonl", "{}");
  EXPECT_EQ(split_file(options, true), file);
  options.dataset_test_split = "train";
  EXPECT_EQ(split_file(options, false), file);
  options.dataset_name = file.string();
  EXPECT_EQ(split_file(options, true), file);
  EXPECT_TRUE(split_file(options, false).empty());
  options.dataset_name = (folder.path() / "none").string();
  expect_error(ErrorClass::kBadData, {"none", "no such file"}, [&] { split_file(options, false); });
}

}  // namespace
}  // namespace shardtune::data::testing
