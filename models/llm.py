"""LLM: a model in this process. DistributedLLM: the same in processes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from blockstride.checks import expect
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.distributed import Deployment
from blockstride.models.distributed.deployment import ANSWER_SECONDS
from blockstride.models.engine import Engine, EngineConfig
from blockstride.models.engine.values import expect_type
from blockstride.models.generation_defaults import default_params
from blockstride.models.loading import default_device, load_model
from blockstride.models.text_generator import TextGenerator
from blockstride.transfer.connector import ConnectorSettings


class LLM(TextGenerator[Engine]):
    """A model with its tokenizer and engine, in this process.

    Texts end where generation_config.json, or else config.json, says. Sampling parameters that it
    has are `default_params`; `dataclasses.replace` changes some of them.

    Args:
        path: Hugging Face checkpoint folder of Jamba, a Granite hybrid or Bamba. Without a
            tokenizer.json, prompts are tokens.
        dtype: See `load_model`.
        device: Where to run; a GPU when there is one and this is None.
        config: Layout, policy, types and sizes of the engine.

    Raises:
        ValueError: The checkpoint is missing, damaged, or not one that is supported, or the sizes
            can't work; the message says what was expected and what came.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        config = EngineConfig() if config is None else config
        expect_type(config, "config", EngineConfig, "an EngineConfig")
        ranks = config.tp_size
        expect(ranks == 1, "tp_size", "1 in one process; DistributedLLM takes more", ranks)
        checkpoint = Checkpoint(path)
        tokenizer, defaults = checkpoint.tokenizer(), default_params(checkpoint.generation)
        self.model = load_model(path, config, dtype=dtype, device=device)
        engine = Engine(self.model, config)
        engine.warm_up()
        super().__init__(tokenizer, engine, defaults)


class DistributedLLM(TextGenerator[Deployment]):
    """A model whose engines have a process for each rank, on this machine.

    With prefill engines, prompts are computed there, and their caches handed over to decode engines
    by NIXL; TP sizes, block sizes, layouts, policies and types may all differ. A request gives the
    same tokens as in one engine, up to the rounding of sums that ranks share.

    Use it as a context manager, or close it: the processes run until then, or until this one ends.

    Args:
        path: Hugging Face checkpoint folder of Jamba, a Granite hybrid or Bamba.
        prefill: One engine or several that compute prompts; none: decode engines do.
        decode: One engine or several that continue them.
        dtype: See `load_model`.
        device: `"cpu"`, `"cuda"`, whose GPUs are dealt to ranks in turn, or one, as `"cuda:1"`; all
            GPUs when there are some and this is None.
        transfer: How sequences are handed over; None for the defaults.
        answer_seconds: After how long without a heartbeat an engine is
            given up and others do its work.

    Raises:
        ValueError: As `LLM`, or a model that can't be cut into so many ranks.
        EngineDiedError: A process ended before it was ready.
        TimeoutError: An engine wasn't ready in ten minutes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        prefill: EngineConfig | Sequence[EngineConfig] = (),
        decode: EngineConfig | Sequence[EngineConfig] = EngineConfig(),  # noqa: B008 (frozen)
        dtype: str = "auto",
        device: str | None = None,
        transfer: ConnectorSettings | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        checkpoint = Checkpoint(path)
        tokenizer, defaults = checkpoint.tokenizer(), default_params(checkpoint.generation)
        deployment = Deployment(
            path,
            prefill=_configs(prefill, "prefill"),
            decode=_configs(decode, "decode"),
            dtype=dtype,
            device=device or default_device(),
            transfer=transfer,
            answer_seconds=answer_seconds,
        )
        super().__init__(tokenizer, deployment, defaults)

    def close(self) -> None:
        """Ends all requests, with an error for those who wait, and all processes."""
        super().close()
        self.engine.close()


def _configs(given: object, name: str) -> list[EngineConfig]:
    """One engine or several, as a list."""
    configs = [given] if isinstance(given, EngineConfig) else given
    expect_type(configs, name, (list, tuple), "an EngineConfig or several")
    for config in configs:  # type: ignore[union-attr]
        expect_type(config, name, EngineConfig, "an EngineConfig or several")
    return list(configs)  # type: ignore[call-overload]
