#!/usr/bin/env python3
"""Greedy continuations, token accuracies and losses by Transformers, in fp32 on the CPU.

Writes tests/parity/data/generate/:
  tiny.json, tiny-llama3.json, tiny-odd.json   prompts of different lengths (ids), 24 greedy tokens of each with the gap between
        the two largest logits at every token, the same with the adapter of numerics/MODEL/lora where there is one, and of the
        batches of numerics/MODEL the number of targets and of tokens that are the likeliest
  sampling.json   what is left of some logits, as probabilities, behind temperature, top_k and top_p
  smollm2.json (with a model folder)   10 prompts x 40 tokens of SmolLM2-135M-Instruct: plain texts and conversations in its own
        template, with ids, text, tokens and gaps; accuracy and fp64 loss of each of the rows of smollm2/own_rows.safetensors

Usage: generate.py [MODEL_FOLDER]      with the packages of requirements.txt; about 2 minutes
"""
import importlib.metadata
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", HF_HUB_DISABLE_PROGRESS_BARS="1")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
OUT = DATA / "generate"
TINY = ("tiny", "tiny-llama3", "tiny-odd")
TEXTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n", "1, 2, 3, 4,",
         "The three primary colours are", "Water boils at"]
CHATS = [[{"role": "user", "content": "What is the capital of Norway?"}],
         [{"role": "user", "content": "My job is pending. What should I look at first?"}],
         [{"role": "system", "content": "You answer with one short sentence."}, {"role": "user", "content": "Why is the sky blue?"}],
         [{"role": "user", "content": "Name a prime number."}, {"role": "assistant", "content": "Seven."},
          {"role": "user", "content": "Another one?"}]]


def greedy(model, ids, count):
    """The tokens of model.generate() and, at each, the gap between the two largest logits."""
    out = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                         max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True)
    gaps = []
    for logits in out.logits:
        best = logits[0].double().topk(2).values
        gaps.append(round(float(best[0] - best[1]), 6))
    return {"tokens": out.sequences[0, len(ids):].tolist(), "gaps": gaps}


def counts(model, ids, labels):
    """Of rows of ids and labels that are not shifted: targets, tokens that are the likeliest, mean loss over fp64 logits."""
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].double()
    targets = labels[:, 1:]
    there = targets != -100
    losses = logits.logsumexp(-1) - logits.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    return {"targets": int(there.sum()), "correct": int((logits.argmax(-1).eq(targets) & there).sum()),
            "loss": float(losses[there].mean())}


def tiny(name):
    folder = DATA / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    batches = load_file(DATA / "numerics" / name / "batches.safetensors")
    rows = batches["train.input_ids"].flatten(0, 1).long()
    prompts = [rows[i, :length].tolist() for i, length in enumerate((5, 17, 1, 48, 9, 30, 3))]
    result = {"prompts": prompts, "base": [greedy(model, ids, 24) for ids in prompts],
              "evaluate": {"plain": counts(model, batches["train.input_ids"][0].long(), batches["train.input_ids"][0].long()),
                           "masked": counts(model, batches["train.input_ids"][0].long(), batches["train.labels"][0].long()),
                           "all": counts(model, rows, batches["train.labels"].flatten(0, 1).long())}}
    adapter = DATA / "numerics" / name / "lora" / "adapter"
    if adapter.exists():
        model = peft.PeftModel.from_pretrained(model, adapter).eval()
        result["lora"] = [greedy(model, ids, 24) for ids in prompts]
        result["evaluate"]["lora"] = counts(model, rows, batches["train.labels"].flatten(0, 1).long())
    return result


def sampling():
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn(20, generator=generator) * 2).tolist()
    logits[4] = logits[11] = logits[2]  # equal ones
    cases = []
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 1.0), (1.7, 5, 1.0), (1.0, 0, 0.6), (0.7, 0, 0.9),
                                      (1.3, 8, 0.75), (1.0, 0, 1e-6)):
        scores = torch.tensor([logits])
        warpers = [transformers.TemperatureLogitsWarper(temperature)] if temperature != 1 else []
        warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
        warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
        for warper in warpers:
            scores = warper(None, scores)
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p,
                      "probabilities": scores.double().softmax(-1)[0].tolist()})
    return {"logits": logits, "cases": cases}


def smollm2(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = []
    for text in TEXTS:
        prompts.append({"prompt": text, "ids": tokenizer(text)["input_ids"]})
    for chat in CHATS:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompts.append({"messages": chat, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]})
    for prompt in prompts:
        prompt.update(greedy(model, prompt["ids"], 40))
        prompt["text"] = tokenizer.decode(prompt["tokens"], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    rows = load_file(DATA / "smollm2" / "own_rows.safetensors")["input_ids"].long()
    return {"prompts": prompts, "evaluate": [counts(model, row[None], row[None]) for row in rows]}


def write(name, result):
    made = {package: importlib.metadata.version(package) for package in ("torch", "transformers", "peft")}
    (OUT / f"{name}.json").write_text(json.dumps({"made_with": made, **result}) + "\n", encoding="utf-8")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in TINY:
        write(name, tiny(name))
    write("sampling", sampling())
    if len(sys.argv) > 1:
        write("smollm2", smollm2(sys.argv[1]))


if __name__ == "__main__":
    main()
