#pragma once
#include <string>
#include <string_view>

namespace shardtune::data {

/// A Jinja chat template in a form that does not depend on spelling: the newline after a block tag and the blanks before
/// one are dropped (trim_blocks, lstrip_blocks, as Transformers sets them), spacing inside tags, kind of quotes, escapes,
/// `a.b` against `a['b']` and joined constant texts do not matter. Two templates with the same form give the same text; a
/// template with something this function does not know keeps its own form.
std::string canonical_template(std::string_view text);

}  // namespace shardtune::data
