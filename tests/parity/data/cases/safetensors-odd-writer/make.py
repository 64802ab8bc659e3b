"""Writes the files of this folder with the reference library (pip install safetensors==0.8.0).

They show how the reference library orders and spells what it writes: one tensor of each element type (every byte of
tensor number i is i), and a file whose metadata and names need escaping.
"""
import ctypes
from pathlib import Path

from safetensors import TensorSpec, serialize

SIZES = {"bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "uint16": 2, "float16": 2,
         "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8}


def write(name, tensors, metadata):
    """tensors: name -> (dtype, shape, bytes)."""
    keep = {key: ctypes.create_string_buffer(data, max(len(data), 1)) for key, (_, _, data) in tensors.items()}
    specs = {key: TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(keep[key]), data_len=len(data))
             for key, (dtype, shape, data) in tensors.items()}
    (Path(__file__).parent / name).write_bytes(bytes(serialize(specs, metadata)))


def main():
    kinds = list(SIZES)
    write("all-dtypes.safetensors",
          {f"t{i:02d}": (kinds[i // 2], [1 + i % 2], bytes([i]) * (SIZES[kinds[i // 2]] * (1 + i % 2)))
           for i in range(2 * len(kinds))}, None)
    write("escapes.safetensors", {"b\"\\/\x01\x7f\u00e9\n": ("float32", [], b"\0\0\x80\x3f"), "empty": ("float32", [0, 3], b"")},
          {"key\t": "\u4e16 \x1f\b\f\r"})
    write("nothing.safetensors", {}, None)


main()
