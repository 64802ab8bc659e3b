#!/usr/bin/env python3
"""tests/parity/data/merged: adapters and what PEFT merged them to, cut out of a folder of reference runs.

Of each run three modules of one layer are kept (names in adapter_config.json), with the tensors as PEFT wrote them.

Usage: merged.py REFERENCE_FOLDER
"""
import json
import pathlib
import sys

import safetensors_lite

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "merged"
# folder of the result: run, layer, file with the merged weights, end of their names
RUNS = {
    "tiny-lora": ("tiny/lora", 1, "merged.safetensors", ""),
    "tiny-dora": ("tiny/dora", 1, "merged.safetensors", ""),
    "tiny-llama3-dora": ("tiny-llama3/dora", 1, "merged.safetensors", ""),
    "tiny-odd-lora": ("tiny-odd/lora", 1, "merged.safetensors", ""),
    "tiny-qlora": ("tiny/qlora_nf4_fp32", 0, "merged_after_dequantise.safetensors", ".merged"),
    "tiny-qdora": ("tiny/qdora_nf4_fp32", 0, "merged_after_dequantise.safetensors", ".merged"),
}
MODULES = ("self_attn.k_proj", "self_attn.q_proj", "mlp.down_proj")


def main():
    numerics = pathlib.Path(sys.argv[1]) / "numerics"
    for name, (run, layer, file, end) in RUNS.items():
        modules = [f"model.layers.{layer}.{module}" for module in MODULES]
        folder = OUT / name
        folder.mkdir(parents=True, exist_ok=True)
        config = json.loads((numerics / run / "adapter/adapter_config.json").read_text())
        config["target_modules"] = modules
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
        adapter = safetensors_lite.read(numerics / run / "adapter/adapter_model.safetensors")
        kept = {key: value for key, value in adapter.items() if any(f".{module}." in key for module in modules)}
        safetensors_lite.write(folder / "adapter_model.safetensors", kept)
        merged = safetensors_lite.read(numerics / run / file)
        found = {f"{module}.weight": merged.get(f"{module}.weight{end}") or merged[module + end] for module in modules}
        safetensors_lite.write(folder / "merged.safetensors", found)
        print(name, len(kept), len(found))


if __name__ == "__main__":
    main()
