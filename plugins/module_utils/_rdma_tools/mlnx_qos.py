# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `mlnx_qos -i NETDEV` prints (mlnx-tools): DCBX owner, trust, DSCP map, PFC, buffers and traffic classes."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import (
    SHELL,
    Leftovers,
    bare,
    clean,
    key_value,
    number,
    streams,
)

_ANCHOR = re.compile(
    r"DCBX mode:|Priority trust (?:state|mode)|PFC configuration:|prio:[0-9] dscp:|tc: [0-9]{1,3} |"
    + SHELL
    + r"mlnx_qos: "
)
_JOINED = re.compile(
    r"DCBX mode:[^\n]{1,80}Priority trust|PFC configuration:[^\n]{0,8}priority"
)  # web forms lose line ends
_SEAM = re.compile(  # where a line begins
    r"(?<=\S)(?=DCBX mode: |Priority trust (?:state|mode): |dscp2prio mapping:|prio:[0-9] dscp:|default priority:|Receive buffer size"
    r"|Cable len: |PFC configuration:|priority  |enabled  |buffer  |tc: [0-9]|priority:  )"
)
_DSCP = re.compile(r"prio:\s?([0-9]{1,2})\s{1,8}dscp:\s?([0-9, ]{0,512})")
_CLASS = re.compile(
    r"tc:\s?([0-9]{1,2})\b(?:\s{1,4}ratelimit:\s?([^,]{0,32}))?(?:,\s?tsa:\s?([\w-]{0,32}))?(?:,\s?bw:\s?([0-9]{1,3})%)?"
)
_PRIORITY = re.compile(r"(?:priority|up):\s{0,8}([0-9]{1,2})$")
_SOCKET_PRIORITY = re.compile(r"skprio:")  # the oldest versions list socket priorities below each class


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split() if word.isdecimal() and len(word) <= 18]


class _Reader:
    """Reads one interface's answer into `found`."""

    def __init__(self, host: str, left: Leftovers) -> None:
        self.left = left
        self.found: dict[str, t.Any] = {
            "trust": None,
            "dcbx": None,
            "pfc_enabled": None,
            "prio_of_dscp": {},
            "buffer_of_prio": {},
            "buffer_sizes": None,
            "max_buffer_size": None,
            "cable_len": None,
            "default_priority": None,
            "tcs": [],
            **({"host": host} if host else {}),
        }
        self._priorities: list[int] | None = None  # the header of the PFC table, while that is open

    def read(self, line: str) -> None:
        """Take one line, already without blanks at its ends."""
        if self._table(line) or self._mapping(line) or self._class(line):
            return
        pair = key_value(line)
        if pair is None or not self._label(*pair):
            self.left.add(line)

    def _table(self, line: str) -> bool:
        if line.startswith("PFC configuration"):
            self._priorities = list(range(8))
            return True
        word, _unused, rest = line.partition(" ") if " " in line else line.partition("\t")
        word = word.rstrip(":")  # the tool prints no colon; what copies its table does
        if self._priorities is None or word not in ("priority", "enabled", "buffer"):
            return False
        row = _numbers(rest)
        if word == "priority" and len(row) == 1:
            return False  # a class's own priority
        if word == "priority":
            self._priorities = row or self._priorities
        elif word == "enabled":
            self.found["pfc_enabled"] = [prio for prio, on in zip(self._priorities, row) if on]
            if len(row) < len(self._priorities):
                self.left.errors.append(f"the PFC table ends after {len(row)} of {len(self._priorities)} priorities")
        else:
            self.found["buffer_of_prio"] = dict(zip(self._priorities, row))
        return True

    def _mapping(self, line: str) -> bool:
        match = _DSCP.match(line)
        if match:
            self.found["prio_of_dscp"].update(dict.fromkeys(_numbers(match.group(2)), int(match.group(1))))
        return match is not None or line.startswith("dscp2prio mapping")

    def _class(self, line: str) -> bool:
        tcs: list[dict[str, t.Any]] = self.found["tcs"]
        match = _CLASS.match(line)
        if match:
            self._priorities = None
            tc, limit, tsa, share = match.groups()
            tcs.append(
                {
                    "tc": int(tc),
                    "ratelimit": limit,
                    "tsa": tsa,
                    "bw_percent": int(share) if share else None,
                    "priorities": [],
                }
            )
            return True
        priority = _PRIORITY.match(line)
        if priority and tcs:
            tcs[-1]["priorities"].append(int(priority.group(1)))
            return True
        return bool(tcs) and bool(_SOCKET_PRIORITY.match(line))

    def _label(self, key: str, value: str) -> bool:
        if key == "DCBX mode":
            self.found["dcbx"] = value
        elif key in ("Priority trust state", "Priority trust mode"):
            self.found["trust"] = value
        elif key.startswith("Receive buffer size"):
            sizes, _unused, most = value.partition("max_buffer_size=")
            self.found["buffer_sizes"] = _numbers(sizes.partition("total_size=")[0])
            self.found["max_buffer_size"] = number(most) if most else None
        elif key == "default priority":
            self.found["default_priority"] = value
        elif key == "Cable len":
            self.found["cable_len"] = number(value)
        else:
            return False
        return True

    def is_new_answer(self, line: str) -> bool:
        """Whether a line begins the answer for another interface."""
        if line.startswith("DCBX mode:"):
            return self.found["dcbx"] is not None or self.found["trust"] is not None
        return line.startswith(("Priority trust state:", "Priority trust mode:")) and self.found["trust"] is not None


def parse_mlnx_qos(text: str) -> dict[str, t.Any]:
    """Read the answer of mlnx_qos.

    Returns trust and dcbx as printed, pfc_enabled (priorities with PFC; None where no PFC table was printed, which is not the
    same as none), prio_of_dscp ({DSCP: priority}), buffer_of_prio, buffer_sizes and max_buffer_size in bytes, cable_len in
    metres, default_priority as printed, tcs (tc, ratelimit, tsa, bw_percent, priorities), answers (one such mapping an
    interface that the text answers for; the keys above are those of the first), errors, unparsed. Never raises.
    """
    left = Leftovers()
    answers: list[dict[str, t.Any]] = []
    text = clean(unpacked(text))
    for host, lines in streams(_SEAM.sub("\n", text) if _JOINED.search(text) else text, _ANCHOR):
        reader = _Reader(host, left)
        for line in map(bare, lines):
            if reader.is_new_answer(line):
                answers.append(reader.found)
                reader = _Reader(host, left)
            reader.read(line)
        answers.append(reader.found)
    told = [
        answer
        for answer in answers
        if answer["trust"] or answer["dcbx"] or answer["tcs"] or answer["pfc_enabled"] is not None
    ]
    return {
        **(told or answers or [_Reader("", left).found])[0],
        "answers": told,
        "errors": left.errors,
        "unparsed": left.unparsed,
    }
