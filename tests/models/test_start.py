"""What a model reads when it starts, and what its engine binds."""

import json
from collections import Counter

import pytest
import torch

from blockstride.layouts import full_attention
from blockstride.models import LLM, EngineConfig, checkpoint, checkpoint_files
from blockstride.models.engine.pools import make_pools
from blockstride.models.loading import load_model


def test_a_start_opens_each_file_once(make_reference, monkeypatch):
    folder = make_reference(shard="100KB").path
    read, opened = Counter(), Counter()
    read_json, open_shard = checkpoint_files.read_json, checkpoint_files._open_shard

    def counted(counter, function):
        return lambda file: (counter.update([file.name]), function(file))[1]

    for module in (checkpoint, checkpoint_files):
        monkeypatch.setattr(module, "read_json", counted(read, read_json))
    monkeypatch.setattr(checkpoint_files, "_open_shard", counted(opened, open_shard))
    LLM(folder, device="cpu")
    assert {"config.json", "model.safetensors.index.json"} <= read.keys()
    shards = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert opened.keys() == set(shards.values())
    assert len(opened) > 1
    assert {*read.values(), *opened.values()} == {1}


def test_a_layer_is_never_bound_to_another_spec_than_its_pool_has(reference):
    model = load_model(reference.path, EngineConfig(), device="cpu")
    pools = make_pools(model, EngineConfig(num_blocks=4))
    model.bind(pools)
    attends = next(mixer for mixer in model.mixers.values() if mixer.cache_spec().has_tokens)
    # as many bytes, read in another way
    attends.spec = full_attention(4, 8, torch.float32)
    with pytest.raises(ValueError, match=r"layers\.1: expected the spec it was laid out with"):
        model.bind(pools)
