# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeps two searches from measuring on the same nodes at once, and says who is there already."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import pathlib
import platform
import time
import typing as t

#: a holder whose Ansible was killed notices that within a renewal of the lease; so long is waited for it, in seconds
ORPHAN_S = 60.0


class StudyBusyError(Exception):
    """Another search holds the lock; the sentence says which."""


class StudyLock:
    """The lock *path* from now until release(), or until this process ends, however it does. flock(2)."""

    def __init__(self, path: pathlib.Path, orphan_s: float = ORPHAN_S) -> None:
        """StudyBusyError at once where somebody else's Ansible holds it, after *orphan_s* where that is gone already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+")
        deadline = time.monotonic() + orphan_s
        while not self._taken():
            holder = _holder(path)
            if _lives(int(holder.get("ansible", 0))) or time.monotonic() >= deadline:
                self._file.close()
                raise StudyBusyError(_sentence(path, holder))
            time.sleep(0.2)
        self._file.truncate(0)
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._file.write(
            json.dumps({"pid": os.getpid(), "ansible": os.getppid(), "host": platform.node(), "since": started})
        )
        self._file.flush()

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        self._file.close()


def _holder(path: pathlib.Path) -> dict[str, t.Any]:
    try:
        return dict(json.loads(path.read_text()))
    except ValueError:  # it has the lock, and is about to write
        return {"ansible": os.getpid()}


def _lives(pid: int) -> bool:
    """Whether a process of this machine is there; another machine's, on a shared disk, is taken to be."""
    return pid <= 1 or pathlib.Path(f"/proc/{pid}").exists()


def _sentence(path: pathlib.Path, holder: t.Mapping[str, t.Any]) -> str:
    who = f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'this machine')}"
    return f"{path}: another autotune of these nodes is at work ({who}, since {holder.get('since', 'just now')}); wait for it, or end it"
