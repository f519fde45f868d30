"""What a gated layer does to its gate and to what is gated."""

from math import inf, pi, sqrt
from typing import NamedTuple


class Gate(NamedTuple):
    """`g * sigmoid(g * (slope + cubic * g * g)) * (u + offset)`, of a gate `g` and what it gates.

    Both are first kept within a limit, from above the gate, from both sides what it gates.

    Attributes:
        slope: How steep the sigmoid is.
        cubic: How much steeper it gets, by the square of the gate.
        limit: The limit of both.
        offset: Added to what is gated.

    Source: Shazeer, "GLU Variants Improve Transformer", 2, for the form.
    """

    slope: float = 1.0
    cubic: float = 0.0
    limit: float = inf
    offset: float = 0.0


SILU = Gate()
"""SwiGLU."""

GELU_TANH = Gate(slope=sqrt(8 / pi), cubic=0.044715 * sqrt(8 / pi))
"""GeGLU by its usual approximation: `(1 + tanh(x)) / 2` is the sigmoid of `2 * x`.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", 2.
"""
