#include "help.h"

#include <vector>

#include "shardtune/core/error.h"
#include "sources.h"
#include "value.h"

namespace shardtune::options {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 6;

/// Paragraph of lines of at most kColumns, each indented. A longer word gets a line of its own.
std::string wrap(std::string_view text, std::size_t indent) {
  std::string out;
  std::string line(indent, ' ');
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (line.size() > indent && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.assign(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
  }
  return out + line + "\n";
}

std::string default_text(const OptionSpec& spec) {
  RunOptions defaults;
  const std::string value = value_text(spec, defaults);
  if (!spec.default_text.empty()) return std::string(spec.default_text);
  return spec.required ? "required" : value.empty() ? "none" : value;
}

std::string needs_text(const OptionSpec& spec) {
  if (!spec.needs) return "";
  return fmt::format(" Only with {} = {}.", spec.needs->option, fmt::join(spec.needs->values, " or "));
}

/// Of an option that some commands do not have, but for those whose group says it.
std::string commands_text(const OptionSpec& spec) {
  const auto having = commands_of(spec);
  if (!spec.command.empty() || having.size() == commands().size()) return "";
  return fmt::format(" For {}.", fmt::join(having, ", "));
}

/// Plain text and booleans need no sentence of their own in --help.
std::string range_sentence(const OptionSpec& spec) {
  if (std::holds_alternative<Text>(spec.allowed) || std::holds_alternative<Flag>(spec.allowed)) return "";
  return fmt::format(" Allowed: {}.", allowed_text(spec));
}

std::string help_entry(const OptionSpec& spec) {
  if (spec.scope == Scope::kCommandLineOnly) return fmt::format("  --{}\n", spec.name) + wrap(spec.help, kIndent);
  const std::string unit = spec.unit.empty() ? "" : fmt::format("  [{}]", spec.unit);
  const std::string ending = spec.required ? "Required." : fmt::format("Default: {}.", default_text(spec));
  return fmt::format("  --{} {}{}\n", spec.name, placeholder(spec), unit) +
         wrap(
             fmt::format("{}{}{}{} {}", spec.help, range_sentence(spec), needs_text(spec), commands_text(spec), ending),
             kIndent);
}

/// '|' would end the cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string markdown_row(const OptionSpec& spec) {
  const bool bare = spec.scope == Scope::kCommandLineOnly;
  const bool flag = std::holds_alternative<Flag>(spec.allowed);
  return fmt::format("| `{}` | {} | {} | {} | {}{} |\n", spec.name, bare ? "-" : default_text(spec),
                     flag ? "a boolean" : cell(allowed_text(spec)), spec.unit.empty() ? "-" : spec.unit,
                     cell(spec.help), needs_text(spec) + commands_text(spec));
}

constexpr std::string_view kMarkdownHead = R"(# Options of `shardtune`

This page is made from the table in `src/options/option_table.cpp`. Do not edit it; write it anew with
`build/shardtune help-markdown > docs/options.md`.

Every option below is acted on; any other name is an error that says which known name is near. The names are those of the
Hugging Face training scripts (Transformers, TRL, PEFT).

## Where values come from

1. The command line: `--name value` or `--name=value`. A boolean may stand alone (`--packing`); names are not abbreviated.
2. The environment: `SHARDTUNE_<NAME>` in upper case, for example `SHARDTUNE_LEARNING_RATE=1e-4`. With several hosts, all
   ranks need the same variables (`mpirun -x`).
3. The INI file of `--config`.
4. The default.

The first of these that has a value wins; values of the others are checked all the same. An option given twice in one place
is an error. The start of the log shows each option with its value and where it came from.

What a file turns on, the command line and the environment can turn off: an option whose condition is turned off by a
stronger place is left without effect. With `save_strategy = steps` and `save_steps = 5` in the file,
`--save_strategy no` is enough; the log then shows `save_steps  5  (config FILE, without effect)`, and the run has the
default. `--use_peft_lora False`, `--packing False`, `--eval_strategy no`, `--use_4bit_quantization False`,
`--lr_scheduler_type constant` (for `warmup_steps`) and `--activation_policy` (for `gradient_checkpointing` and
`memory_budget_gib`) work alike. When both come from the same place, or the dependent option from the stronger one, it
is an error.

## How values are written

- Booleans: `True`, `true`, `1`, `yes`, `False`, `false`, `0`, `no`.
- Integers: digits only. `1e3`, `1000.0`, `+5` and `1,000` are refused.
- Numbers: `0.001`, `1e-3`; no `+` in front. `nan`, `inf`, hexadecimal forms and what fp64 cannot hold
  (`1e400`) are refused. The ranges keep to what the optimizer's fp32 can hold.
- Texts and paths: UTF-8 without line breaks or other control characters.
- Names from a list: exactly as written here, case included.
- `resume_from_checkpoint`: `True`, or the option alone, means the newest complete checkpoint in `output_dir`; `False` means
  none. A folder that has a boolean word as its name is written `./1`.
- An empty value is refused, except where the default is "none"; an empty `config` is refused too.

## The INI file

One `NAME = VALUE` a line. `#` and `;` begin a comment at the start of a line or after a blank. Values are not quoted and
end with the line. Section headers such as `[adapter]` are allowed and mean nothing: a name occurs once in the whole
file. Relative paths are relative to the folder the program is started in, not to the file. `config` itself is not allowed
in the file.

## Options that belong together

- `evaluate` and `generate` take the file (and the environment) of a training run: options in it that they do not have are
  without effect; on their command line such an option is refused.
- In `evaluate` and `generate`, `adapter_name_or_path` turns `use_peft_lora` on by itself; `--use_peft_lora False` is the
  model without the adapter that a file names.
- `max_steps` above 0 wins over `num_train_epochs`, also when both are given (as in Transformers).
- An option that the table marks "Only with ..." is refused when it is given and its condition does not hold, unless a
  stronger place has turned the condition off.
- `warmup_steps` above 0 is refused with `lr_scheduler_type = constant`, which has no warm-up; from 1 on it must be whole.
- `resume_from_checkpoint = True` and `overwrite_output_dir` exclude each other; a checkpoint named by its path may be
  given with it when it does not lie in `output_dir`.
)";

}  // namespace

