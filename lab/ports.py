# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Free TCP ports of this machine for the nodes' forwarded SSH."""

from __future__ import annotations

import contextlib
import random
import socket

from lab.errors import LabError

LOOPBACK = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections (net.ipv4.ip_local_port_range).
_RANGE = range(22000, 32000)


def free_ports(count: int) -> list[int]:
    """`count` different ports on which nothing listens. All are held until all are found, so that two labs differ too."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in random.sample(_RANGE, len(_RANGE)):
            if len(found) == count:
                break
            candidate = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                candidate.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise LabError(
            f"there are no {count} free TCP ports between {_RANGE.start} and {_RANGE.stop - 1} on {LOOPBACK}"
        )
    return found
