"""Mamba-1 whose gradients are torch's own: the scan is written as the paper has it.

Source: Mamba (Gu and Dao, 2023), sections 3.2 and 3.4.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from train_jamba.config import HybridConfig

CHUNK = 64
"""Tokens whose decays and states are made at once; they stay in the processor's cache."""


class MambaMixer(nn.Module):
    """Mamba-1 with RMS norms on dt, B and C."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        d_inner, d_state, dt_rank = config.d_inner, config.mamba_d_state, config.mamba_dt_rank
        self.splits = [dt_rank, d_state, d_state]
        self.in_proj = nn.Linear(config.hidden_size, 2 * d_inner, bias=False)
        self.conv1d = nn.Conv1d(d_inner, d_inner, config.mamba_d_conv, groups=d_inner)
        self.x_proj = nn.Linear(d_inner, sum(self.splits), bias=False)
        self.dt_layernorm = nn.RMSNorm(dt_rank, eps=config.rms_norm_eps)
        self.b_layernorm = nn.RMSNorm(d_state, eps=config.rms_norm_eps)
        self.c_layernorm = nn.RMSNorm(d_state, eps=config.rms_norm_eps)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, config.hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "batch num_tokens hidden_size"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """Mix every token with the tokens before it."""
        x, z = self.in_proj(hidden).chunk(2, dim=-1)
        assert self.conv1d.bias is not None, "Jamba's convolution has a bias"
        x = causal_conv(x, self.conv1d.weight[:, 0], self.conv1d.bias)
        # under autocast the projection is bfloat16, the norms are not
        dt, B, C = self.x_proj(x).float().split(self.splits, dim=-1)
        dt = functional.softplus(self.dt_proj(self.dt_layernorm(dt)))
        B, C = self.b_layernorm(B), self.c_layernorm(C)
        y = selective_scan(x, dt, -torch.exp(self.A_log), B, C, self.D)
        return self.out_proj(y * functional.silu(z.float()))


def causal_conv(
    x: Float[Tensor, "batch num_tokens d_inner"],
    weight: Float[Tensor, "d_inner d_conv"],
    bias: Float[Tensor, " d_inner"],
) -> Float[Tensor, "batch num_tokens d_inner"]:
    """Causal depthwise convolution and silu of whole sequences, in float32.

    Args:
        x: Input; tokens before the first count as zeros.
        weight: One filter per channel, its last tap on the current token.
        bias: Added before silu.
    """
    num_tokens, d_conv = x.shape[1], weight.shape[1]
    padded = functional.pad(x.float(), (0, 0, d_conv - 1, 0))
    taps = (weight[:, k] * padded[:, k : k + num_tokens] for k in range(d_conv))
    return functional.silu(sum(taps, start=bias))


def selective_scan(
    x: Float[Tensor, "batch num_tokens d_inner"],
    dt: Float[Tensor, "batch num_tokens d_inner"],
    A: Float[Tensor, "d_inner d_state"],
    B: Float[Tensor, "batch num_tokens d_state"],
    C: Float[Tensor, "batch num_tokens d_state"],
    D: Float[Tensor, " d_inner"],
) -> Float[Tensor, "batch num_tokens d_inner"]:
    """`h[t] = exp(dt[t] A) h[t-1] + dt[t] x[t] B[t]`, then `C[t] h[t] + D x[t]`, in float32.

    Args:
        x: Input, after the convolution.
        dt: Step sizes, positive: after the softplus.
        A: Decay rates, negative: `-exp(A_log)`.
        B: What of the input enters the states, which begin with zeros.
        C: What of the states enters the output.
        D: Skip weight of every channel.
    """
    # tokens outermost, so that each has states of its own in one run
    parts = [tensor.float().transpose(0, 1).split(CHUNK) for tensor in (x, dt, B, C)]
    state = x.new_zeros(x.shape[0], *A.shape, dtype=torch.float32)
    outputs = []
    # autocast would round the product with C
    with torch.autocast("cpu", enabled=False):
        for x_part, dt_part, B_part, C_part in zip(*parts, strict=True):
            decay = torch.exp(dt_part[..., None] * A)
            drive = (dt_part * x_part)[..., None] * B_part[..., None, :]
            states = []
            for decay_now, drive_now in zip(decay.unbind(), drive.unbind(), strict=True):
                state = torch.addcmul(drive_now, decay_now, state)
                states.append(state)
            outputs.append((torch.stack(states) @ C_part[..., None]).squeeze(-1))
    return torch.cat(outputs).transpose(0, 1) + D * x
