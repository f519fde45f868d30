"""What vLLM's CPU build is lent to run Jamba.

The CPU build has no selective scan for prompts, and its state update takes one decay a head, where
Mamba-1 has one a channel and state: given a head axis it runs, and is wrong from the second token
on. Three stand-ins make it run and give the tokens of transformers: a scan and an update in C
(`scan.c`, `update.c`, compiled here with the system's compiler, as fast as one expects of a build
that had them), and contiguous inputs for a matrix product. The rest, scheduler, cache, convolution
and attention, is vLLM's own.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
import vllm._custom_ops as ops


def _compile() -> ctypes.CDLL:
    library = Path(tempfile.mkdtemp()) / "mamba1.so"
    sources = [Path(__file__).parent / name for name in ("scan.c", "update.c")]
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, *sources, "-o", library, "-lm"], check=True)
    return ctypes.CDLL(str(library))


LIBRARY = _compile()
SCAN, UPDATE = LIBRARY.scan, LIBRARY.update
STRIDES = ctypes.c_long * 11
UPDATE.argtypes = [*[ctypes.c_void_p] * 11, *[ctypes.c_long] * 5, STRIDES]


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


def with_channels_of_their_own(update):
    """vLLM's update, but for states without heads, whose every channel and state has its decay."""

    def run(
        state, x, dt, a, b, c, d, z, bias, softplus, blocks, targets, null, out, accepted, starts
    ):
        if state.dim() != 3:
            rest = (softplus, blocks, targets, null, out, accepted, starts)
            update(state, x, dt, a, b, c, d, z, bias, *rest)
            return
        # what the C function takes for granted, which a step of decoding gives
        assert accepted is starts is None
        assert targets is None or targets is blocks
        assert state.stride()[1:] == a.stride() == (state.shape[2], 1)
        assert b.stride(1) == c.stride(1) == d.stride(0) == bias.stride(0) == 1
        given = [state, x, dt, a, b, c, d, z, bias, out]
        assert {t.dtype for t in given if t is not None} == {torch.float32}
        assert blocks.dtype == torch.int32
        blocks = blocks.reshape(-1).contiguous()
        gate = (0, 0) if z is None else z.stride()
        strides = (state.stride(0), *x.stride(), *dt.stride(), b.stride(0), c.stride(0))
        pointers = [None if t is None else t.data_ptr() for t in (*given, blocks)]
        sizes = (*x.shape, state.shape[2], null, softplus)
        UPDATE(*pointers, *sizes, STRIDES(*strides, *gate, *out.stride()))

    return run


def with_dense_input(product):
    """The matrix product of rows that lie side by side."""
    return lambda handler, x, bias=None: product(
        handler, x if x.stride(-1) == 1 else x.contiguous(), bias
    )


def lend() -> None:
    """Puts the stand-ins in place, in this process."""
    ops.selective_scan_fwd = selective_scan
    ops.selective_state_update_cpu = with_channels_of_their_own(ops.selective_state_update_cpu)
    ops.onednn_mm = with_dense_input(ops.onednn_mm)
