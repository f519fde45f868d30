"""Starting what `LLM` asks for: an engine in this process, or several in processes of their own."""

from __future__ import annotations

import torch

from blockstride.models.checkpoint import Checkpoint
from blockstride.models.compiling import compiled_beside
from blockstride.models.distributed import Deployment
from blockstride.models.distributed.deployment import TransferWay
from blockstride.models.engine import Engine
from blockstride.models.engine_arguments import Engines
from blockstride.models.fingerprint import model_fingerprint
from blockstride.models.loading import load_model
from blockstride.transfer.connector import ConnectorSettings


def start_engines(
    engines: Engines,
    checkpoint: Checkpoint,
    *,
    dtype: str,
    device: str | torch.device | None,
    transfer: ConnectorSettings | TransferWay,
    timeout_seconds: float,
    restarts: int,
) -> Engine | Deployment:
    """Engines that are ready for requests; what they compile is compiled while they load.

    Args:
        engines: Which, and where.
        checkpoint: What they run.
        dtype: As all below: see `LLM`.
        device: Where ranks run.
        transfer: How sequences are handed over.
        timeout_seconds: After how long without a heartbeat a process is given up.
        restarts: How many engines are started anew.

    Raises:
        ValueError, EngineDiedError, TimeoutError: As `LLM`.
    """
    if engines.launcher is None:
        (config,) = engines.decode
        fingerprint = model_fingerprint(checkpoint.path) if config.file_cache else ""
        with compiled_beside(checkpoint.config, device, is_here=True) as compiling:
            model = load_model(checkpoint, config, dtype=dtype, device=device)
            engine = Engine(model, config, fingerprint=fingerprint)
            compiling.help()
            engine.warm_up()
            return engine
    is_local = engines.launcher.is_local
    with compiled_beside(checkpoint.config, device, is_here=False, is_local=is_local):
        return Deployment(
            checkpoint.path,
            prefill=engines.prefill,
            decode=engines.decode,
            dtype=dtype,
            device=None if device is None else str(device),
            transfer=transfer,
            timeout_seconds=timeout_seconds,
            launcher=engines.launcher,
            restarts=restarts,
        )
