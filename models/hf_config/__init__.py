"""From an unmodified Hugging Face config.json to the caches of a model, without its weights."""

from blockstride.models.hf_config.families import FAMILIES
from blockstride.models.hf_config.reading import cache_specs, read_config

__all__ = ["FAMILIES", "cache_specs", "read_config"]
