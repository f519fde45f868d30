"""The laws of arguments, in Triton."""

from tests.kernels.argument_laws import *  # noqa: F403
