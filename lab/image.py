# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cache of images: finds one, has it built once by whoever comes first, forgets those that nobody has used for long."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
import time
import typing as t

from lab import image_build, tools
from lab.progress import Progress

_KEEP_S = 30 * 24 * 3600


@dataclasses.dataclass(frozen=True)
class Image:
    """A built image: a sparse raw ext4 file system, the unpacked kernel and the initial RAM disk."""

    key: str
    root: pathlib.Path
    kernel: pathlib.Path
    ramdisk: pathlib.Path


def ensure(cache: pathlib.Path, release: str, variant: str, mirror: str | None, progress: Progress) -> Image:
    """The image of release and variant, built under a lock when the cache has none. Raises LabError when it cannot be."""
    key = image_build.image_key(release, variant)
    image = cached(cache, key)
    if image.root.exists():
        os.utime(image.root.parent)
        return image
    tools.require(tools.BUILD_TOOLS)
    if os.geteuid() != 0:
        tools.require(tools.UNPRIVILEGED_BUILD_TOOLS)
    with _build_lock(cache / f"{key}.lock", progress):
        if not image.root.exists():
            with progress.step(f"building the {key.rsplit('-', 1)[0]} image, once"):
                image_build.build(cache, release, variant, mirror)
    _forget_unused(cache)
    return image


def cached(cache: pathlib.Path, key: str) -> Image:
    """Where the image of that key lies in the cache, built or not."""
    directory = cache / key
    return Image(key, directory / image_build.ROOT, directory / image_build.KERNEL, directory / image_build.RAMDISK)


@contextlib.contextmanager
def _build_lock(path: pathlib.Path, progress: Progress) -> t.Iterator[None]:
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("waiting for another build of the same image"):
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _forget_unused(cache: pathlib.Path) -> None:
    """Remove images that no lab has been started from for a month: a change of the sources leaves the old one behind."""
    for root in cache.glob(f"*/{image_build.ROOT}"):
        if time.time() - root.parent.stat().st_mtime > _KEEP_S:
            shutil.rmtree(root.parent, ignore_errors=True)
            (cache / f"{root.parent.name}.lock").unlink(missing_ok=True)
