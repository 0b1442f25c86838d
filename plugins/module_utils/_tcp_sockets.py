# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Moves open TCP sockets from one congestion control to another. PRIVATE to the collection.

net.ipv4.tcp_congestion_control counts for sockets that are made from then on. Those made before, every listening daemon and
the SSH session of this very call among them, keep the old algorithm and its kernel module. Sources: pidfd_getfd(2), tcp(7), ss(8).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: the number of pidfd_getfd(2), one and the same on every architecture (since Linux 5.6)
_PIDFD_GETFD = 438

_OWNER = re.compile(r"pid=(\d+),fd=(\d+)")


def sockets_with(text: str, algorithm: str) -> list[tuple[int, int]]:
    """(process id, descriptor) of each socket with *algorithm* in the output of ``ss -H -tinpa``; a socket once."""
    found = []
    owner: tuple[int, int] | None = None
    for line in text.splitlines():
        if line[:1].isspace():
            if owner and algorithm in line.split():
                found.append(owner)
            owner = None
        else:
            match = _OWNER.search(line)
            owner = (int(match.group(1)), int(match.group(2))) if match else None
    return found


def move_sockets(tools: Tools, algorithm: str, to: str) -> int:
    """Give every TCP socket of this machine that has *algorithm* the algorithm *to*; how many were moved.

    What cannot be moved (a process that ended meanwhile, a kernel before 5.6, no ss) stays as it is.
    """
    if not tools.fs.is_live:
        return 0
    listing = tools.run(["ss", "-H", "-tinpa"], timeout=30)
    return sum(_move(pid, descriptor, to) for pid, descriptor in sockets_with(listing.stdout, algorithm))


def _move(pid: int, descriptor: int, to: str) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        process = os.pidfd_open(pid)
        try:
            number = _pidfd_getfd(process, descriptor)
        finally:
            os.close(process)
        with socket.socket(fileno=number) as copy:
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, to.encode())
        return True
    return False


def _pidfd_getfd(process: int, descriptor: int) -> int:
    """A copy in this process of another one's descriptor; OSError as the kernel answers."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = t.cast(int, libc.syscall(_PIDFD_GETFD, process, descriptor, 0))
    if number < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return number
