"""What the tests of `shardtune plan` share."""

import subprocess
from pathlib import Path

from support import BINARY, SANITIZER, environment

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 96

HARDWARE = """
device = a small one
gpus_per_node = 8
bf16_tflops = 1e-3
fp16_tflops = 1e-3
fp32_tflops = 1e-3
memory_gb = 2
memory_gb_per_second = 1
link_gb_per_second = 0.1
network_gb_per_second = 0.01
pcie_gb_per_second = 0.1
collective_launch_microseconds = 10
kernel_launch_microseconds = 5
matmul_efficiency = 0.5
attention_efficiency = 0.5
memory_efficiency = 0.5
intra_node_efficiency = 0.5
inter_node_efficiency = 0.5
pcie_efficiency = 0.5
"""


def plan(arguments):
    return subprocess.run([BINARY, "plan"] + arguments, env=environment(), check=False, capture_output=True, text=True,
                          timeout=480 if SANITIZER else 60, stdin=subprocess.DEVNULL)
