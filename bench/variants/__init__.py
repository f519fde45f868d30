"""Every form of every kernel that the tests compile."""

from variants import attention, scan, state
from variants.variant import Variant

__all__ = ["Variant", "variants"]


def variants() -> list[Variant]:
    """A headline of each kernel, then one changed factor a variant."""
    return [*attention.variants(), *state.variants(), *scan.variants()]
