"""Attention whose weights several layers share, each with adapters of its own."""

from __future__ import annotations

from torch import Tensor

from blockstride.models.modules.adapters import Adapters
from blockstride.models.modules.attention import AttentionMixer
from blockstride.models.modules.weights import LayerWeights


class SharedAttention(AttentionMixer):
    """As `AttentionMixer`; what one has loaded others take over, and each has its own cache."""

    adapters: Adapters | None = None

    def take_over(self, owner: SharedAttention) -> None:
        """Has the weights of another, in the same memory."""
        names = ("parallel", "qkv", "qkv_bias", "out", "out_bias", "sinks", "sizes", "norm")
        for name in names:
            setattr(self, name, getattr(owner, name))

    def load_adapters(self, weights: LayerWeights, index: int, rank: int) -> None:
        """Reads what is added to its projections in.

        Args:
            weights: The tensors of the shared attention.
            index: Which of the adapters are this layer's.
            rank: Their width in between.

        Raises:
            ValueError: A tensor is missing, damaged or misshapen.
        """
        tp, size = weights.parallel, self.head_size
        total, total_kv = self.num_heads * size, self.num_kv_heads * size
        q = (total, [tp.share("num_attention_heads", total, unit=size)])
        kv = tp.share("num_key_value_heads", total_kv, unit=size, is_replicated=True)
        each = {"q": q, "k": (total_kv, [kv]), "v": (total_kv, [kv])}
        rows = {f"linear_{name}_adapter_list.{index}": part for name, part in each.items()}
        self.adapters = Adapters(weights, rows, self.input_size, rank)

    def project(self, hidden: Tensor) -> Tensor:
        """Queries, keys and values of this rank, with what the adapters add."""
        projected = super().project(hidden)
        return projected if self.adapters is None else projected + self.adapters.forward(hidden)
