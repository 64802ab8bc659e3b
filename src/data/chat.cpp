#include "shardtune/data/chat.h"

#include <array>

#include "chat_template.h"
#include "shardtune/core/error.h"

namespace shardtune::data {
namespace {

constexpr const char* kSmolLm2System = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

struct KnownTemplate {
  const char* text;
  const char* default_system;
};

// The texts as model folders hold them. Plain ChatML is around with the generation prompt behind the loop and inside it.
constexpr std::array<KnownTemplate, 3> kKnownTemplates = {{
    {"{% for message in messages %}"
     "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
     ""},
    {"{% for message in messages %}"
     "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
     "{% if loop.last and add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
     "{% endfor %}",
     ""},
    {"{% for message in messages %}"
     "{% if loop.first and messages[0]['role'] != 'system' %}"
     "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
     "{% endif %}"
     "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
     kSmolLm2System},
}};

void append_message(std::string& out, std::string_view role, std::string_view content) {
  out += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kShown = 100;
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() > kShown ? line.substr(0, kShown) + "..." : line;
}

}  // namespace

ChatRenderer::ChatRenderer(const Tokenizer& tokenizer, const std::string& format) {
  if (format == "chatml") return;
  if (format != "tokenizer")
    fail(ErrorClass::kUsage, "--chat_template_format '{}' is not known; expected tokenizer or chatml", format);
  const std::string& text = tokenizer.chat_template();
  if (text.empty()) {
    refusal_ =
        "the tokenizer has no chat template, but the data holds conversations; use --chat_template_format chatml";
    return;
  }
  const std::string form = canonical_template(text);
  for (const KnownTemplate& known : kKnownTemplates) {
    if (form != canonical_template(known.text)) continue;
    default_system_ = known.default_system;
    return;
  }
  refusal_ = fmt::format(
      "the tokenizer's chat template is not one of the built-in ones (ChatML, SmolLM2); it begins '{}'; use "
      "--chat_template_format chatml for plain ChatML, or render the conversations into texts",
      first_line(text));
}

std::string ChatRenderer::render(const std::vector<Message>& messages, bool add_generation_prompt) const {
  if (!refusal_.empty()) fail(ErrorClass::kBadModel, "{}", refusal_);
  if (messages.empty()) fail(ErrorClass::kBadData, "a conversation without messages cannot be rendered");
  std::string out;
  if (!default_system_.empty() && messages.front().role != "system") append_message(out, "system", default_system_);
  for (const Message& message : messages) append_message(out, message.role, message.content);
  if (add_generation_prompt) out += "<|im_start|>assistant\n";
  return out;
}

}  // namespace shardtune::data
