"""The laws of attention at its limits, on CPUs."""

from tests.kernels.attention_laws import *  # noqa: F403
