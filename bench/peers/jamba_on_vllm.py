"""What vLLM's CPU build is lent to run Jamba.

The CPU build has no selective scan for prompts, and its state update wants a head axis that Mamba-1
does not have. Three stand-ins make it run: a scan in C (`scan.c`, compiled here with the system's
compiler, as fast as one expects of a build that had it), the head axis, and contiguous inputs for a
matrix product. The rest, scheduler, cache, convolution and attention, is vLLM's own.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
import vllm._custom_ops as ops


def _compile_scan() -> ctypes.CDLL:
    library = Path(tempfile.mkdtemp()) / "scan.so"
    source = Path(__file__).parent / "scan.c"
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, source, "-o", library, "-lm"], check=True)
    return ctypes.CDLL(str(library))


SCAN = _compile_scan().scan


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def selective_scan(
    u, delta, a, b, c, d, z, bias, softplus, starts, blocks, has_initial, states, *_, **__
):
    """The scan of every sequence; `z` is overwritten with the result, as vLLM expects."""
    step = delta + bias[:, None]
    step = (torch.nn.functional.softplus(step) if softplus else step).contiguous()
    b, c = b[0].t().contiguous(), c[0].t().contiguous()
    dim, size = a.shape
    bounds = starts.tolist()
    for i, block in enumerate(blocks.tolist()[: len(bounds) - 1]):
        old = has_initial is not None and bool(has_initial[i])
        state = states[block].clone() if old else torch.zeros(states[block].shape)
        strides = [ctypes.c_long(t.stride(0)) for t in (u, step, z)]
        sizes = [ctypes.c_long(n) for n in (dim, size, bounds[i], bounds[i + 1])]
        pointers = map(_at, (u, step, a.contiguous(), b, c, d, z, state))
        SCAN(*pointers, *strides, *sizes)
        states[block].copy_(state)


def with_head_axis(update):
    """Mamba-1's states as one head."""

    def run(state, x, dt, a, b, c, d, z, bias, softplus, i, j, null, out, *rest):
        if state.dim() != 3:
            return update(state, x, dt, a, b, c, d, z, bias, softplus, i, j, null, out, *rest)
        x, dt, b, c, z = (
            t.unsqueeze(1).contiguous() if t is not None else None for t in (x, dt, b, c, z)
        )
        headed = out.unsqueeze(1).contiguous()
        a, d, bias = a.unsqueeze(0), d.unsqueeze(0).float(), bias.unsqueeze(0)
        update(state.unsqueeze(1), x, dt, a, b, c, d, z, bias, softplus, i, j, null, headed, *rest)
        return out.copy_(headed[:, 0])

    return run


def with_dense_input(product):
    """The matrix product of rows that lie side by side."""
    return lambda handler, x, bias=None: product(
        handler, x if x.stride(-1) == 1 else x.contiguous(), bias
    )


def lend() -> None:
    """Puts the stand-ins in place, in this process."""
    ops.selective_scan_fwd = selective_scan
    ops.selective_state_update_cpu = with_head_axis(ops.selective_state_update_cpu)
    ops.onednn_mm = with_dense_input(ops.onednn_mm)
