# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `ibstat` prints (infiniband-diags, ibstat.c): the listing, `-s`, `-l`, `-p`, `-d`, and one port of one CA."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import (
    SHELL,
    Leftovers,
    bare,
    key_value,
    number,
    seamed,
    settle,
    streams,
)

_KINDS = (
    r"(?:CA|Switch|Router|iWARP[ ]RNIC|\?\?\?)"  # ??? stands for a node type that ibstat does not know, such as EFA's
)
_HEADER = re.compile(
    _KINDS
    + r"""[ \t]{0,4}:?[ \t]{0,4}
    (?:'([^']{1,128})' | "([^"]{1,128})" | `([^`']{1,128})['`] | (?=[^0-9\s]{1,64}[0-9]) ([\w.-]{1,128})$)""",
    re.VERBOSE,
)
_ANCHOR = re.compile(
    _KINDS + r"[ \t]{0,4}:?[ \t]{0,4}['\"`]|ib(?:panic|warn): |" + SHELL + r"ibstat: "
    r"|(?<![\w.-])(?:mlx[45]|mthca|ib|roce|rdma|bnxt_re|irdma|i40iw|efa|hns|rxe|siw|hfi1|qedr|cxgb4|ionic|mana|erdma)\w{0,64}[0-9]\s*$"
)
_PORT = re.compile(r"[Pp]ort[ \t]{1,4}([0-9]{1,6})[ \t]{0,4}:?$")
_NAME = re.compile(  # a line of `ibstat -l`
    r"(?=[\w.-]{0,127}[a-z])(?=[\w.-]{1,127}[0-9]|(?:mlx|rxe|siw|rdma|roce|ib|bnxt|irdma|efa|hns)_)[A-Za-z][\w.-]{0,127}$"
)
_GUID = re.compile(r"0x[0-9a-fA-F]{16}$")  # a line of `ibstat -p`
_UNREADABLE = re.compile(r"stat of IB device ['\"`]?([^'\"`\s]{1,128})['\"`]? failed")
_FOREIGN = re.compile(
    r"Infiniband device |hca_id:|link \S{1,128}/[0-9]|DEV\s|#####"
)  # another tool's answer in the same text

_OF_CA = {
    "Number of ports": "num_ports",
    "Firmware version": "fw",
    "Hardware version": "hw",
    "Node GUID": "node_guid",
    "System image GUID": "system_image_guid",
}
_OF_PORT = {
    "State": "state",
    "Physical state": "phys_state",
    "Rate": "rate_gbps",
    "Effective speed": "effective_gbps",
    "Base lid": "base_lid",
    "LMC": "lmc",
    "SM lid": "sm_lid",
    "Capability mask": "capability_mask",
    "Port GUID": "port_guid",
    "Link layer": "link_layer",
}
_SEAM = re.compile(
    r"\s{1,64}(?=" + _KINDS + r"\s'|" + _KINDS + r" type:|(?:" + "|".join((*_OF_CA, *_OF_PORT)) + r"|Port [0-9]{1,6}):)"
)
_NUMBERS = frozenset({"num_ports", "rate_gbps", "effective_gbps", "base_lid", "lmc", "sm_lid"})


def _known(line: str) -> bool:
    """Whether a line is one that ibstat prints, whole."""
    line = line.strip()
    if _HEADER.match(line) or _PORT.match(line) or _GUID.match(line):
        return True
    pair = key_value(line)
    return pair is not None and (pair[0] in _OF_CA or pair[0] in _OF_PORT or pair[0].endswith(" type"))


def _header(line: str) -> str | None:
    match = _HEADER.match(line)
    return next(name for name in match.groups() if name) if match else None


