# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds and ends every process that one run started on this node, whoever its parent is now. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: every process of a run inherits this variable, through mpirun's -x and srun's --export also on the other nodes
MARKER = "GPUFABRIC_RUN_ID"


def of_run(fs: RootedFs, run_id: str, directory: str, with_services: bool = True) -> list[int]:
    """Process ids of the run, without this process and those above it.

    A process belongs to the run if MARKER=run_id is in its environment or if an argument of it lies in the run's own
    *directory* (Open MPI's daemons inherit no variable through ssh, but are told their session directory). proc(5).
    Without services: neither the guard nor an agent, nor an ssh client or shell that holds one.
    """
    mark = f"{MARKER}={run_id}".encode()
    inside = f"{directory}/".encode()
    service = re.compile(re.escape(inside) + rb"node_tool (guard|agent|run) ")
    spared = _self_and_ancestors(fs)
    own = os.geteuid()
    found = []
    for name in fs.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        with contextlib.suppress(OSError):
            if own not in (0, fs.stat(f"/proc/{name}").st_uid):
                continue  # not this user's to end
            command = fs.read_bytes(f"/proc/{name}/cmdline").replace(b"\0", b" ")
            if not with_services and service.search(command):
                continue
            if inside in command or mark in _environment(fs, name):
                found.append(int(name))
    return found


def _environment(fs: RootedFs, pid: str) -> list[bytes]:
    try:
        return fs.read_bytes(f"/proc/{pid}/environ").split(b"\0")
    except PermissionError:  # another user's process is none that this user's run started
        return []


def _self_and_ancestors(fs: RootedFs) -> set[int]:
    spared = {0, 1}
    pid = os.getpid()
    while pid not in spared:
        spared.add(pid)
        status = fs.read_value(f"/proc/{pid}/stat") or ""
        # The name in parentheses may hold blanks and parentheses; the parent is the second field after the last one.
        fields = status.rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return spared


def end_all(fs: RootedFs, run_id: str, directory: str, with_services: bool = True, grace_s: float = 3.0) -> list[int]:
    """SIGTERM every process of the run, SIGKILL what is left after *grace_s* seconds; returns the ids that were signalled.

    Looks again until nothing is found, because a process may fork between the look and the signal.
    """
    ended: list[int] = []
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while True:
        running = of_run(fs, run_id, directory, with_services)
        if not running:
            return ended
        last_chance = time.monotonic() >= deadline
        for pid in running:
            if last_chance or pid not in asked:
                _signal(pid, signal.SIGKILL if last_chance else signal.SIGTERM)
            if pid not in asked:
                asked.add(pid)
                ended.append(pid)
        if last_chance and time.monotonic() >= deadline + grace_s:
            return ended
        time.sleep(0.1)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
