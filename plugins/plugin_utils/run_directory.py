# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""results/<run id>/: written as a whole or not at all, and ``latest`` moved to it at the end."""

from __future__ import annotations

import os
import pathlib
import shutil
import typing as t

#: addresses, host names and logs are nobody else's business
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


class LatestStaysError(OSError):
    """The run is written as a whole, and ``latest`` could not be moved to it."""


def write_run(results: pathlib.Path, run_id: str, files: t.Mapping[str, str]) -> pathlib.Path:
    """Write *files* ({relative name: text}) to results/<run id>/ and point results/latest to it.

    Raises OSError where nothing was written, LatestStaysError where only ``latest`` was not moved.
    """
    target = write_whole(results, run_id, files)
    try:
        _point_latest(results, run_id)
    except OSError as error:
        raise LatestStaysError(error.errno, error.strerror) from error
    return target


def write_whole(
    results: pathlib.Path, name: str, files: t.Mapping[str, str], in_place_of_older: bool = False
) -> pathlib.Path:
    """Write *files* ({relative name: text}) to results/<name>/, which must not hold anything yet unless *in_place_of_older*.

    The directory appears with all its files in it, or, after a crash or on a full disk, not at all; an older one goes last.
    Raises OSError where *results* cannot be written.
    """
    results.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    partial = results / f".{name}.partial"
    older = results / f".{name}.older"
    for left in (partial, older):
        shutil.rmtree(left, ignore_errors=True)
    try:
        partial.mkdir(mode=DIRECTORY_MODE)
        for relative, text in files.items():
            path = partial / relative
            path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            path.touch(FILE_MODE)
            path.write_text(text, encoding="utf-8", errors="replace")
        target = results / name
        if in_place_of_older and target.exists():
            target.rename(older)
        partial.rename(target)
        shutil.rmtree(older, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if older.exists():
            older.rename(results / name)
        raise
    return target


def _point_latest(results: pathlib.Path, run_id: str) -> None:
    link = results / f".latest-{run_id}"
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(run_id)
        os.replace(link, results / "latest")
    finally:
        link.unlink(missing_ok=True)
