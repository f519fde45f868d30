"""LLM: a model in this process. DistributedLLM: the same in processes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from blockstride.kernels.checks import expect
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.distributed import Deployment
from blockstride.models.engine import Engine, EngineConfig
from blockstride.models.model_options import ModelOptions, default_device
from blockstride.models.text_generator import TextGenerator
from blockstride.transfer.connector import ConnectorSettings


class LLM(TextGenerator[Engine]):
    """A model with its tokenizer and engine, in this process.

    Args:
        path: Hugging Face checkpoint folder of a Jamba model.
        dtype: See `ModelOptions`.
        device: Where to run; a GPU when there is one and this is None.
        kv_cache_dtype: See `ModelOptions`.
        conv_order: Likewise.
        config: Layout, policy and sizes of the engine.

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
        kv_cache_dtype: str = "auto",
        conv_order: str = "DS",
        config: EngineConfig | None = None,
    ) -> None:
        ranks = config.tp_size if config else 1
        expect(ranks == 1, "tp_size", "1 in one process; DistributedLLM takes more", ranks)
        options = ModelOptions(path, dtype, kv_cache_dtype, conv_order)
        tokenizer = Checkpoint(path).tokenizer()
        self.model = options.load(device)
        super().__init__(tokenizer, Engine(self.model, config))


class DistributedLLM(TextGenerator[Deployment]):
    """A model whose engines have a process for each rank, on this machine.

    With prefill engines, prompts are computed there, and their caches handed over to decode engines
    by NIXL; TP sizes, block sizes, layouts and policies may all differ. A request gives the same
    tokens as in one engine, up to the rounding of sums that ranks share.

    Use it as a context manager, or close it: the processes run until then, or until this one ends.

    Args:
        path: Hugging Face checkpoint folder of a Jamba model.
        prefill: One engine or several that compute prompts; none: decode engines do.
        decode: One engine or several that continue them.
        dtype: See `ModelOptions`.
        device: `"cpu"` or `"cuda"`; a GPU when there is one and this is None.
        kv_cache_dtype: See `ModelOptions`.
        conv_order: Likewise.
        transfer: How sequences are handed over; None for the defaults.
        answer_seconds: How long an engine that has something to do may say nothing, before it is
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
        kv_cache_dtype: str = "auto",
        conv_order: str = "DS",
        transfer: ConnectorSettings | None = None,
        answer_seconds: float = 300.0,
    ) -> None:
        tokenizer = Checkpoint(path).tokenizer()
        deployment = Deployment(
            ModelOptions(path, dtype, kv_cache_dtype, conv_order),
            prefill=[prefill] if isinstance(prefill, EngineConfig) else prefill,
            decode=[decode] if isinstance(decode, EngineConfig) else decode,
            device=device or default_device(),
            transfer=transfer,
            answer_seconds=answer_seconds,
        )
        super().__init__(tokenizer, deployment)

    def close(self) -> None:
        """Ends all processes."""
        self.engine.close()
