# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the script `ibdev2netdev` prints (MLNX_OFED, DOCA): the short form, `-v`, and the form of its oldest versions."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import SHELL, Leftovers, streams

_ARROW = re.compile(r"<?={1,8}>")
_PORT = re.compile(r"\sport\s{1,16}([0-9]{1,6})\s{0,16}(?:\(([\w -]{1,32})\)\s{0,16})?$")
_NETDEV = re.compile(r"\s{0,64}([^\s()]{0,128})\s{0,64}(?:\(([\w -]{1,32})\))?")
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]\s")
_VERBOSE = re.compile(r"([0-9a-fA-F:.]{12,16})\s{1,8}(\S{1,128})\s{1,8}\(([^()]{0,128})\)(.*)$")
_ANCHOR = re.compile(
    r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F] \S{1,128} \("
    r"|(?<![\w.-])[\w.-]{1,128}\s{1,16}port\s{1,16}[0-9]{1,6}\s{1,16}<?={1,8}>|"
    + SHELL
    + r"ibdev2netdev: (?!\S{1,128} port )"
)


def _entry(line: str) -> dict[str, t.Any] | None:
    """One line `DEV port N ==> NETDEV (Up)` or its -v form; None for any other."""
    line = " ".join(line.split())  # `column -t` widens every gap
    arrow = _ARROW.search(line)
    if arrow is None:
        return None
    before = line[: arrow.start()].rstrip()
    port = _PORT.search(before[-96:])
    netdev = _NETDEV.match(line, arrow.end())
    if port is None or netdev is None:
        return None
    head = before[: len(before) - len(port.group())].strip()
    verbose = _VERBOSE.match(head)
    if verbose is None and " " in head:
        return None
    entry: dict[str, t.Any] = {
        "dev": verbose.group(2) if verbose else head,
        "port": int(port.group(1)),
        "netdev": netdev.group(1),
        "netdev_state": netdev.group(2) or "",
    }
    if verbose:
        device, _unused, part = verbose.group(3).partition(" - ")
        name, _unused, fw = verbose.group(4).rpartition(" fw ")
        entry.update(
            pci=verbose.group(1),
            device=device.strip(),
            part=part.strip(),
            description=name.strip(),
            fw=fw.strip(),
            state=(port.group(2) or "").strip(),
        )
    return entry if entry["dev"] else None


def _unwrapped(lines: t.Sequence[str]) -> list[str]:
    """Join a -v line that was broken before its arrow: the description of a board is long."""
    joined: list[str] = []
    for line in map(str.strip, lines):
        if (
            joined
            and _PCI.match(joined[-1])
            and not _ARROW.search(joined[-1])
            and not _PCI.match(line)
            and _ARROW.search(line)
        ):
            joined[-1] += " " + line
        else:
            joined.append(line)
    return joined


def parse_ibdev2netdev(text: str) -> dict[str, t.Any]:
    """Read the answer of ibdev2netdev.

    Returns map ({device: netdev}, its first port's), netdev_up (devices whose *netdev* is up: on a pure InfiniBand fabric
    Down is no fault), entries (dev, port, netdev, netdev_state, host where the text names one, with -v also pci, device, part,
    description, fw, state of the RDMA port), errors, unparsed. Never raises.
    """
    left = Leftovers()
    entries: list[dict[str, t.Any]] = []
    for host, lines in streams(unpacked(text), _ANCHOR):
        for line in _unwrapped(lines):
            entry = _entry(line)
            if entry is None:
                left.add(line)
            else:
                entries.append({**entry, "host": host} if host else entry)
    netdevs: dict[str, str] = {}
    for entry in entries:
        netdevs.setdefault(entry["dev"], entry["netdev"])
    up = dict.fromkeys(entry["dev"] for entry in entries if entry["netdev_state"].lower() == "up")
    return {"map": netdevs, "netdev_up": list(up), "entries": entries, "errors": left.errors, "unparsed": left.unparsed}
