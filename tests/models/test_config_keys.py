"""A key of a config.json means what it means to transformers: its place, default and null."""

import json
import math
import re
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bamba.modeling_bamba import BambaRotaryEmbedding
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RotaryEmbedding
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
    GraniteMoeHybridRotaryEmbedding,
)
from transformers.models.lfm2.modeling_lfm2 import Lfm2RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridRotaryEmbedding
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import (
    RecurrentGemmaRotaryEmbedding,
)
from transformers.models.zamba2.modeling_zamba2 import Zamba2RotaryEmbedding

from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint_files import read_json
from blockstride.models.families import FAMILIES, ModelFamily, model_family
from blockstride.models.families.delta import HasDelta
from blockstride.models.families.keys import Constant
from blockstride.models.families.mamba import Mamba
from blockstride.models.families.roles import HasAttention
from blockstride.models.families.rope import HasRope
from blockstride.models.families.transformer import Transformer
from blockstride.models.loading import compute_dtype
from tests.models import delta_files, mamba_files, transformer_files

ROTARY = {
    "bamba": BambaRotaryEmbedding,
    "falcon_h1": FalconH1RotaryEmbedding,
    "granitemoehybrid": GraniteMoeHybridRotaryEmbedding,
    "recurrent_gemma": RecurrentGemmaRotaryEmbedding,
    "zamba2": Zamba2RotaryEmbedding,
    "lfm2": Lfm2RotaryEmbedding,
    "lfm2_moe": Lfm2RotaryEmbedding,
    "olmo_hybrid": OlmoHybridRotaryEmbedding,
    "qwen3_5_moe_text": Qwen3_5TextRotaryEmbedding,
    "qwen3_5_text": Qwen3_5TextRotaryEmbedding,
    "qwen3_next": Qwen3_5TextRotaryEmbedding,
}
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "mamba_d_state": 24,
    "mamba_d_conv": 3,
    "mamba_expand": 3,
    "mamba_conv_bias": False,
    "mamba_proj_bias": True,
    "rms_norm_eps": 2e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
