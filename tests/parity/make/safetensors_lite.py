"""A small safetensors reader and writer on the standard library alone: tensors stay raw bytes."""
import json
import struct


def read(path):
    """{name: (dtype, shape, bytes)} of a file."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        body = f.read()
    header.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in header.items()}


def write(path, tensors):
    """Writes {name: (dtype, shape, bytes)}; names sorted, header padded to 8 bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            f.write(tensors[name][2])
