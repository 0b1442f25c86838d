# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""This ansible-playbook among all processes that ever were: who runs it, where, and whether another one still lives."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import platform


def controller() -> str:
    """The same for processes that see each other: one boot, one PID namespace. Empty where there is no procfs."""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def process(pid: int) -> str:
    """PID and start time, field 22 of /proc/PID/stat in proc_pid_stat(5): no two processes of a boot share both."""
    with contextlib.suppress(OSError, IndexError):
        # The second field is the command in parentheses, and may hold blanks and parentheses itself.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{pid} {fields[19]}" if fields[0] not in "ZX" else ""
    return ""


def holder(pid: int, since: str) -> dict[str, str]:
    """Who the run of the process *pid* is, for others to read. A login that is unknown is its number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return {
        "user": user,
        "host": platform.node(),
        "controller": controller(),
        "process": process(pid),
        "since": since,
    }


def is_gone(other: dict[str, str]) -> bool:
    """Whether *other* ran on this controller and its process is no more. False where that cannot be told from here."""
    if not other.get("process") or not other.get("controller") or other["controller"] != controller():
        return False
    return process(int(other["process"].split()[0])) != other["process"]
