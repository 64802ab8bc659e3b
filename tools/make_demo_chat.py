#!/usr/bin/env python3
"""Writes the demo conversations runs/demo/chat/{train,test}.jsonl: a cluster help desk that answers in a fixed form.

They are made from demo_topics.json (questions, causes, steps) and the value lists below by counting, without a random
number, so every machine writes the same bytes. Questions, values and manners of asking vary; the form of the answer
does not, so a few LoRA steps show in the evaluation loss. The test split holds every topic once, with values and
greetings that its training conversations do not combine.

Usage: make_demo_chat.py [--out FOLDER]
"""
import argparse
import json
import pathlib

TOOLS = pathlib.Path(__file__).resolve().parent
SYSTEM = "You are the help desk of the Halden laboratory cluster."
TRAIN_PER_TOPIC = 5

VALUES = {
    "part": ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove"),
    "gpart": ("gpu-a", "gpu-b", "gpu-long", "gpu-test", "gpu-big"),
    "node": ("hal017", "hal042", "hal105", "hal233", "hal318", "hal401", "hal577", "hal690", "hal711", "hal808", "hal956"),
    "user": ("amina", "bjarne", "chiara", "dmitri", "elif", "farid", "greta", "hiroshi", "ines", "jonas", "kofi", "leila", "mats"),
    "proj": ("aurora", "basalt", "corona", "drift", "enzyme", "fusion", "glacier", "helix"),
    "mod": ("gcc/13", "openmpi/4.1", "hdf5/1.14", "python/3.12", "fftw/3.3", "cmake/3.28", "julia/1.10"),
    "n": ("2", "3", "4", "6", "8", "12", "16", "24", "32"),
    "hours": ("4", "8", "12", "24", "36", "48"),
    "days": ("14", "21", "30", "45", "60", "90", "120"),
    "kh": ("40", "75", "120", "200", "350"),
    "year": ("2022", "2023", "2024", "2025"),
    "level": ("routine", "routine", "urgent", "routine", "watch"),
}
GREETINGS = ("", "Hello. ", "Good morning. ", "A quick one. ", "Hi desk, ", "Sorry to bother you. ")
FOLLOW_UPS = ("Thanks. And if that does not help?", "What if it comes back?", "Who can help me if this fails?")


def values_of(number):
    """One value of every list; lists of different length walk apart as `number` counts up."""
    chosen = {key: choices[(number * 5 + place * 3) % len(choices)] for place, (key, choices) in enumerate(VALUES.items())}
    gigabytes = 16 + number * 7 % 23 * 8
    return {**chosen, "job": str(410_000 + number * 7_919 % 90_000), "gb": str(gigabytes), "gb2": str(gigabytes * 5 // 4)}


def answer(topic, values):
    fill = lambda text: text.format(**values)  # noqa: E731
    steps = "\n".join(f"{place}) {fill(step)}" for place, step in enumerate(topic["steps"], 1))
    return (f"TOPIC: {topic['topic']} | LEVEL: {values['level']}\nCAUSE: {fill(topic['cause'])}.\nDO:\n{steps}\n"
            f"CHECK: {fill(topic['check'])}.\nNOTE: {fill(topic['note'])}.\n-- Halden desk")


def second_answer(topic, values):
    return (f"TOPIC: {topic['topic']} | LEVEL: watch\nCAUSE: the first answer did not cover it.\nDO:\n"
            f"1) write to the desk with job {values['job']} and node {values['node']}\n2) keep the log of the failed run\n"
            f"CHECK: the desk sends a ticket number within {values['hours']} hours.\n"
            f"NOTE: do not send the same job again before that.\n-- Halden desk")


def conversation(topic, number):
    values = values_of(number)
    ask = topic["asks"][number % len(topic["asks"])].format(**values)
    turns = [("system", SYSTEM), ("user", GREETINGS[number % len(GREETINGS)] + ask), ("assistant", answer(topic, values))]
    if number % 4 == 1:
        turns += [("user", FOLLOW_UPS[number % len(FOLLOW_UPS)]), ("assistant", second_answer(topic, values))]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def splits():
    """{"train": [...], "test": [...]}: round by round over the topics, so that any run of rows is mixed."""
    topics = json.loads((TOOLS / "demo_topics.json").read_text(encoding="utf-8"))
    rounds = [[conversation(topic, turn * 31 + place) for place, topic in enumerate(topics)]
              for turn in range(TRAIN_PER_TOPIC + 1)]
    return {"train": sum(rounds[:TRAIN_PER_TOPIC], []), "test": rounds[TRAIN_PER_TOPIC]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=TOOLS.parent / "runs" / "demo" / "chat")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for split, rows in splits().items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{split}.jsonl").write_text(text, encoding="utf-8")
        print(f"demo chat: {out / split}.jsonl, {len(rows)} conversations")


if __name__ == "__main__":
    main()
