# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the shell script `ibstatus` prints (infiniband-diags): one block of labels for each port."""

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

_HEADER = re.compile(r"Infiniband device ['\"`]?([^'\"`\s]{1,128})['\"`]? port ([0-9]{1,6})", re.IGNORECASE)
_ANCHOR = re.compile(r"Infiniband device |Fatal error: |" + SHELL + r"ibstatus: ", re.IGNORECASE)
_CODED = re.compile(r"(-?[0-9]{1,4}):\s?(.*)$")  # the kernel's `4: ACTIVE`
_RATE = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?")
_FOREIGN = re.compile(r"CA\b|hca_id:|link \S{1,128}/[0-9]|DEV\s|#####")  # another tool's answer in the same text
_FIELDS = {
    "default gid": "default_gid",
    "base lid": "base_lid",
    "sm lid": "sm_lid",
    "state": "state",
    "phys state": "phys_state",
    "rate": "rate_text",
    "link_layer": "link_layer",
}
_SEAM = re.compile(
    r"\s{1,64}(?=Infiniband device '|(?:default gid|base lid|sm lid|(?<!phys )state|phys state|rate|link_layer):)"
)


def _known(line: str) -> bool:
    """Whether a line is one that ibstatus prints, whole."""
    pair = key_value(line)
    return bool(_HEADER.match(line.strip())) or (pair is not None and pair[0] in _FIELDS)


def _fields(key: str, value: str) -> dict[str, t.Any]:
    """The fields of a port that one label fills."""
    field = _FIELDS[key]
    if field in ("state", "phys_state"):
        coded = _CODED.match(value)
        return {
            field: coded.group(2).strip() if coded else value,
            field + "_code": int(coded.group(1)) if coded else None,
        }
    if field == "rate_text":
        rate = _RATE.match(value)
        return {field: value, "rate_gbps": number(rate.group()) if rate else None}
    return {field: value}


def parse_ibstatus(text: str) -> dict[str, t.Any]:
    """Read the answer of ibstatus.

    Returns ports (dev, port, host where the text names one, default_gid, base_lid and sm_lid as hexadecimal text, state and
    phys_state as words with state_code and phys_state_code beside them, rate_text whole, rate_gbps in Gbit/s, link_layer),
    errors, unparsed. A label that is not in the text is not in the answer. Never raises.
    """
    left = Leftovers()
    ports: list[dict[str, t.Any]] = []
    for host, lines in streams(unpacked(text), _ANCHOR):
        port: dict[str, t.Any] | None = None
        for line in map(bare, seamed(settle(lines, _known), _SEAM)):
            header = _HEADER.match(line)
            if header:
                port = {"dev": header.group(1), "port": int(header.group(2)), **({"host": host} if host else {})}
                ports.append(port)
                continue
            if _FOREIGN.match(line):
                port = None
            pair = key_value(line)
            if port is None or pair is None or pair[0] not in _FIELDS or _FIELDS[pair[0]] in port:
                left.add(line)
            else:
                port.update(_fields(*pair))
    return {"ports": ports, "errors": left.errors, "unparsed": left.unparsed}
