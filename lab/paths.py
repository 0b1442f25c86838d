# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the lab keeps things: the cache (images, answers that hold for this machine) and the run directory (one lab)."""

from __future__ import annotations

import os
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
IMAGE_SOURCES = pathlib.Path(__file__).resolve().parent / "image"
DEFAULT_RUN_DIRECTORY = REPOSITORY / ".lab"
COMMITTED_INVENTORY = REPOSITORY / "inventories" / "lab"


def cache_directory() -> pathlib.Path:
    """The user's cache for images, made if it is absent."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = pathlib.Path(base).expanduser().resolve() / "gpufabric-lab"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def inventory_directory(run_directory: pathlib.Path) -> pathlib.Path:
    """Where the inventory of the lab in run_directory is written: inventories/lab for the default lab, else its own."""
    if run_directory == DEFAULT_RUN_DIRECTORY:
        return COMMITTED_INVENTORY
    return run_directory / "inventory"


def write_atomically(path: pathlib.Path, content: bytes, mode: int = 0o644) -> None:
    """Replace path by content, so that a reader sees the old file or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.chmod(mode)
    temporary.replace(path)