MAMBA2 = {
    "mamba_n_heads": 16,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "attention_bias": True,
    "time_step_limit": [0.1, 0.7],
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
FILES = {
    "bamba": {**SIZES, **MAMBA2, "attn_layer_indices": [1, 2]},
    "granitemoehybrid": {
        **SIZES,
        **MAMBA2,
        "layer_types": ["mamba", "attention", "linear_attention", "full_attention"],
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 80,
        "position_embedding_type": "rope",
        "attention_multiplier": 0.3,
        "embedding_multiplier": 2,
        "residual_multiplier": 0.4,
        "logits_scaling": 5.0,
    },
    "jamba": {
        **SIZES,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "expert_layer_period": 3,
        "expert_layer_offset": 0,
        "attn_layer_period": 3,
        "attn_layer_offset": 2,
        "mamba_dt_rank": 9,
    },
    **mamba_files.FILES,
    **delta_files.FILES,
    **transformer_files.FILES,
}
FILES["recurrent_gemma"] = {
    **{key: value for key, value in SIZES.items() if "mamba" not in key},
    "num_key_value_heads": 2,
    "block_types": ["attention", "recurrent"],
    "lru_width": 80,
    "conv1d_width": 3,
    "attention_window_size": 30,
    "attention_bias": True,
    "logits_soft_cap": 20.0,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
FILES["recurrent_gemma"].pop("max_position_embeddings")
FILES["falcon_h1"] = {**SIZES, **MAMBA2, **FILES["falcon_h1"]}
# sizes that may follow from others, as a mixer has them
DELTA = {
    "linear_num_key_heads": "num_key_heads",
    "linear_num_value_heads": "num_value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
}
TYPES = CacheTypes(torch.float32, torch.float32)
KEYS = [(family, key) for family, file in FILES.items() for key in file]
# what follows from others in every file that transformers can run
FOLLOW = {"attention_head_dim", "attention_hidden_size", "mamba_headdim"}
# what is compared as what follows from it
SPELLED = {
    "layer_types",
    "layers_block_type",
    "block_types",
    "hybrid_override_pattern",
    "attn_layer_indices",
    "full_attention_interval",
    "full_attn_idxs",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "linear_attn_config",
    "mlp_layer_types",
    "first_k_dense_replace",
}
# what a published file may say in a place where transformers doesn't look, or in two of them
PLACES = [
    {"partial_rotary_factor": 0.25},
    {"rope_parameters": {"rope_theta": 90.0, "partial_rotary_factor": 0.25}},
    {"rope_parameters": None, "rope_theta": 70.0},
    {"rope_parameters": None, "rope_scaling": {"type": "default"}, "rope_theta": 70},
    {"rope_parameters": {"rope_theta": 90.0}, "rope_theta": 70.0},
    {"rope_parameters": {"rope_theta": 90.0}, "rope_scaling": {"rope_theta": 30.0}},
    {"rope_parameters": {}, "rope_scaling": None},
    {"rope_parameters": {"hidden_size": 32, "head_dim": 8, "num_attention_heads": 2}},
    {"num_local_experts": 4},
    {"num_experts": 4},
    {"layers_block_type": ["attention", "mamba", "mamba", "mamba"]},
    {"time_step_min": 0.2, "time_step_max": 0.3, "time_step_floor": 0.25},
    {"rope_parameters": None, "rope_theta": None},
    {"rope_parameters": {"rope_theta": None}},
    {"rope_parameters": {"partial_rotary_factor": 0.5}, "partial_rotary_factor": None},
    {"attn_layer_indices": [0]},
    {"layer_types": None},
    {"layer_types": None, "full_attn_idxs": None, "full_attention_interval": None},
    {"block_ff_dim": 80, "tie_embedding": True},
    {"layer_types": None, "mlp_layer_types": None, "linear_attn_config": {}},
    {"layer_types": None, "linear_attn_config": {"kda_layers": [1, 2, 4], "num_heads": 2}},
    {"num_experts_per_token": 2, "num_expert_group": 2, "moe_renormalize": True},
    {"n_groups": 4, "expand": 4, "rope": False, "sliding_window": 4},
]


def keys_of(family):
    """Key that a family reads, as newer files call it -> the attribute that has its value."""
    keys = FAMILIES[family].keys().items()
    return {key.names[-1]: name for name, key in keys if not isinstance(key, Constant)}


def ours(family, values):
    """What our family makes of a file."""
    config: Any = model_family({"model_type": family, **values})
    family_class = type(config)
    said = {key: getattr(config, name) for key, name in keys_of(family).items()}
    if issubclass(family_class, HasAttention):
        said["num_key_value_heads"] = config.kv_heads
        said["head_dim"] = config.head_size
    said["attention"] = [
        not {"attention", "window", "latent"}.isdisjoint(k) for k in config.kinds()
    ]
    said["frequencies"] = None
    if family == "jamba":
        said["mamba_dt_rank"] = config.mamba1(TYPES).sizes[0]
        said["experts"] = [config.has_experts(i) for i in range(config.num_hidden_layers)]
    elif issubclass(family_class, Mamba):
        said["time_step_rank"] = config.mamba1(TYPES).sizes[0]
        said["intermediate_size"] = config.channels
    elif family == "kimi_linear":
        said["experts"] = [config.has_experts(i) for i in range(config.num_hidden_layers)]
    elif family == "recurrent_gemma":
        said["lru_width"] = config.lru_width or config.hidden_size
    elif family == "zamba2":
        said["attention_head_dim"] = config.head_size
        said["attention_hidden_size"] = config.attention_width
        said["mamba_headdim"] = config.mamba2(TYPES).head_dim
        said["intermediate_size"] = config.intermediate_size or 4 * config.hidden_size
    elif "mamba_d_head" in keys_of(family):
        said["mamba_d_head"] = config.mamba2(TYPES).head_dim
    elif issubclass(family_class, HasDelta):
        mixer: Any = config.delta(TYPES)
        said |= {key: vars(mixer)[name] for key, name in DELTA.items()}
    if isinstance(config, Transformer):
        mixers: list[Any] = [mixer for of in config.mixers(TYPES) for mixer in of.values()]
        said["windows"] = [mixer.window for mixer in mixers]
    if "mlp_only_layers" in said:
        said["mlp_only_layers"] = tuple(said["mlp_only_layers"] or ())
    if isinstance(config, HasRope) and (rotary := config.rotary_of()) is not None:
        rotary.to(torch.device("cpu"))
        assert rotary.frequencies is not None
        said["frequencies"] = rotary.frequencies.tolist()
    return {key: value for key, value in said.items() if key not in SPELLED}


def theirs(family, values):
    """The same, of transformers' config and of what its model makes of that."""
    config = transformers.CONFIG_MAPPING[family].from_dict({"model_type": family, **values})
    said = {key: getattr(config, key, None) for key in keys_of(family).keys() - SPELLED}
    said = {key: tuple(v) if isinstance(v, list) else v for key, v in said.items()}
    if "mamba" in family and said.get("intermediate_size", 0) is None:
        raise ValueError("intermediate_size: a config, and no model")
    if issubclass(FAMILIES[family], HasAttention):
        size = config.hidden_size // config.num_attention_heads
        said["head_dim"] = getattr(config, "head_dim", None) or size
    if family in transformer_files.FILES:
        return {**said, **_of_transformer(family, config)}
    kinds = getattr(config, "layer_types", None) or config.layers_block_type
    if family == "zamba2" and set(kinds) - {"hybrid", "linear_attention"}:
        raise ValueError("layers_block_type: any other word is taken for a mixer")
    attention = ("attention", "full_attention", "sliding_attention", "hybrid")
    attends = [kind in attention for kind in kinds]
    said |= {"attention": attends, "frequencies": None}
    if family == "jamba":
        said["experts"] = [count > 1 for count in config.layers_num_experts]
    elif family == "kimi_linear":
        said["experts"] = [part == "sparse" for part in config.mlp_layer_types]
    elif family == "olmo_hybrid" and config.rope_parameters["rope_theta"] is None:
        return said
    elif (
        family in ROTARY
        and getattr(config, "position_embedding_type", "rope") == "rope"
        and getattr(config, "use_mem_rope", True)
    ):
        said["frequencies"] = ROTARY[family].compute_default_rope_parameters(config)[0].tolist()
    return said


def _of_transformer(family, config):
    if config.num_key_value_heads is None:
        raise ValueError("num_key_value_heads: a config, and no model")
    # others keep a key that isn't theirs
    has_windows = "sliding_window" in transformer_files.FILES[family]
    window = config.sliding_window if has_windows else None
    alike = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or alike
    if "sliding_attention" in kinds and not window:
        raise ValueError("sliding_window: a config, and no model")
    rope = config.rope_parameters
    compute = ROPE_INIT_FUNCTIONS.get(
        rope["rope_type"], LlamaRotaryEmbedding.compute_default_rope_parameters
    )
    return {
        "attention": [True] * len(kinds),
        "windows": [window if kind == "sliding_attention" else None for kind in kinds],
        "frequencies": pytest.approx(compute(config)[0].tolist(), rel=1e-6),
    }


def expect_equal(family, values):
    try:
        expected = theirs(family, values)
    except Exception:
        # what transformers can't run has no meaning to agree on
        return
    nulls = [key for key in values.keys() & expected.keys() if values[key] is expected[key] is None]
    try:
        mine = ours(family, values)
    except ValueError as error:
        # a number that is null, of which transformers makes a config and no model
        if re.fullmatch(f"({'|'.join(nulls)}): expected .*, got nothing", str(error)):
            return
        raise
    for key, value in expected.items():
        if value is None and mine[key] is not None:
            # a switch that is null is off, and limits are none
            assert mine[key] in (False, (0.0, math.inf)), key
            continue
        assert mine[key] == value, key


@pytest.mark.parametrize(("family", "key"), KEYS)
def test_a_key_that_is_absent_or_null_means_what_transformers_takes(family, key):
    file = FILES[family]
    expect_equal(family, {name: value for name, value in file.items() if name != key})
    expect_equal(family, {**file, key: None})


@pytest.mark.parametrize("said", PLACES, ids="-".join)
@pytest.mark.parametrize("family", FILES)
def test_a_key_counts_in_the_places_where_transformers_looks(family, said):
    expect_equal(family, {**FILES[family], **said})


@pytest.mark.parametrize("family", FILES)
def test_a_file_that_says_nothing_has_all_defaults_of_transformers(family):
    # one has no default of what its layers are
    nothing = {"layer_types": ["conv"] * 32} if family == "lfm2_moe" else {}
    for values in (nothing, FILES[family]):
        mine = ours(family, values)
        expected = theirs(family, values)
        assert expected == mine


def test_all_keys_that_are_read_are_tried():
    assert FILES.keys() == {name for name, f in FAMILIES.items() if issubclass(f, ModelFamily)}
    for family, file in FILES.items():
        apart = {"hidden_act", "hidden_activation", "mlp_hidden_act", "mlp_bias", *FOLLOW}
        if family in transformer_files.FILES.keys() - transformer_files.LISTED:
            apart |= {"layer_types"}
        assert keys_of(family).keys() - apart == file.keys() - apart - {"rope_parameters"}


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"dtype": "float16"}, torch.float16),
        ({"dtype": "torch.float16"}, torch.float16),
        ({"torch_dtype": "float32"}, torch.float32),
        ({"dtype": None, "torch_dtype": "float16"}, torch.float16),
        ({"dtype": "float32", "torch_dtype": "float16"}, torch.float32),
        ({"dtype": "float8_e4m3fn"}, torch.bfloat16),
        ({}, torch.bfloat16),
    ],
)
def test_a_gpu_computes_in_the_type_that_a_file_says(said, dtype):
    assert compute_dtype("auto", said, torch.device("cuda")) == dtype
    assert compute_dtype("auto", said, torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("infinity", ["Infinity", '{"__float__": "Infinity"}'])
def test_infinity_has_two_spellings(infinity, tmp_path):
    file = tmp_path / "config.json"
    values = json.dumps({"model_type": "bamba", **FILES["bamba"], "time_step_limit": [0.1, "X"]})
    file.write_text(values.replace('"X"', infinity))
    config: Any = model_family(read_json(file))
    assert config.time_step_limit == (0.1, math.inf)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"time_step_limit": [0.5, 0.1]}, "time_step_limit: expected two numbers"),
        ({"time_step_limit": [0.5]}, "time_step_limit: expected two numbers"),
        ({"time_step_limit": "none"}, "time_step_limit: expected two numbers"),
        ({"mamba_d_head": 13}, "mamba_n_heads: expected heads of 13 that make up 192 channels"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor: expected a positive"),
        ({"rope_scaling": {"type": "su"}}, "rope_type: expected default, .*, got 'su'"),
        ({"rope_parameters": {"sliding": {}}}, "rope_parameters: expected full_attention, got"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta: expected a positive number"),
        ({"rope_parameters": [1]}, "rope_parameters: expected an object"),
        ({"rope_parameters": {"partial_rotary_factor": -1}}, "partial_rotary_factor: expected"),
    ],
)
@pytest.mark.parametrize("family", ["bamba", "granitemoehybrid"])
def test_what_cannot_be_is_refused_by_key(family, said, message):
    with pytest.raises(ValueError, match=message):
        ours(family, {**FILES[family], **said})
