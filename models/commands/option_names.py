"""Messages about arguments, in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping

MARK = ": expected "
"""What stands between an argument and its fault in a message; see `kernels.checks`."""


def with_options(message: str, options: Mapping[str, str]) -> str:
    """A message that names what was typed instead of the argument that this became.

    Args:
        message: `<argument>: expected <this>, got <that>`, or anything else.
        options: Argument -> what the user types.
    """
    name, mark, fault = message.partition(MARK)
    return f"{options.get(name, name)}{mark}{fault}"
