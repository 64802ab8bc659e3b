"""Weights by formula, so that a test in any language can make the same ones without a file (numpy)."""
import numpy as np

MASK = (1 << 64) - 1


def name_seed(name):
    """64-bit FNV-1a of the UTF-8 bytes of a parameter's name."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def uniform(seed, count, bound):
    """float32 values in [-bound, bound): the top 24 bits of splitmix64's first `count` outputs from `seed`."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    fraction = (state >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0
    return (fraction * bound).astype(np.float32)
