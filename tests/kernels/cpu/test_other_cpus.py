"""Products as a CPU with fewer registers computes them, whose tiles have other sizes."""

import os
import subprocess
import sys

import pytest
from llvmlite import binding

from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = [
    pytest.mark.skipif(INTERPRET, reason="the interpreter replaces the compiled loops"),
    pytest.mark.skipif(not binding.get_host_cpu_features().get("avx2"), reason="needs AVX2"),
]

# what the compiler and the tiles ask before any program is compiled
OLDER = """
from llvmlite import binding

features = binding.get_host_cpu_features()
features.update({name: False for name in features if name.startswith(("avx512", "amx", "avx10"))})
binding.get_host_cpu_features = lambda: features
binding.get_host_cpu_name = lambda: "haswell"
"""
PRODUCTS = """
import torch
from blockstride import kernels
from blockstride.kernels.mlp import reference
from blockstride.kernels.mlp.cpu.product import MAX_ROWS

assert MAX_ROWS == 4
torch.manual_seed(0)
for num_rows, dim, dim_out in [(1, 300, 77), (3, 64, 16), (7, 600, 130), (40, 257, 50)]:
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.randn(num_rows, dim), torch.randn(dim_out, dim).to(dtype)
        packed = kernels.pack_weight(weight)
        y, exact = kernels.linear(x, packed), reference.linear(x.double(), weight.double())
        assert (y - exact).abs().max() < 1e-5 * exact.abs().max()
        for rows in (slice(0, 1), slice(num_rows // 2, num_rows)):
            assert torch.equal(kernels.linear(x[rows], packed), y[rows])
x, up, down = torch.randn(9, 40), torch.randn(3, 34, 40), torch.randn(3, 40, 17)
ids, weights = torch.randint(3, (9, 2)), torch.rand(9, 2)
exact = reference.expert_mlp(x.double(), up.double(), down.double(), ids, weights.double())
assert (kernels.expert_mlp(x, up, down, ids, weights) - exact).abs().max() < 1e-4
print("right")
"""


def test_products_of_a_cpu_with_fewer_registers_are_right(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", OLDER + PRODUCTS],
        env=os.environ | {"BLOCKSTRIDE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "right\n", result.stderr[-2000:]
