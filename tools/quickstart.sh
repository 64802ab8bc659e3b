#!/usr/bin/env bash
# From a bare machine to a trained adapter: set-up, build, demo model and conversations, 20 LoRA steps on two ranks.
# Prints the evaluation loss and an answer of the model before and after, and where the adapter lies. A second run reuses everything but the
# training output in runs/quickstart.
#
#   tools/quickstart.sh [train option...]     for example --max_steps 40
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

config=configs/smollm2_lora_quickstart.ini
output=runs/quickstart

check_two_ranks() {
  local log
  log=$(mpi 2 true 2>&1) || {
    printf '%s\n' "$log" >&2
    die "mpirun cannot start two processes on this machine, see above"
  }
}

# show_result FILE: first and last evaluation loss of metrics.jsonl.
show_result() {
  python3 - "$1" "$output" <<'PYTHON'
import json
import pathlib
import sys

metrics, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
if len(losses) < 2:
    sys.exit(f"shardtune: {metrics} holds {len(losses)} evaluation losses; two are expected, before and after training")
adapters = sorted(output.rglob("adapter_model.safetensors"), key=lambda path: len(path.parts))
if not adapters:
    sys.exit(f"shardtune: no adapter_model.safetensors below {output}")
print(f"evaluation loss before training: {losses[0]:.4f}")
print(f"evaluation loss after training:  {losses[-1]:.4f}")
print(f"adapter: {adapters[0].parent}")
if not losses[-1] < losses[0]:
    sys.exit("shardtune: the evaluation loss did not fall")
PYTHON
}

# write_question FILE: the first test conversation up to the assistant's answer, as a prompt; prints the run's model folder.
write_question() {
  python3 - "$1" "$output/run_options.json" runs/demo/chat/test.jsonl <<'PYTHON'
import json
import sys

prompt, run_options, conversations = sys.argv[1:]
with open(conversations, encoding="utf-8") as lines:
    messages = json.loads(next(lines))["messages"]
roles = [message["role"] for message in messages]
with open(prompt, "w", encoding="utf-8") as file:
    json.dump({"messages": messages[:roles.index("assistant")]}, file)
with open(run_options, encoding="utf-8") as file:
    print(json.load(file)["model_name_or_path"]["value"])
PYTHON
}

# answer [generate option...]: the model's first 40 tokens.
answer() {
  build/shardtune generate --dtype float32 --prompts "$prompts" --max_new_tokens 40 "$@" 2>/dev/null |
    python3 -c 'import json, sys; print(" ".join(json.loads(sys.stdin.readline())["completion"].split()))'
}

show_answers() {
  local prompts model
  prompts=$(mktemp)
  model=$(write_question "$prompts")
  python3 -c 'import json, sys; print("question: " + json.load(open(sys.argv[1]))["messages"][-1]["content"])' "$prompts"
  printf 'answer before training: %s\n' "$(answer --model_name_or_path "$model")"
  printf 'answer after training:  %s\n' "$(answer --model_name_or_path "$model" --adapter_name_or_path "$output")"
  rm -f "$prompts"
}

train() {
  # --overwrite_output_dir: only the folder of an earlier quickstart.
  mpi 2 build/shardtune train --config "$config" --output_dir "$output" --overwrite_output_dir True "$@"
}

phase "set-up" bash tools/setup.sh
phase "build" configure_and_build default shardtune
phase "demo model and conversations" make_demo
check_two_ranks
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
phase "training, 2 ranks" train "$@"
show_phases
show_answers
show_result "$output/metrics.jsonl"
