#!/usr/bin/env python3
"""tests/parity/data/generate/adapters.json: greedy continuations by PEFT with trained rows of tokens, and with several adapters active
at once, on the tiny models; prompts as in tiny.json.

Usage: generate_adapters.py        after embedding_runs.py; a few seconds
"""
import json

import peft
import torch
import transformers
from generate import DATA, OUT, greedy

COUNT = 16
NUMERICS, CASES = DATA / "numerics", DATA / "cases"
# name: model, folders of adapters that are active together
RUNS = {
    "tokens": (DATA / "models/tiny", [NUMERICS / "tiny/tokens/adapter"]),
    "tokens_both": (DATA / "models/tiny", [NUMERICS / "tiny/tokens_both/adapter"]),
    "tokens_tied": (DATA / "models/tiny-llama3", [NUMERICS / "tiny-llama3/tokens_tied/adapter"]),
    "plain": (CASES / "base-gqa", [CASES / "lora-plain"]),
    "two": (CASES / "base-gqa", [CASES / "lora-plain", CASES / "lora-rslora"]),
    "three": (CASES / "base-gqa", [CASES / "lora-plain", CASES / "lora-rslora", CASES / "lora-dora"]),
}


def main():
    prompts = json.loads((OUT / "tiny.json").read_text())["prompts"]
    prompts.append([90, 260, 2, 1, 7, 90])  # of the trained rows
    result = {"prompts": prompts}
    for name, (base, adapters) in RUNS.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = peft.PeftModel.from_pretrained(model, str(adapters[0]), adapter_name="0")
        for number, other in enumerate(adapters[1:], 1):
            model.load_adapter(str(other), adapter_name=str(number))
        model.base_model.set_adapter([str(number) for number in range(len(adapters))])
        result[name] = [greedy(model.eval(), ids, COUNT) for ids in prompts]
        print(name, result[name][0]["tokens"], min(min(one["gaps"]) for one in result[name]))
    (OUT / "adapters.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
