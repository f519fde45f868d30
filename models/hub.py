"""Where a checkpoint lies that is named as on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from blockstride.checks import expect

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
FILES = ["*.json", "*.safetensors", "*.jinja"]
"""What is read of a checkpoint."""


def find_checkpoint(
    model: str | Path, *, revision: str | None = None, download: bool = False
) -> Path:
    """The folder of a checkpoint, which may be given by its name.

    Names are looked up in the cache that huggingface_hub keeps, where `HF_HUB_CACHE` or `HF_HOME`
    say. Nothing is asked of the network unless `download` says so.

    Args:
        model: A folder, or a name such as `org/name`; a folder of that name goes first.
        revision: A branch, tag or commit; None for `main`.
        download: Whether to get what the cache lacks from the Hub.

    Raises:
        TypeError: Neither a path nor a name.
        ValueError: Neither a folder nor a name that is cached, or a revision of a folder.
    """
    is_path = isinstance(model, str | Path)
    expect(is_path, "model", "the path of a checkpoint folder", repr(model), TypeError)
    path = Path(model)
    is_name = isinstance(model, str) and not path.exists() and NAME.fullmatch(model)
    if not is_name:
        expect(revision is None, "revision", "None for a folder", revision)
        expect(not download, "download", "the name of a checkpoint on the Hub", str(model))
        return path
    # asked only where there is no folder: it takes a while to import
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    name = str(model) if revision is None else f"{model} at {revision}"
    try:
        found = snapshot_download(
            str(model), revision=revision, local_files_only=not download, allow_patterns=FILES
        )
    except LocalEntryNotFoundError as error:
        where = f"a checkpoint folder, or a name that is cached in {constants.HF_HUB_CACHE}"
        expect(not download, "model", "a checkpoint that can be downloaded", f"{name}: {error}")
        hint = f"{name}, which is neither ('hf download {model}' gets it, as does --download)"
        raise ValueError(f"model: expected {where}, got {hint}") from None
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(f"model: expected a checkpoint on the Hub, got {name}: {error}") from error
    return Path(found)
