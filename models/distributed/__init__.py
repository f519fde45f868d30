"""Engines in processes of their own: tensor parallel, or prefill and decode joined by NIXL."""

from blockstride.models.distributed.deployment import Deployment, EngineDiedError

__all__ = ["Deployment", "EngineDiedError"]
