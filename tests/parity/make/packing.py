#!/usr/bin/env python3
"""Rows of token ids as TRL's SFTTrainer prepares them: padded, wrapped and best-fit-decreasing packing (cut and split).

Writes tests/parity/data/packing/: conversations.jsonl (made here), texts.jsonl (the same as plain text rows), and
{padded,wrapped,bfd,bfd_split,text_padded}.json with `settings`, `rows` (lists of token ids), `labels` only where a row's
labels differ from its ids, `seq_lengths` (bfd, bfd_split) and `batch`: what TRL's collator makes of the first two rows.

Usage: packing.py       with the packages of requirements.txt
"""
import importlib.metadata
import json
import os
import pathlib
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")

import datasets  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
MODEL = DATA / "models" / "tiny"
MAX_LENGTH = 128
COUNT = 40

NOUNS = ("a pump", "the old lathe", "one beaker", "our north window", "the scale", "a copper wire", "the furnace")
VERBS = ("hums", "was moved twice", "needs oil", "broke in May", "is warm", "holds 3 litres", "counts to 1,024")
ASIDES = ("", " - nobody knows why", ", says Zoë", " (see page 17)", "; so be it", " 你好", " ...")
# Sentences of each conversation's turns: short ones, long ones (over one and over two rows), ties.
SENTENCES = (1, 0, 2, 5, 1, 9, 3, 1, 0, 14, 2, 1, 4, 1, 6, 0, 3, 22, 1, 2)


def sentences(count, number):
    words = []
    for place in range(count):
        key = number * 11 + place * 5
        words.append(f"{NOUNS[key % len(NOUNS)]} {VERBS[(key // 3) % len(VERBS)]}{ASIDES[(key // 2) % len(ASIDES)]}.")
    return " ".join(words)


def conversation(number):
    turns = [("user", f"Report {number}?"), ("assistant", sentences(SENTENCES[number % len(SENTENCES)], number) or "No.")]
    if number % 7 == 3:
        turns = [("system", "Be short."), *turns]
    if number % 5 == 2:
        turns += [("user", "And then?"), ("assistant", sentences(1 + number % 3, number + 1))]
    return [{"role": role, "content": content} for role, content in turns]


def prepared(rows, name, **settings):
    """Runs SFTTrainer's own data preparation on the rows; nothing is trained."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        config = trl.SFTConfig(output_dir=folder, max_length=MAX_LENGTH, per_device_train_batch_size=2, report_to=[],
                               use_cpu=True, bf16=False, shuffle_dataset=False, gradient_checkpointing=False, **settings)
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="eager")
        trainer = trl.SFTTrainer(model=model, args=config, processing_class=tokenizer,
                                 train_dataset=datasets.Dataset.from_list(rows))
    made = [dict(row) for row in trainer.train_dataset]
    batch = {key: value.tolist() for key, value in trainer.data_collator(made[:2]).items() if hasattr(value, "tolist")}
    result = {"settings": {"max_length": MAX_LENGTH, **settings}, "trl": importlib.metadata.version("trl"),
              "rows": [row["input_ids"] for row in made], "batch": batch}
    labels = {str(place): row["labels"] for place, row in enumerate(made) if row.get("labels", row["input_ids"])
              != row["input_ids"]}
    if labels:
        result["labels"] = labels
    if "seq_lengths" in made[0]:
        result["seq_lengths"] = [row["seq_lengths"] for row in made]
    (DATA / "packing" / f"{name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(name, len(made), "rows,", sum(len(row["input_ids"]) for row in made), "tokens")


def main():
    conversations = [conversation(number) for number in range(COUNT)]
    out = DATA / "packing"
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    messages = [{"messages": turns} for turns in conversations]
    texts = [{"text": sentences(1 + number % 4, number)} for number in range(8)]
    # A text that ends with the eos token already gets no second one.
    texts.append({"text": "The pump hums." + tokenizer.eos_token})
    for name, rows in (("conversations", messages), ("texts", texts)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    prepared(messages, "padded", packing=False)
    prepared(messages, "wrapped", packing=True, packing_strategy="wrapped")
    prepared(messages, "bfd", packing=True, packing_strategy="bfd")
    prepared(messages, "bfd_split", packing=True, packing_strategy="bfd_split")
    prepared(texts, "text_padded", packing=False, dataset_text_field="text")
    lengths = [len(tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"])
               for turns in conversations]
    print("lengths", sorted(lengths))


if __name__ == "__main__":
    main()
