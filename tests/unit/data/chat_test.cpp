// Chat templates. Expected texts: Transformers 5.24 with the same templates.
#include "shardtune/data/chat.h"

#include "support.h"

namespace shardtune::data::testing {
namespace {

using nlohmann::json;

Tokenizer with_template(const std::string& text) {
  Files files(tiny_model());
  files.config["chat_template"] = text;
  return files.load();
}

std::vector<Message> messages_of(const json& list) {
  std::vector<Message> messages;
  for (const json& message : list) messages.push_back({message["role"], message["content"]});
  return messages;
}

TEST(Chat, RenderingsOfTheReference) {
  const json reference = read_json(data_folder() / "tokenizers" / "chat_templates.json");
  ASSERT_EQ(reference["renderings"].size(), 60u);
  for (const json& entry : reference["renderings"]) {
    const std::string name = entry["template"];
    const ChatRenderer renderer(with_template(reference["templates"][name]), "tokenizer");
    std::vector<Message> messages = messages_of(reference["chats"][entry["chat"].get<std::size_t>()]);
    if (entry["system"]) messages.insert(messages.begin(), {"system", reference["system_message"]});
    EXPECT_EQ(renderer.render(messages, entry["generation_prompt"]), entry["text"].get<std::string>()) << name;
  }
}

TEST(Chat, TinyModelsTemplateIsChatMl) {
  const ChatRenderer renderer(Tokenizer::load(tiny_model()), "tokenizer");
  EXPECT_EQ(renderer.render({{"user", "Hi"}}, true), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Chat, SpellingDoesNotMatter) {
  for (const char* text :
       {"{%- for message in messages -%}\n  {{- \"<|im_start|>\" + message.role + \"\\n\" + message.content + "
        "\"<|im_end|>\\n\" -}}\n"
        "{%- endfor -%}\n{%- if add_generation_prompt -%}\n  {{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n",
        "{# ChatML #}{%for message in messages%}\n    {% if loop.last and add_generation_prompt %}{% endif %}"}) {
    const ChatRenderer renderer(with_template(text), "tokenizer");
    if (std::string(text).starts_with("{#")) {
      expect_error(ErrorClass::kBadModel, {"chat template"}, [&] { renderer.render({{"user", "x"}}, false); });
    } else {
      EXPECT_EQ(renderer.render({{"user", "x"}}, false), "<|im_start|>user\nx<|im_end|>\n");
    }
  }
}

TEST(Chat, SmallDifferencesAreNotOverlooked) {
  const json templates = read_json(data_folder() / "tokenizers" / "chat_templates.json")["templates"];
  const std::string own = templates["smollm2_own"];
  const std::vector<std::pair<std::string, std::string>> changes = {{"message['content']", "message['content'] | trim"},
                                                                    {"SmolLM,", "SmolLM3,"},
                                                                    {"'system'", "'tool'"},
                                                                    {"loop.first", "loop.last"},
                                                                    {"{% endfor %}", "{% endfor %} "},
                                                                    {"<|im_end|>' + '\n'", "<|im_end|>' + '\n\n'"},
                                                                    {"!=", "=="}};
  for (const auto& [from, to] : changes) {
    std::string changed = own;
    changed.replace(changed.find(from), from.size(), to);
    const ChatRenderer renderer(with_template(changed), "tokenizer");
    expect_error(ErrorClass::kBadModel, {"chat template", "--chat_template_format chatml"}, [&] {
      renderer.render({{"user", "x"}}, false);
    });
  }
}

TEST(CaseA07, RewritingTemplateIsRefusedByItsFirstLine) {
  const Tokenizer tokenizer = Tokenizer::load(cases() / "tok-rewriting-template");
  const ChatRenderer renderer(tokenizer, "tokenizer");
  expect_error(ErrorClass::kBadModel, {"{{ bos_token }}{% for m in messages %}", "--chat_template_format chatml"}, [&] {
    renderer.render({{"user", "x"}}, false);
  });
  EXPECT_EQ(ChatRenderer(tokenizer, "chatml").render({{"user", "x"}}, false), "<|im_start|>user\nx<|im_end|>\n");
}

TEST(Chat, NoTemplateNoMessagesUnknownFormat) {
  const Tokenizer tokenizer = with_template("");
  expect_error(ErrorClass::kBadModel, {"no chat template", "--chat_template_format chatml"}, [&] {
    ChatRenderer(tokenizer, "tokenizer").render({{"user", "x"}}, false);
  });
  expect_error(ErrorClass::kBadData, {"without messages"}, [&] { ChatRenderer(tokenizer, "chatml").render({}, true); });
  expect_error(ErrorClass::kUsage, {"--chat_template_format 'zephyr'"}, [&] { ChatRenderer(tokenizer, "zephyr"); });
}

}  // namespace
}  // namespace shardtune::data::testing
