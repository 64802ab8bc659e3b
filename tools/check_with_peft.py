#!/usr/bin/env python3
"""Loads an adapter this program exported with PEFT and compares the logits with the ones the program computed.

--logits is a safetensors file with `input_ids` [rows, T] and `logits` [rows, T, V]. Prints the relative L2 difference;
exit code 1 above --limit, or when PEFT reports tensors that are missing or fit nothing. Needs torch, transformers and
peft (tests/parity/make/requirements.txt).

Usage: check_with_peft.py --base MODEL_FOLDER --adapter ADAPTER_FOLDER --logits FILE [--limit 1e-5]
"""
import argparse
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", HF_HUB_DISABLE_PROGRESS_BARS="1")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402


def load(base, adapter):
    """The base in fp32 with the adapter active; exits when the adapter's names are not exactly the model's."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    stored = set(load_file(pathlib.Path(adapter) / "adapter_model.safetensors"))
    wanted = set(peft.get_peft_model_state_dict(model))
    if stored != wanted:
        sys.exit(f"check_with_peft.py: missing {sorted(wanted - stored)[:3]}, unexpected {sorted(stored - wanted)[:3]}")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--logits", required=True)
    parser.add_argument("--limit", type=float, default=1e-5)
    options = parser.parse_args()
    ours = load_file(options.logits)
    model = load(options.base, options.adapter)
    with torch.no_grad():
        theirs = model(input_ids=ours["input_ids"].long(), use_cache=False).logits.double()
        with model.disable_adapter():
            base = model(input_ids=ours["input_ids"].long(), use_cache=False).logits.double()
    if theirs.shape != ours["logits"].shape:
        sys.exit(f"check_with_peft.py: our logits are {list(ours['logits'].shape)}, PEFT's {list(theirs.shape)}")
    difference = float((ours["logits"].double() - theirs).norm() / theirs.norm())
    effect = float((base - theirs).norm() / theirs.norm())
    print(json.dumps({"relative_l2": difference, "limit": options.limit, "effect_of_adapter": effect,
                      "tensors": len(peft.get_peft_model_state_dict(model))}))
    if not difference <= options.limit:
        sys.exit(1)
    if effect == 0:
        sys.exit("check_with_peft.py: the adapter changes nothing, so this comparison says nothing")


if __name__ == "__main__":
    main()
