"""Reads one GGUF file: its metadata, and its tensors as float32 arrays. Only the kinds the demo model uses.

Layout (GGUF version 3, little-endian): magic, version, number of tensors and of metadata entries; the entries; for each
tensor name, dimensions (fastest first), kind and offset; then, aligned, the tensor data.
"""
import mmap
import struct

import numpy as np

MAGIC, VERSION, DEFAULT_ALIGNMENT = b"GGUF", 3, 32
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BLOCK = 32  # values that share a scale in the quantised kinds


def from_float32(raw):
    return raw.view("<f4")


def from_q8_0(raw):
    """Blocks of a float16 scale and 32 signed bytes: scale * byte."""
    blocks = raw.reshape(-1, 2 + BLOCK)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return scale * blocks[:, 2:].view(np.int8).astype(np.float32)


def from_q4_1(raw):
    """Blocks of a float16 scale, a float16 minimum and 16 bytes: scale * nibble + minimum. The low nibbles are the
    first 16 values of a block, the high ones the last 16."""
    blocks = raw.reshape(-1, 4 + BLOCK // 2)
    head = blocks[:, :4].copy().view("<f2").astype(np.float32)
    nibbles = np.hstack((blocks[:, 4:] & 15, blocks[:, 4:] >> 4)).astype(np.float32)
    return head[:, :1] * nibbles + head[:, 1:]


# kind: (name, values per block, bytes per block, decoder)
KINDS = {0: ("F32", 1, 4, from_float32), 3: ("Q4_1", BLOCK, 20, from_q4_1), 8: ("Q8_0", BLOCK, 34, from_q8_0)}


class GgufFile:
    """metadata: {key: value}; shapes: {tensor name: row-major shape}. Raises ValueError on anything unexpected."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self.bytes_ = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at_ = 0
        if self.take_(4) != MAGIC or self.number_("I") != VERSION:
            raise ValueError(f"{path} is not a GGUF version {VERSION} file")
        num_tensors, num_entries = self.number_("Q"), self.number_("Q")
        self.metadata = {}
        for _ in range(num_entries):
            key = self.string_()
            self.metadata[key] = self.value_(self.number_("I"))
        self.shapes, self.places_ = {}, {}
        for _ in range(num_tensors):
            name = self.string_()
            dims = [self.number_("Q") for _ in range(self.number_("I"))]
            self.places_[name] = (self.number_("I"), self.number_("Q"))
            self.shapes[name] = tuple(reversed(dims))
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        self.data_start_ = -(-self.at_ // alignment) * alignment

    def tensor(self, name):
        """Values of one tensor as float32, row-major."""
        kind, offset = self.places_[name]
        if kind not in KINDS:
            raise ValueError(f"{self.path}: tensor {name} is of kind {kind}; known: {sorted(KINDS)}")
        _, values, size, decode = KINDS[kind]
        count = int(np.prod(self.shapes[name]))
        raw = np.frombuffer(self.bytes_, np.uint8, count // values * size, self.data_start_ + offset)
        return np.ascontiguousarray(decode(raw), dtype=np.float32).reshape(self.shapes[name])

    def take_(self, size):
        self.at_ += size
        return self.bytes_[self.at_ - size:self.at_]

    def number_(self, code):
        return struct.unpack("<" + code, self.take_(struct.calcsize("<" + code)))[0]

    def string_(self):
        return self.take_(self.number_("Q")).decode("utf-8")

    def value_(self, kind):
        if kind == STRING:
            return self.string_()
        if kind == ARRAY:
            inner, count = self.number_("I"), self.number_("Q")
            return [self.value_(inner) for _ in range(count)]
        return self.number_(SCALARS[kind])
