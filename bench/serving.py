"""Serve requests on tensors without memory: what is compiled, what waits, what is where.

    python bench/serving.py CHECKPOINT ... [--json]

The engine, its model and the launchers are the real ones; torch's `meta` stands for a GPU. What
mixes it with the CPU is refused, and so is all that would wait for it but the reading of sampled
tokens. Launches end where Triton would compile, and are counted by what it would compile.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

import torch
from aot import OfflineDriver
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from blockstride.models import loading
from blockstride.models.engine import Engine, EngineConfig, SamplingParams

META = torch.device("meta")
LENGTHS = (20, 1, 2, 16, 17, 300, 64, 128, 700, 33)
COPIES = ("aten::_to_copy", "aten::to.device", "aten::to.dtype_layout")


class OneDevice(TorchDispatchMode):
    """Refuses what a GPU would refuse, were `meta` one, and copies from it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        out = func(*args, **(kwargs or {}))
        places = {tensor.device.type for tensor in tensors if tensor.dim() > 0}
        if isinstance(out, Tensor):
            places.add(out.device.type)
        if len(places) > 1:
            is_upload = func.name() in COPIES and out.is_meta
            assert is_upload, f"{func}: expected tensors of one device, got {places}"
        return out


@dataclass
class Serving:
    """What a run asked of a device.

    Attributes:
        variants: Kernel -> what Triton would compile it for, each with a number of launches.
        waits: Times that the host read tensors of the device.
    """

    variants: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    waits: int = 0


@contextmanager
def stand_in_for_a_gpu() -> Iterator[Serving]:
    """In the block, `meta` is a device that launches record on and reading waits for."""
    seen = Serving()

    def compile_nothing(self, key, signature, device, constexprs, options, attrs, warmup):
        return self.device_caches[device][0].setdefault(key, key)

    def launch(self, *args, grid, warmup, **kwargs):
        with _disable_current_modes():
            key = real_run(self, *args, grid=grid, warmup=True, **kwargs)
        seen.variants[self.__name__][str(key)] += 1

    def read(self: Tensor) -> Any:
        if not self.is_meta:
            return real_read(self)
        seen.waits += 1
        return torch.ones(self.shape, dtype=self.dtype).tolist()

    real_run, real_read, real_driver = JITFunction.run, Tensor.tolist, driver._active
    names: list[tuple[Any, str, Any]] = [
        (JITFunction, "run", launch),
        (JITFunction, "_do_compile", compile_nothing),
        (Tensor, "tolist", read),
        # what chooses between kernels, and what spares a GPU checks of values, asks this
        (Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta")),
    ]
    own = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in names]
    driver.set_active(cast(Any, OfflineDriver("sm_90")))
    for owner, name, value in names:
        setattr(owner, name, value)
    try:
        with OneDevice():
            yield seen
    finally:
        driver._active = real_driver
        for owner, name, value in own:
            delattr(owner, name) if value is None else setattr(owner, name, value)


def serve(path: str, config: EngineConfig) -> dict[str, Any]:
    """Warms an engine up, then serves prompts of many lengths, one at first, then all together."""
    with patch.object(loading, "find_device", lambda device: META):
        engine = Engine(loading.load_model(path, config, dtype="bfloat16"), config)
    longest = engine.max_len - 1
    with stand_in_for_a_gpu() as seen:
        engine.warm_up()
        after_warm_up = {name: set(keys) for name, keys in seen.variants.items()}
        for number, length in enumerate(LENGTHS):
            temperature, top_k, top_p = number % 3 / 2, number % 2 * 5, (1.0, 0.9)[number % 5 == 0]
            params = SamplingParams(
                *(5 + number, temperature, top_k, top_p),
                ignore_eos=True,
                min_p=number % 2 / 8,
                repetition_penalty=1.0 + number % 2,
                logit_bias={4: 1.0} if number % 3 == 2 else {},
            )
            engine.add_request([3] * min(length, longest), params)
            for _ in range(number % 4):
                _step(engine, seen)
        while engine.has_work:
            _step(engine, seen)
    return {
        "steps": engine.stats.steps,
        "variants": {name: len(keys) for name, keys in seen.variants.items()},
        "compiled late": {
            name: differences([*keys])
            for name, keys in seen.variants.items()
            if not set(keys) <= after_warm_up.get(name, set())
        },
    }


def _step(engine: Engine, seen: Serving) -> None:
    before = seen.waits
    events = engine.step()
    assert seen.waits - before == bool(events), "a step waits for its tokens, and for nothing else"


def differences(keys: list[str]) -> list[str]:
    """What variants of a kernel differ in."""
    columns = zip(*(key.split(", ") for key in keys), strict=False)
    return [" | ".join(sorted(set(column))) for column in columns if len(set(column)) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=600)
    report = {path: serve(path, config) for path in options.checkpoints}
    print(json.dumps(report, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
