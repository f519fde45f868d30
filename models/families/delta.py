"""What families with gated delta nets share."""

from __future__ import annotations

from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import Family
from blockstride.models.families.keys import count
from blockstride.models.modules import DeltaMixer


class HasDelta(Family):
    """A family with gated delta nets in some layers.

    Attributes:
        linear_conv_kernel_dim: Taps of their convolution, the current one included.
    """

    linear_conv_kernel_dim = count(4)

    def delta_mixer(
        self,
        types: CacheTypes,
        key_heads: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        **how: Any,
    ) -> DeltaMixer:
        """A gated delta net.

        Args:
            types: What the cache holds.
            key_heads: Heads of queries and keys.
            heads: Heads of values.
            key_dim: Elements of a query or key.
            value_dim: Elements of a value.
            how: The rest as `DeltaMixer` has it by keyword.

        Raises:
            ValueError: Value heads can't share key heads evenly, or a convolution of one tap.
        """
        self.expect(heads % key_heads == 0, "linear_num_key_heads", f"a divisor of {heads}")
        width = self.linear_conv_kernel_dim
        self.expect(width >= 2, "linear_conv_kernel_dim", "at least 2")
        sizes = (key_heads, heads, key_dim, value_dim, width)
        return DeltaMixer(self.hidden_size, *sizes, types, **how)