std::string help_text() {
  std::string text =
      "Usage: mpirun -np RANKS shardtune train --config FILE [--NAME VALUE ...]\n"
      "       shardtune plan --world_size RANKS [--config FILE] [--NAME VALUE ...]\n"
      "       [mpirun -np RANKS] shardtune merge --model_name_or_path FOLDER \\\n"
      "           --adapter_name_or_path FOLDER --output_dir FOLDER [--NAME VALUE ...]\n"
      "       mpirun -np RANKS shardtune evaluate|generate [--config FILE] [--NAME VALUE ...]\n\n" +
      wrap(
          "Fine-tunes a Llama model from a Hugging Face folder. mpirun or srun starts one process "
          "(rank) for each device; "
          "all ranks get the same options. 'shardtune plan' tells, without weights and without a GPU, what a rank of "
          "such a job needs; it takes the same options and those of the group Planning, and is started once, without "
          "mpirun. 'shardtune merge' adds adapters to their base and writes a model folder; it takes the model, the "
          "adapters, what the base of their run was, and the options of the group Merging. "
          "'shardtune evaluate' measures the loss of a model, with or without an adapter, on a data set; "
          "'shardtune generate' lets it continue prompts.",
          0) +
      "\nExamples:\n"
      "  mpirun -np 2 shardtune train --config configs/smollm2_lora_quickstart.ini\n"
      "  mpirun -np 2 shardtune train --config configs/smollm2_lora_quickstart.ini \\\n"
      "      --learning_rate 5e-4 --output_dir runs/second\n"
      "  shardtune plan --config configs/llama70b_lora.ini --world_size 8 \\\n"
      "      --model_name_or_path configs/shapes/llama-3.1-70b\n\n" +
      wrap(
          "A value on the command line wins over the environment (SHARDTUNE_<NAME> in upper case), that "
          "over the file of "
          "--config, and that over the default. A boolean may stand alone: --packing is --packing True.",
          0);
  std::string_view group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) text += fmt::format("\n{}\n", group = spec.group);
    text += help_entry(spec);
  }
  return text;
}

std::string version_text() { return "shardtune " SHARDTUNE_VERSION "\n"; }

std::string help_markdown() {
  std::string text(kMarkdownHead);
  std::string_view group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) {
      text +=
          fmt::format("\n## {}\n\n| option | default | allowed | unit | meaning |\n| --- | --- | --- | --- | --- |\n",
                      group = spec.group);
    }
    text += markdown_row(spec);
  }
  text +=
      "\n## Variables that are not options\n\nThese names in the environment belong to the build, the tools and the "
      "tests; the program leaves them alone:\n\n| variable | what it does |\n| --- | --- |\n";
  for (const ToolVariable& variable : tool_variables())
    text += fmt::format("| `{}` | {} |\n", variable.name, cell(variable.meaning));
  return text + "\nAny other name that begins with `SHARDTUNE_` must be that of an option.\n";
}

}  // namespace shardtune::options
