"""Families of models, one a file: how a config.json is read, and what its layers are made of."""

from blockstride.models.families.family import Family, ModelFamily
from blockstride.models.families.reading import cache_specs, family_of, model_family, read_config
from blockstride.models.families.table import FAMILIES

__all__ = [
    "FAMILIES",
    "Family",
    "ModelFamily",
    "cache_specs",
    "family_of",
    "model_family",
    "read_config",
]
