"""What our engine makes of tokens, logit by logit or as a whole."""

from dataclasses import replace

import numpy as np
import torch

from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.engine.batching import make_batch
from blockstride.models.loading import load_model


def all_logits(path, ids, **config):
    """Our logits after every token of `ids`."""
    return logits_of(make_engine(path, **config), ids)


def logits_of(engine, ids):
    """Those of an engine."""
    request = engine.add_request(ids, SamplingParams())
    rows = []
    while request.num_cached < len(ids):
        step = engine.scheduler.schedule()
        batch = make_batch(step, engine.blocks, engine.groups)
        batch = replace(batch, logits_rows=torch.arange(batch.token_ids.shape[0]))
        rows.append(engine.model.forward(batch))
        request.num_cached += step[0].num_new
    return torch.cat(rows)


def generate(path, prompts, count=200, **config):
    """Our greedy continuation of every prompt, all run together, and the engine."""
    engine = make_engine(path, **config)
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    requests = [engine.add_request(prompt, params) for prompt in prompts]
    while engine.has_work:
        engine.step()
    engine.blocks.check()
    assert engine.blocks.num_free == tuple(p.layout.num_blocks - 1 for p in engine.pools)
    return [request.output_ids for request in requests], engine


def make_engine(path, **config) -> Engine:
    config = EngineConfig(**config)
    return Engine(load_model(path, config, device="cpu"), config)


def tokens(vocab: int, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, vocab, count).tolist()


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Logits as close as two float32 programs come that sum in another order."""
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