class _Reader:
    """Reads the lines of one host; `cas` grows by one mapping a header line."""

    def __init__(self, host: str, left: Leftovers) -> None:
        self.host = host
        self.left = left
        self.cas: list[dict[str, t.Any]] = []
        self._names: list[tuple[str, bool]] = []  # (name, whether it stood alone on its line)
        self._strange = 0
        self._in_loop = False
        self._alone = False  # whether the last line was a name and nothing else
        self.unreadable: list[str] = []
        self.port_guids: list[str] = []
        self._ca: dict[str, t.Any] | None = None
        self._port: dict[str, t.Any] | None = None

    def read(self, line: str) -> None:
        """Take one line, already without blanks at its ends."""
        name = _header(line)
        if name is not None:
            self._begin(name)
        elif line.startswith(("ibpanic: ", "ibwarn: ", "ibdebug: ")) or _UNREADABLE.search(line):
            unreadable = _UNREADABLE.search(line)
            if unreadable:
                self.unreadable.append(unreadable.group(1))
            self.left.add(line)
        elif _FOREIGN.match(line):
            self._ca = self._port = None
            self.left.add(line)
        elif not self._in_block(line) and not self._of_name_before(line):
            self._outside(line)

    def _begin(self, name: str) -> None:
        self._ca = {"ca": name, "ports": []}
        self._port = None
        if self.host:
            self._ca["host"] = self.host
        self.cas.append(self._ca)
        self._names.append((name, False))

    def _in_block(self, line: str) -> bool:
        """Take a line that belongs to the CA that is open; False for any other."""
        if self._ca is None:
            return False
        port = _PORT.match(line)
        if port:
            self._port = {"port": int(port.group(1))}
            self._ca["ports"].append(self._port)
            return True
        pair = key_value(line)
        if pair is None:
            return False
        key, value = pair
        if key in _OF_PORT:
            self._set_of_port(_OF_PORT[key], value)
            return True
        field = _OF_CA.get(key) or ("ca_type" if key.endswith(" type") else None)
        if field is None or field in self._ca:
            return False
        self._ca[field] = number(value) if field in _NUMBERS else value
        return True

    def _set_of_port(self, field: str, value: str) -> None:
        ca = t.cast("dict[str, t.Any]", self._ca)
        if self._port is None or ("port" not in self._port and field in self._port):
            self._port = {}  # `ibstat | grep State`: the port's number is not in the text
            ca["ports"].append(self._port)
        self._port.setdefault(field, number(value) if field in _NUMBERS else value)

    def _of_name_before(self, line: str) -> bool:
        """Take a label that follows a name alone: a loop over `ibstat -l` printed the name, and grep what it was asked for."""
        pair = key_value(line)
        if (
            self._ca is not None
            or pair is None
            or not self._alone
            or (pair[0] not in _OF_CA and pair[0] not in _OF_PORT)
        ):
            return False
        self._begin(self._names.pop()[0])
        self._in_loop = True
        return self._in_block(line)

    def _outside(self, line: str) -> None:
        self._alone = False
        if _GUID.match(line):
            self.port_guids.append(line)
        elif (self._ca is None or self._in_loop) and _NAME.match(line):
            self._ca = self._port = None
            self._names.append((line, True))
            self._alone = True
        elif line:
            self._strange += 1
            self.left.add(line)

    def names(self) -> list[str]:
        """The names of CAs in their order; single words in the midst of other programs' lines are none of `ibstat -l`."""
        listed = sum(alone for _unused, alone in self._names) >= self._strange
        for name, alone in self._names:
            if alone and not listed:
                self.left.add(name)
        return [name for name, alone in self._names if listed or not alone]


def parse_ibstat(text: str) -> dict[str, t.Any]:
    """Read the answer of ibstat.

    Returns cas (ca, ca_type, num_ports, fw, hw, node_guid, system_image_guid, host where the text names one, ports: port,
    state, phys_state, rate_gbps in Gbit/s, base_lid, lmc, sm_lid, capability_mask, port_guid, link_layer), ca_names (also
    those of `ibstat -l`), port_guids (of `ibstat -p`), unreadable_ca (the CAs at which ibstat gave up), errors, unparsed.
    A label that is not in the text is not in the answer; one with nothing behind it is the empty text. Never raises.
    """
    left = Leftovers()
    answer: dict[str, list[t.Any]] = {"cas": [], "ca_names": [], "port_guids": [], "unreadable_ca": []}
    for host, lines in streams(unpacked(text), _ANCHOR):
        reader = _Reader(host, left)
        for line in seamed(settle(lines, _known), _SEAM):
            reader.read(bare(line))
        answer["cas"] += reader.cas
        answer["ca_names"] += reader.names()
        answer["port_guids"] += reader.port_guids
        answer["unreadable_ca"] += reader.unreadable
    for key in ("ca_names", "unreadable_ca"):
        answer[key] = list(dict.fromkeys(answer[key]))
    return {**answer, "errors": left.errors, "unparsed": left.unparsed}
