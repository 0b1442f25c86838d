# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `iblinkinfo` prints (infiniband-diags, iblinkinfo.c): blocks of nodes, or with `-l` one line a link."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.subnet import (
    hosts_and_switches,
    kind_of,
    rate_gbps,
    side_of,
    unwrapped,
    with_sides,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import SHELL, Leftovers, streams

# Before 2011 there was no colon behind "Switch".
_HEADER = re.compile(r"(CA|Switch|Router|\?\?)(?::|(?= 0x[0-9a-fA-F]{16} )) (?:(0x[0-9a-fA-F]{16}) )?(.{0,256}?):\s*$")
_COUNTED = re.compile(
    r"(?:Errors for|Data Counters for) (0x[0-9a-fA-F]{16}) \"([^\"]{0,256})\""
)  # of ibqueryerrors, over its links
_ANCHOR = re.compile(
    r"(?:CA|Switch|Router): |Switch 0x[0-9a-fA-F]{16} |0x[0-9a-fA-F]{16}\s|[0-9]{1,6}\s{1,8}[0-9]{1,4}\[[ 0-9]{0,8}\]\s{1,4}==\("
    r"|ibwarn: |" + SHELL + r"iblinkinfo: "
)
_GLUED_WIDTH = re.compile(r"(\s{0,8}[0-9]{1,3}[xX])(?=[0-9])")
_GUID = r"(?:(0x[0-9a-fA-F]{16})\s{1,8})?"
_PORT = r"([0-9]{1,6})\s{1,8}([0-9]{1,4})\[[ 0-9]{0,8}\]"  # LID, port, and in brackets the port's number on the chassis
_NEAR = re.compile(r"(?<![\w.:-])" + _GUID + r"(?:\"\s{0,64}([^\"]{0,128})\"\s{1,8})?" + _PORT + r"\s{0,4}$")
_BEGUN = re.compile(r"(?:[<>] )?(?:0x[0-9a-fA-F]{16}\s{1,8}(?:\"|[0-9]{1,6}\b)|[0-9]{1,6}\s{1,8}[0-9]{1,4}\[)")
_NAMED = re.compile(r"\s\"[^\"]{0,256}\" \(")
_FAR = re.compile(r"\s{0,16}" + _GUID + _PORT + r"\s{1,8}\"([^\"]{0,256})\"(?:\s{0,4}\((.{0,256}))?")


def _link(line: str, header: tuple[str, str, str]) -> dict[str, t.Any] | None:
    """One port and what it is connected to; None for a line that is none."""
    before, opened, rest = line.partition("==(")
    state, closed, after = rest.partition(")==>")
    near = _NEAR.search(before.strip())
    words, slash, physical = state.partition("/")
    if not (opened and closed and slash and near):
        return None
    kind, guid, name = header
    line_guid, line_name, lid, port = near.groups()
    measures = _GLUED_WIDTH.sub(r"\1 ", words, count=1).split()
    width = measures[0] if len(measures) > 1 and measures[0][-1] in "Xx" else ""
    speed = " ".join(measures[1:-1]) if width else ""
    far = _FAR.match(after)
    return {
        "node": line_name.strip() if line_name is not None else name,
        "node_type": kind,
        "guid": line_guid or guid,
        "lid": int(lid),
        "port": int(port),
        "width": width,
        "speed": speed,
        "rate_gbps": rate_gbps(width, speed),
        "state": measures[-1] if measures else "",
        "phys_state": (physical.split() or [""])[0].rstrip(")"),
        "peer": far.group(4).strip() if far else "",
        "peer_type": "",
        "peer_guid": (far.group(1) or "") if far else "",
        "peer_lid": int(far.group(2)) if far else None,
        "peer_port": int(far.group(3)) if far else None,
        "note": (far.group(5) or "").strip(" )") if far else "",
    }


def _begun(line: str) -> bool:
    """Whether a line begins a link, whole or not; a far end begins as a near one does, but no state follows it."""
    return _BEGUN.match(line) is not None and ("==(" in line or _NAMED.search(line) is None)


def _whole(line: str) -> bool:
    """Whether a line is whole: a link with its far end, or with what stands for one that is not there, or no link at all."""
    before, opened, rest = line.partition("==(")
    if not opened:
        return _HEADER.match(line) is not None
    _unused, closed, after = rest.partition(")==>")
    if not closed or "==(" in after or _NEAR.search(before.strip()) is None:
        return False
    far = _FAR.match(after)
    return (")" in (far.group(5) or "")) if far else '""' in after or "not available" in after


def _type_peers(links: t.Sequence[dict[str, t.Any]], nodes: t.Sequence[t.Mapping[str, t.Any]]) -> None:
    """Say of each end what kind of node it is.

    By its block, else by its description, else by its LID: all ports of a switch share one, each port of a CA has its own.
    """
    kinds = {node["name"]: node["type"] for node in nodes}
    ports: dict[int, set[int]] = {}
    ends = [(link, end, name) for link in links for end, name in (("node", "lid"), ("peer", "peer_lid"))]
    for link, end, lid in ends:
        if link[lid]:
            ports.setdefault(link[lid], set()).add(link["port" if end == "node" else "peer_port"])
    for link, end, lid in ends:
        name = link[end]
        if not link[end + "_type"] and name:
            shared = len(ports.get(link[lid], ())) > 1
            link[end + "_type"] = kinds.get(name) or kind_of(name) or ("Switch" if shared else "CA")


def parse_iblinkinfo(text: str) -> dict[str, t.Any]:
    """Read the answer of iblinkinfo.

    Returns nodes (type CA, Switch or Router, guid, name), links (node, node_type, guid, lid, port, width, speed of a lane as
    printed, rate_gbps nominal, state, phys_state, peer, peer_type, peer_guid, peer_lid, peer_port, note such as `Could be
    4X`), hosts and switches by short name (SHARP's aggregation nodes are neither), errors, unparsed. Nodes and links of
    `--diff` have a side: `<` for the older fabric, `>` for the newer. Never raises.
    """
    left = Leftovers()
    nodes: list[dict[str, t.Any]] = []
    links: list[dict[str, t.Any]] = []
    for _host, lines in streams(with_sides(unpacked(text)), _ANCHOR):
        header = ("", "", "")
        for marked in unwrapped(lines, _begun, _whole):
            line, side = side_of(marked)
            match = _HEADER.match(line)
            counted = _COUNTED.match(line)
            if match:
                header = (match.group(1), match.group(2) or "", match.group(3).strip())
                nodes.append({**dict(zip(("type", "guid", "name"), header)), **side})
                continue
            if counted:
                header = ("", counted.group(1), counted.group(2))
                continue
            link = _link(line, header)
            if link is None:
                left.add(line)
            else:
                links.append({**link, **side})
    _type_peers(links, nodes)
    return {
        "nodes": nodes,
        "links": links,
        **hosts_and_switches(links, nodes),
        "errors": left.errors,
        "unparsed": left.unparsed,
    }
