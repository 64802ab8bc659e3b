#!/usr/bin/env python3
"""What PEFT stores in adapter_config.json, and which tensors it trains, for single settings of LoraConfig on tiny models.

Usage: adapter_configs.py [--data tests/parity/data] [--read FOLDER MODEL]
Writes data/adapter_configs.json: for each case the model, the settings, the stored keys that they are about and the trained tensors
(names as in the adapter's file) with their shapes. --read: PEFT loads an adapter folder instead and prints both.
"""
import argparse
import json
import pathlib
import tempfile
import warnings

from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "exclude_modules": ("tiny", {"target_modules": ALL, "exclude_modules": ["v_proj", "model.layers.0.mlp.up_proj"]}),
    "exclude_pattern": ("tiny", {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*layers\.[13]\..*"}),
    "layers_to_transform": ("tiny", {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1, 3]}),
    "layers_pattern": ("tiny", {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0], "layers_pattern": ["layers"]}),
    "rank_pattern": ("tiny", {"target_modules": ALL, "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\..*": 16}}),
    "alpha_pattern": ("tiny", {"target_modules": ALL, "alpha_pattern": {"q_proj": 2, "layers.3.self_attn.v_proj": 24}}),
    "modules_to_save": ("tiny", {"target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head"]}),
    "ensure_weight_tying": ("tiny-llama3", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "bias": ("tiny", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "use_dora": ("tiny", {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "use_rslora": ("tiny", {"target_modules": ["q_proj"], "use_rslora": True}),
    "init_gaussian": ("tiny", {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"}),
    "init_false": ("tiny", {"target_modules": ["q_proj"], "init_lora_weights": False}),
    "embedding": ("tiny", {"target_modules": ["embed_tokens", "q_proj"]}),
}
KEYS = ["target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save",
        "ensure_weight_tying", "bias", "use_dora", "use_rslora", "init_lora_weights", "r", "lora_alpha"]


def stored(folder):
    config = json.loads((folder / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        tensors = {name: file.get_slice(name).get_shape() for name in sorted(file.keys()) if ".base_layer." not in name}
    return {"keys": {key: config[key] for key in KEYS}, "tensors": tensors}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data")
    parser.add_argument("--read", nargs=2, metavar=("FOLDER", "MODEL"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        if arguments.read:
            model = AutoModelForCausalLM.from_pretrained(arguments.read[1])
            PeftModel.from_pretrained(model, arguments.read[0]).save_pretrained(scratch)
            print(json.dumps(stored(scratch), indent=1))
            return
        cases = {}
        for name, (model_name, settings) in CASES.items():
            model = AutoModelForCausalLM.from_pretrained(arguments.data / "models" / model_name)
            config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **settings)
            get_peft_model(model, config).save_pretrained(scratch / name)
            cases[name] = {"model": model_name, **stored(scratch / name)}
    (arguments.data / "adapter_configs.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
