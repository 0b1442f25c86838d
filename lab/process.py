# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts background processes and ends exactly those: a process is its id and its start time, never its id alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import select
import signal
import subprocess
import time
import typing as t

from lab.errors import LabError

LAB_MARKER = "GPUFABRIC_LAB_ID"
"""Environment variable of everything that a lab starts; finds what a lab killed between start and record has left."""

_PROC = pathlib.Path("/proc")
_END_S = 8.0
_KILL_S = 5.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of the past or the present. start is field 22 of /proc/PID/stat (proc(5)): clock ticks since boot."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether this very process still runs. One that has ended and waits for its parent does not."""
        return _start_time(self.pid) == self.start


def _start_time(pid: int) -> int | None:
    """Start time of a running process, None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def spawn(command: t.Sequence[str], directory: pathlib.Path, log: pathlib.Path, lab_id: str) -> Process:
    """Start command in a session of its own, so that an interrupt at the terminal reaches the lab and not its machines."""
    with log.open("ab") as stream:
        try:
            child = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, LAB_MARKER: lab_id},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LabError(f"cannot start {command[0]}: {error.strerror}") from error
    start = _start_time(child.pid)
    # It lives on after this interpreter: recorded by its identity, not by the object.
    child.returncode = 0
    return Process(child.pid, -1 if start is None else start)


def end(processes: t.Iterable[Process], grace_s: float = _END_S) -> None:
    """Ask all to end at once, wait, then kill what remains. Raises LabError if one survives that."""
    with contextlib.ExitStack() as stack:
        handles: dict[int, Process] = {}
        for process in processes:
            handle = _open(process)
            if handle is not None:
                stack.callback(os.close, handle)
                handles[handle] = process
        _signal(handles, signal.SIGTERM)
        _wait(handles, grace_s)
        _signal(handles, signal.SIGKILL)
        _wait(handles, _KILL_S)
        if handles:
            left = ", ".join(str(process.pid) for process in handles.values())
            raise LabError(f"process {left} of the lab does not end")


def marked(lab_id: str) -> list[Process]:
    """Every process of this user that was started for the lab."""
    wanted = f"{LAB_MARKER}={lab_id}".encode()
    found = []
    for directory in _PROC.iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                start = _start_time(int(directory.name))
                if start is not None:
                    found.append(Process(int(directory.name), start))
    return found


def resident_mib(process: Process) -> int:
    """Resident memory in MiB, 0 when the process is gone."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(process.pid) / "status").read_text("utf-8", "replace").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024
    return 0


def _open(process: Process) -> int | None:
    """A handle on the process. Taken first and checked afterwards, so that a reused id cannot come in between."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if not process.alive():
        os.close(handle)
        return None
    return handle


def _signal(handles: t.Iterable[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _wait(handles: dict[int, Process], seconds: float) -> None:
    """Wait for all to end, and forget those that did. A child of ours is reaped too."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while handles:
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms <= 0:
            return
        for handle, _ in poll.poll(left_ms):
            poll.unregister(handle)
            process = handles.pop(handle)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
