"""A model behind HTTP, as OpenAI's clients and people's dashboards know it.

HTTP runs in this process, engines in processes of their own. What comes in passes `gate.py`, is
checked by `fields.py`, and is answered by `answering.py` in one of two shapes.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy

if TYPE_CHECKING:
    from blockstride.models.serving.server import bind, serve
    from blockstride.models.serving.settings import ServerSettings

__all__ = ["ServerSettings", "bind", "serve"]

# what the command line says of itself needs none of the extra
__getattr__ = lazy(__name__, {"server": ("bind", "serve"), "settings": ("ServerSettings",)})
