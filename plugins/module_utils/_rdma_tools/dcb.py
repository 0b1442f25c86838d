# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `dcb` of iproute2 prints: `dcb dcbx show`, `dcb pfc show`, `dcb -N app show` (manual pages dcb-dcbx, dcb-pfc, dcb-app)."""

from __future__ import annotations

import re

#: flags of `dcb dcbx show`
DCBX_FLAGS = ("host", "lld-managed", "cee", "ieee", "static")

_PAIR = re.compile(r"(?<![\w.-])(\d{1,2}):(\w{1,8})(?![\w:])")


def parse_dcbx(text: str) -> list[str] | None:
    """The flags in force, None where the text shows none."""
    flags = [word for word in text.split() if word in DCBX_FLAGS]
    return flags or None


def parse_pfc(text: str) -> list[int] | None:
    """The priorities with PFC, None where no `prio-pfc` line was printed: unknown is not none."""
    line = _line(text, "prio-pfc")
    pairs = _PAIR.findall(line or "")
    return sorted(int(prio) for prio, word in pairs if word == "on") if pairs else None


def parse_dscp(text: str) -> dict[int, list[int]]:
    """{DSCP: its priorities} of a numeric `dscp-prio` line; empty where there is none, which means trust in PCP."""
    table: dict[int, list[int]] = {}
    for dscp, prio in _PAIR.findall(_line(text, "dscp-prio") or ""):
        if prio.isdecimal() and int(dscp) < 64 and int(prio) < 8:
            table.setdefault(int(dscp), []).append(int(prio))
    return table


def _line(text: str, key: str) -> str | None:
    """What follows *key* on the first line that begins with it."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [key]:
            return " ".join(words[1:])
    return None
