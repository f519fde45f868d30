"""Engines in processes of their own: tensor parallel, or prefill and decode joined by NIXL."""

from blockstride.models.distributed.deployment import Deployment
from blockstride.models.distributed.engine_processes import EngineDiedError

__all__ = ["Deployment", "EngineDiedError"]
