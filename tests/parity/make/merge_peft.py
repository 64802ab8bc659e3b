#!/usr/bin/env python3
"""tests/parity/data/merged/gqa-*, tied-*: what PEFT 0.21 merges small adapters of every kind to, on the models of the cases.

A tied model is given a head of its own first where an adapter changes one side: PEFT's own merge would change both.

Usage: merge_peft.py        with the packages of requirements.txt; a few seconds
"""
import json
import pathlib
import shutil
import tempfile

import peft
import torch
import transformers
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
CASES, OUT = DATA / "cases", DATA / "merged"


def base(name, dtype=torch.float32, untie=False):
    model = transformers.AutoModelForCausalLM.from_pretrained(CASES / name, dtype=dtype)
    if untie:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    return model


def keep(name, before, merged, adapter=None, copy_base=True):
    """The tensors that the merge changed, and the adapter."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    old, new = before, merged.state_dict()
    changed = {k: v.contiguous().clone() for k, v in new.items() if k not in old or not torch.equal(v, old[k])}
    if merged.config.tie_word_embeddings:
        changed.pop("lm_head.weight", None)  # the table
    save_file(changed, folder / "merged.safetensors", metadata={"format": "pt"})
    if adapter is not None:
        with tempfile.TemporaryDirectory() as scratch:
            adapter.save_pretrained(scratch)
            config = json.loads((pathlib.Path(scratch) / "adapter_config.json").read_text())
            for key in ("target_modules", "modules_to_save"):
                if config[key]:
                    config[key] = sorted(config[key])
            config["base_model_name_or_path"] = ""
            (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
            shutil.copyfile(pathlib.Path(scratch) / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    print(name, sorted(changed)[:3], len(changed))


def copy_of(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def new_adapter(name, model, seed, **settings):
    torch.manual_seed(seed)
    before = copy_of(model)
    adapter = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, value in adapter.named_parameters():
            if value.requires_grad:
                value.copy_(torch.randn_like(value) * 0.1 + (value if "modules_to_save" in key or "magnitude" in key else 0))
    adapter.eval()
    folder = pathlib.Path(tempfile.mkdtemp())
    adapter.save_pretrained(folder)  # before the merge
    saved = peft.PeftModel.from_pretrained(base_like(name), folder)
    shutil.rmtree(folder)
    return before, adapter, saved


def base_like(name):
    tied = name.startswith("tied")
    # Rows of tokens are those of both sides in PEFT as well.
    return base("base-tied" if tied else "base-gqa", untie=tied and name != "tied-tokens")


def main():
    # The base in bf16, as PEFT loads and merges it: fp32 adapter, one rounding.
    half = base("base-gqa", torch.bfloat16)
    shutil.rmtree(OUT / "base-gqa-bf16", ignore_errors=True)
    half.save_pretrained(OUT / "base-gqa-bf16")
    (OUT / "base-gqa-bf16" / "generation_config.json").unlink(missing_ok=True)
    for kind in ("lora-plain", "lora-dora"):
        half = base("base-gqa", torch.bfloat16)
        before = copy_of(half)
        keep(f"gqa-bf16-{kind[5:]}", before, peft.PeftModel.from_pretrained(half, CASES / kind).merge_and_unload())

    model = base("base-gqa")
    before = copy_of(model)
    two = peft.PeftModel.from_pretrained(model, CASES / "lora-plain", adapter_name="a")
    two.load_adapter(CASES / "lora-rslora", adapter_name="b")
    two.add_weighted_adapter(["a", "b"], [0.7, -0.3], "sum", combination_type="cat")
    two.set_adapter("sum")
    keep("gqa-sum", before, two.merge_and_unload())

    for name, settings in {
            "gqa-embedding": dict(target_modules=["embed_tokens", "lm_head", "v_proj"]),
            "tied-embedding": dict(target_modules=["embed_tokens", "v_proj"]),
            "tied-saved": dict(target_modules=["q_proj"], modules_to_save=["lm_head"]),
            "gqa-tokens": dict(target_modules=["v_proj"],
                               trainable_token_indices={"embed_tokens": [70, 3, 11], "lm_head": [5, 70]}),
            "tied-tokens": dict(target_modules=["q_proj"], trainable_token_indices=[70, 3, 11]),
    }.items():
        before, adapter, saved = new_adapter(name, base_like(name), 7, **settings)
        keep(name, before, saved.merge_and_unload(), adapter)


if __name__ == "__main__":
    main()
