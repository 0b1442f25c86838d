# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `ibnetdiscover` prints (infiniband-diags, ibnetdiscover.c): the topology file, `-p` (one port a line), `-l` and -H, -S.

Also what the scripts ibhosts, ibswitches and ibrouters make of a topology file.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.subnet import (
    hosts_and_switches,
    rate_gbps,
    side_of,
    unwrapped,
    with_sides,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.text import SHELL, Leftovers, streams

_KINDS = {
    "CA": "CA",
    "SW": "Switch",
    "RT": "Router",
    "Ca": "CA",
    "Switch": "Switch",
    "Rt": "Router",
    "Router": "Router",
    "H": "CA",
    "S": "Switch",
    "R": "Router",
}
_END = r"(CA|SW|RT|\?\?)\s{1,16}([0-9]{1,6})\s{1,16}([0-9]{1,4})\s{1,16}(0x[0-9a-fA-F]{16})"
_WIDTH = r"([0-9?]{1,3}x|\?\?)"
_PORT = re.compile(_END + r"\s{1,16}" + _WIDTH + r"\s{1,16}(\S{1,16})(.*)$")
_PEER = re.compile(r"\s{1,16}-\s{1,16}" + _END + r"\s{1,16}\(\s?(.*)\)\s*$")
# A GUID, or what is left of one that somebody blackened; simulators write 0x before it, or no letter of its kind.
_ID = r"(?:0x)?([^\"\s()]{1,64})"
_NAMED = r"\"(?:([SHR?])-)?" + _ID + r"\""
_NODE = re.compile(
    r"(?P<kind>Switch|Ca|Rt|\?\?\?)\s{1,64}(?P<ports>[0-9]{1,4})\s{1,64}\"(?:[SHR?]-)?(?:0x)?(?P<guid>[^\"\s]{1,64})\"\s{1,64}#\s{1,4}"
    r"\"(?P<name>[^\"]{0,256})\"(?P<rest>.*)$"
)
_EXTERNAL = r"(?:\[ext [0-9]{1,4}\])?"
_CABLE = re.compile(
    r"\[([0-9]{1,4})\]"
    + _EXTERNAL
    + r"(?:\("
    + _ID
    + r"\))?\s{1,64}"
    + _NAMED
    + r"\[([0-9]{1,4})\]"
    + _EXTERNAL
    + r"\s{0,4}(?:\("
    + _ID
    + r"\))?(?:\s{0,64}$|\s{1,64}#\s{1,4})"  # what is written for a simulator needs no comment
    # The LID of this end where it is a CA's, then the other end; before 2007 without width and speed.
    r"(?:lid ([0-9]{1,6})(?: lmc [0-9]{1,2})?(?:\s{1,4}|$))?(?:\"([^\"]{0,256})\"(?: lid ([0-9]{1,6}))?(?: "
    + _WIDTH
    + r"(\S{1,16}))?)?"
)
_LISTED = re.compile(
    r"(?P<kind>Switch|Ca|Rt|Router|\?\?\?)\s{0,16}:\s{1,16}(?P<guid>0x[0-9a-fA-F]{16}) ports (?P<ports>[0-9]{1,4})"
    r"(?: devid \S{1,18} vendid \S{1,18})? \"(?P<name>[^\"]{0,256})\"(?P<rest>.*)$"
)
_SPEED = re.compile(r"(?:[A-Z]DR|FDR10|\?\?\?)$")
_LID = re.compile(r"\blid ([0-9]{1,6})\b")
_ANCHOR = re.compile(
    r"(?:vendid|devid|sysimgguid|(?:switch|ca|rt)guid)=0x|(?:Switch|Ca|Rt)\s{1,16}[0-9]{1,4}\s{1,16}\"|\[[0-9]{1,4}\](?:[\[(]|\s{1,64}\")"
    r"|(?:CA|SW|RT|\?\?)\s{1,16}[0-9]{1,6}\s{1,16}[0-9]{1,4}\s{1,16}0x|(?:Switch|Ca|Rt|Router)\s{0,16}:\s{1,16}0x"
    r"|ibwarn: |" + SHELL + r"ibnetdiscover: "
)
_KNOWN = re.compile(
    r"#(?!\s{1,8}(?:\"|lid ))|vendid=|devid=|sysimgguid=|(?:switch|ca|rt)guid=|Chassis [0-9]|Non-Chassis Nodes"
)


_BEGUN = re.compile(
    r"(?:Switch|Ca|Rt|\?\?\?)\s{1,64}[0-9]{1,4}\s{1,64}\"|\[[0-9]{1,4}\](?:[\[(\s]|$)|(?:Switch|Ca|Rt|Router)\s{0,16}:\s{1,16}0x|"
    + _END
    + r"\s{1,16}"
    + _WIDTH
    + r"\s"
)


def _whole(line: str) -> bool:
    """Whether a line is whole: the line of a switch ends with its LID, one of `-p` with a name."""
    cable = _CABLE.match(line)
    if cable:
        return (
            _SPEED.match(cable.group(11) or "") is not None
        )  # an old version's line has no speed: it is given back alone
    if _LISTED.match(line) or _KNOWN.match(line):
        return True
    node, port = _NODE.match(line), _PORT.match(line)
    if port:
        return _PEER.match(port.group(7)) is not None or re.match(r"\s{8,64}'.{0,256}'$", port.group(7)) is not None
    return node is not None and (node.group("kind") != "Switch" or _LID.search(node.group("rest")) is not None)


def _guid(digits: str | None) -> str:
    if not digits:
        return ""
    digits = digits.removeprefix("0x").lower()
    return "0x" + (digits.zfill(16) if digits.isalnum() else digits)


def _ports_line(match: re.Match[str]) -> dict[str, t.Any]:
    """One line of `-p`; a port without a peer has only its own name at the end."""
    kind, lid, port, guid, width, speed, rest = match.groups()
    peer = _PEER.match(rest)
    own, _unused, other = peer.group(5).partition("' - '") if peer else (rest, "", "")
    return {
        "node": own.strip(" '"),
        "node_type": _KINDS.get(kind, kind),
        "guid": _guid(guid),
        "lid": int(lid),
        "port": int(port),
        "width": width,
        "speed": speed,
        "rate_gbps": rate_gbps(width, speed),
        "peer": other.strip(" '"),
        "peer_type": _KINDS.get(peer.group(1), "") if peer else "",
        "peer_guid": _guid(peer.group(4)) if peer else "",
        "peer_lid": int(peer.group(2)) if peer else None,
        "peer_port": int(peer.group(3)) if peer else None,
    }


def _cable_line(match: re.Match[str], node: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """One line below a node of the topology file."""
    port, own_guid, kind, peer, peer_port, peer_guid, lid, name, peer_lid, width, speed = match.groups()
    return {
        "node": node["name"],
        "node_type": node["type"],
        "guid": _guid(own_guid) or node["guid"],
        "lid": int(lid) if lid else node["lid"],
        "port": int(port),
        "width": width or "",
        "speed": speed or "",
        "rate_gbps": rate_gbps(width or "", speed or ""),
        "peer": name or "",
        "peer_type": _KINDS.get(kind, ""),
        "peer_guid": _guid(peer_guid or peer),
        "peer_lid": int(peer_lid) if peer_lid else None,
        "peer_port": int(peer_port),
    }


def _name_peers(links: t.Iterable[dict[str, t.Any]], nodes: t.Iterable[t.Mapping[str, t.Any]]) -> None:
    """Take from a node's own lines what the lines of cables to it leave out."""
    known = {node["guid"]: node for node in nodes}
    for link in links:
        node = known.get(link["peer_guid"])
        if node is not None:
            link["peer"] = link["peer"] or node["name"]
            link["peer_type"] = link["peer_type"] or node["type"]
            link["peer_lid"] = (
                node["lid"] if link["peer_lid"] is None and link["peer_port"] is not None else link["peer_lid"]
            )


def _node_line(match: re.Match[str]) -> dict[str, t.Any]:
    kind, ports, guid, name, rest = match.group("kind", "ports", "guid", "name", "rest")
    lid = _LID.search(rest)
    return {
        "type": _KINDS.get(kind, kind),
        "guid": _guid(guid),
        "name": name,
        "ports": int(ports),
        "lid": int(lid.group(1)) if lid else None,
    }


def parse_ibnetdiscover(text: str) -> dict[str, t.Any]:
    """Read the answer of ibnetdiscover.

    Returns nodes (type, guid, name, ports, lid; of the topology file and of the lists), links (node, node_type, guid, lid,
    port, width, speed by its name, rate_gbps nominal, peer, peer_type, peer_guid, peer_lid, peer_port), dangling (links
    without a peer: ports with nothing plugged in, whose speed means nothing), hosts and switches by short name, errors,
    unparsed. Never raises.
    """
    left = Leftovers()
    nodes: list[dict[str, t.Any]] = []
    links: list[dict[str, t.Any]] = []
    for _host, lines in streams(with_sides(unpacked(text)), _ANCHOR):
        open_node: dict[str, t.Any] = {"type": "", "guid": "", "name": "", "lid": None}
        for marked in unwrapped(lines, lambda line: _BEGUN.match(line) is not None, _whole):
            line, side = side_of(marked)
            port, cable = _PORT.match(line), _CABLE.match(line)
            node = _NODE.match(line) or _LISTED.match(line)
            if port:
                links.append({**_ports_line(port), **side})
            elif cable:
                links.append({**_cable_line(cable, open_node), **side})
            elif node:
                open_node = {**_node_line(node), **side}
                nodes.append(open_node)
            elif not _KNOWN.match(line):
                left.add(line)
    _name_peers(links, nodes)
    return {
        "nodes": nodes,
        "links": [link for link in links if link["peer_port"] is not None],
        "dangling": [link for link in links if link["peer_port"] is None],
        **hosts_and_switches(links, nodes),
        "errors": left.errors,
        "unparsed": left.unparsed,
    }
