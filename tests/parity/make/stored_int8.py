#!/usr/bin/env python3
"""models/tiny as Transformers saves it after loading it in 8 bits (bitsandbytes), on the CPU: tests/parity/data/models/tiny-int8.

Usage: stored_int8.py       with the packages of requirements.txt; a few seconds
"""
import pathlib

import torch
import transformers

MODELS = pathlib.Path(__file__).resolve().parents[1] / "data" / "models"


def main():
    quantisation = transformers.BitsAndBytesConfig(load_in_8bit=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "tiny", dtype=torch.float32, quantization_config=quantisation)
    model.save_pretrained(MODELS / "tiny-int8")
    (MODELS / "tiny-int8" / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
