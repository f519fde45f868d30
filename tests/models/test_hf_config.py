"""Caches read off a config.json, against those that transformers really fills."""

from collections.abc import Collection, Iterator
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.nn.functional import pad

from blockstride.layouts import CacheSpec
from blockstride.models.families import FAMILIES, ModelFamily, cache_specs, read_config
from tests.models.hf_families import CONFIGS

TOKENS = 12


def filled_cache(config) -> list:
    """The cache layers of transformers after a prompt of `TOKENS` tokens."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(3, 3 + TOKENS)[None]
    with torch.no_grad():
        if config.model_type != "recurrent_gemma":
            return list(model(ids, use_cache=True).cache.layers)
        cache = transformers.DynamicCache(config=config)
        model(ids, use_cache=True, cache=cache)
    # its states are in its layers, without the current input
    blocks = [layer.temporal_block for layer in model.model.layers]
    return [
        SimpleNamespace(
            conv_states=[pad(block.conv1d_state, (1, 0))],
            recurrent_states=[block.rg_lru.recurrent_states],
        )
        if hasattr(block, "rg_lru")
        else layer
        for layer, block in zip(cache.layers, blocks, strict=True)
    ]


def theirs(layer) -> dict[str, tuple[int, ...]]:
    """Shapes of what transformers holds for one layer of one sequence."""
    held = {"k": getattr(layer, "keys", None), "v": getattr(layer, "values", None)}
    for kind in ("conv_states", "recurrent_states"):
        states = getattr(layer, kind, None) or {}
        held[kind] = (dict(states) if isinstance(states, dict) else dict(enumerate(states))).get(0)
    return {name: tuple(tensor.shape[1:]) for name, tensor in held.items() if tensor is not None}


def ours(specs: dict[str, CacheSpec], layer: int) -> dict[str, tuple[int, ...]]:
    """The same shapes, told by the specs of that layer in the way transformers keeps them."""
    shapes = {}
    for name, spec in specs.items():
        if name.split(".")[1] != str(layer):
            continue
        fields = {field.name: field.shape for field in spec.page(TOKENS).fields}
        if spec.has_tokens:
            # it drops what the next token will not read, and shows a latent row as one head
            kept = min(TOKENS, spec.window - 1) if spec.window else TOKENS
            for role, shape in zip("kv", fields.values(), strict=True):
                heads = shape[0] if len(shape) == 3 else 1
                shapes[role] = (heads, kept, shape[-1])
            continue
        conv = [shape for field, shape in fields.items() if field.startswith("conv")]
        # it keeps the current input beside the earlier ones
        shapes["conv_states"] = (sum(channels for channels, _ in conv), conv[0][1] + 1)
        if "ssm" in fields:
            shapes["recurrent_states"] = fields["ssm"]
    return shapes


@pytest.mark.parametrize("model_type", FAMILIES)
def test_caches_are_those_that_transformers_fills(model_type, tmp_path):
    name, arguments = CONFIGS[model_type]
    config = getattr(transformers, name)(**arguments)
    config.save_pretrained(tmp_path)
    specs = cache_specs(read_config(tmp_path))
    layers = filled_cache(config)
    assert [ours(specs, i) for i in range(len(layers))] == [theirs(layer) for layer in layers]


def specs_of(config: dict):
    """Our caches of a config; None where it is refused."""
    try:
        return cache_specs(config)
    except ValueError:
        return None


def changed(full: dict, own: Collection[str]) -> Iterator[dict]:
    """A config with each key in turn left out, null, or another number, whoever reads it."""
    base = cache_specs(full)
    for key in KEYS:
        said = full.get(key)
        if key in full:
            yield {name: value for name, value in full.items() if name != key}
            yield {**full, key: None}
        if not isinstance(said, list | tuple | str | dict):
            other = {**full, key: 4 if said is None or said is True else int(said * 2)}
            # what neither side reads is no question
            if key in full or key in own or specs_of(other) != base:
                yield other


KEYS = sorted(
    {
        name
        for family in FAMILIES.values()
        for role, key in family.keys().items()
        for name in (role, *key.names)
        # nothing but running a model asks for these
        if role not in vars(ModelFamily)
    }
    - {"hybrid_override_pattern"}
)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_key_that_is_absent_null_or_foreign_means_what_it_means_to_transformers(model_type):
    name, arguments = CONFIGS[model_type]
    kind, read = getattr(transformers, name), FAMILIES[model_type].keys().values()
    own = {name for key in read for name in key.names} | set(kind.attribute_map)
    for file in changed(kind(**arguments).to_dict(), own):
        try:
            # with all defaults written out
            expected = specs_of(kind.from_dict(dict(file)).to_dict())
        except Exception:
            # what transformers can't read means nothing
            continue
        if expected is not None:
            assert specs_of(file) == expected


def test_every_family_is_checked():
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [None, 8, 8]),
        ({"use_sliding_window": False}, [None] * 3),
        ({"max_window_layers": 0}, [8] * 3),
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, [8, None, 8, None]),
    ],
)
def test_windows_stand_where_transformers_puts_them(arguments, expected, tmp_path):
    sizes = {**CONFIGS["qwen2"][1], **arguments, "num_hidden_layers": len(expected)}
    transformers.Qwen2Config(**sizes).save_pretrained(tmp_path)
    assert [spec.window for spec in cache_specs(read_config(tmp_path)).values()] == expected
