#pragma once
#include <string>
#include <vector>

#include "shardtune/data/tokenizer.h"

namespace shardtune::data {

struct Message {
  std::string role;
  std::string content;
};

/// Renders conversations. Known templates are built in (no Jinja engine): plain ChatML and SmolLM2's ChatML with its
/// default system message. Any other template text is refused with its first line and the option that helps
/// (--chat_template_format chatml).
class ChatRenderer {
 public:
  /// `format`: "tokenizer" takes the tokenizer's own template, "chatml" plain ChatML whatever the tokenizer says.
  ChatRenderer(const Tokenizer& tokenizer, const std::string& format);

  std::string render(const std::vector<Message>& messages, bool add_generation_prompt) const;

 private:
  std::string default_system_;  ///< written first when the conversation does not begin with a system message
  bool generation_prompt_with_newline_ = true;
};

}  // namespace shardtune::data
