"""The laws of arguments, in Triton."""

from tests.kernels.argument_laws import *  # noqa: F403
from tests.kernels.offset_laws import *  # noqa: F403
