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
/// default system message. They are recognised by their text, whatever their spacing and quoting. Any other template is
/// refused when a conversation is rendered (a data set without conversations needs none), with its first line and the
/// option that helps (--chat_template_format chatml).
class ChatRenderer {
 public:
  /// The special token that ends a message, in every template that is known.
  static constexpr const char* kEndOfMessage = "<|im_end|>";

  /// `format`: "tokenizer" takes the tokenizer's own template, "chatml" plain ChatML whatever the tokenizer says; anything
  /// else is Error(kUsage).
  ChatRenderer(const Tokenizer& tokenizer, const std::string& format);

  /// The text of a conversation of at least one message. Contents are taken as they are, special tokens in them included.
  /// Error(kBadModel) when the tokenizer's template is none of the known ones.
  std::string render(const std::vector<Message>& messages, bool add_generation_prompt) const;

 private:
  std::string default_system_;  ///< written first when the conversation does not begin with a system message
  std::string refusal_;  ///< why nothing can be rendered, "" when it can
};

}  // namespace shardtune::data
