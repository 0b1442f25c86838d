# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what a mesh shows of names and clocks: who does not know whom, who is known by a wrong address, whose time is off."""

from __future__ import annotations

import collections
import ipaddress
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.culprits import IN, Cell, find_culprits
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed

Mesh = t.Mapping[str, t.Any]


def judge_names(meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    """Names that are unknown, and names that lead to an address which is not the node's."""
    known: dict[Cell, bool] = {}
    right: dict[Cell, bool] = {}
    for node, mesh in meshes.items():
        for peer, found in mesh["peers"].items():
            names = found["names"]
            if not names:
                continue
            known[node, peer] = bool(names["addresses"])
            own = set(meshes.get(peer, {}).get("addresses", []))
            if names["addresses"] and own:
                right[node, peer] = bool(own & set(names["addresses"])) and not all(
                    map(_is_loopback, names["addresses"])
                )
    return [*_unknown(known, meshes), *_wrong(right, meshes), *_own_loopback(meshes)]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _name_of(node: str, meshes: t.Mapping[str, Mesh]) -> str:
    return str(meshes.get(node, {}).get("hostname") or node)


def _unknown(known: t.Mapping[Cell, bool], meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    verdict = find_culprits(known)
    said = "mpirun, torchrun and everything else that is told names cannot start there"
    fix = "/etc/hosts or DNS: getent ahosts NAME on every node"
    if verdict.everyone:
        return [
            Finding(
                id="names_unknown",
                severity="notice",
                node="",
                subject="names",
                evidence="hardly a node resolves the others' host names",
                expected="every node's host name known on every node",
                cause=f"no DNS and no /etc/hosts for them: {said}; addresses work",
                fix=fix,
            )
        ]
    findings = []
    for accused in verdict.nodes:
        itself = accused.direction == IN
        findings.append(
            Finding(
                id="name_unknown" if itself else "resolver_broken",
                severity="warning",
                node=accused.node,
                subject=f"name {_name_of(accused.node, meshes)}" if itself else "names",
                evidence=f"{_name_of(accused.node, meshes)} is unknown on {listed(accused.partners)}"
                if itself
                else f"this node does not resolve {listed(accused.partners)}, and others do",
                expected="every node's host name known on every node",
                cause=said,
                fix=fix,
            )
        )
    findings += [
        Finding(
            id="name_unknown",
            severity="warning",
            node=one,
            subject=f"name {_name_of(other, meshes)}",
            evidence=f"{_name_of(other, meshes)} is unknown on {one}",
            expected="every node's host name known on every node",
            cause=said,
            fix=fix,
        )
        for one, other, _unused in verdict.pairs
    ]
    return findings


def _wrong(right: t.Mapping[Cell, bool], meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    """A name that leads elsewhere: named where it is resolved, or, if all resolve it so, at the node that has it."""
    verdict = find_culprits(right)
    bad = collections.defaultdict(list)
    blamed_in = {accused.node for accused in verdict.nodes if accused.direction == IN}
    for (one, other), works in right.items():
        if not works:
            bad[other if other in blamed_in else one].append((one, other))
    findings = []
    for node, cells in bad.items():
        one, other = cells[0]
        addresses = meshes[one]["peers"][other]["names"]["addresses"]
        findings.append(
            Finding(
                id="name_wrong",
                severity="error",
                node=node,
                subject=f"name {_name_of(other, meshes)}",
                evidence=f"on {listed(sorted({c[0] for c in cells}))} the name leads to {listed(addresses)}, which {other} does not have",
                expected=f"an address of {other}: {listed(list(meshes[other]['addresses']))}",
                cause="a stale or wrong entry in /etc/hosts or DNS: connections go to another machine, or to the prober itself",
                fix=f"getent ahosts {_name_of(other, meshes)}; grep -n {_name_of(other, meshes)} /etc/hosts; correct the entry",
            )
        )
    return findings


def _own_loopback(meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    """Debian's 127.0.1.1 habit: a rank that announces itself by its name announces an address that nobody else can use."""
    having = [
        node
        for node, mesh in meshes.items()
        if mesh["own_name"].get("addresses") and all(map(_is_loopback, mesh["own_name"]["addresses"]))
    ]
    if not having:
        return []
    return [
        Finding(
            id="own_name_is_loopback",
            severity="notice",
            node=having[0] if len(having) == 1 else "",
            subject="own host name",
            evidence=f"on {listed(having)} the own host name leads to a loopback address",
            expected="an address that peers can reach",
            cause="gloo, and a rendezvous that is given the name, announce that address to the other nodes",
            fix="take the 127.0.1.1 line out of /etc/hosts, or set GLOO_SOCKET_IFNAME and MASTER_ADDR to an address",
        )
    ]


def judge_clocks(meshes: t.Mapping[str, Mesh], limit_s: float) -> list[Finding]:
    """Nodes whose clock is off by more than *limit_s* from the middle of all, as their peers measured it."""
    ahead = clocks(meshes)
    if not ahead:
        return []
    middle = statistics.median(ahead.values())
    off = {node: seconds - middle for node, seconds in ahead.items() if abs(seconds - middle) > limit_s}
    if len(ahead) == 2:
        one, other = list(ahead)
        between = ahead[other] - ahead[one]
        off = {"": between} if abs(between) > limit_s else {}
        told = f"{other} is {between:+.3f} s before {one}; with two nodes it cannot be told which one is wrong"
    return [
        Finding(
            id="clock_skew",
            severity="warning",
            node=node,
            subject="clock",
            evidence=told if not node else f"the clock is {seconds:+.3f} s from the middle of {len(ahead)} nodes",
            expected=f"at most {limit_s:g} s",
            cause="no time service keeps it: logs of several nodes cannot be put in order, and tokens (Slurm's munge, TLS) are refused",
            fix="chronyc tracking (timedatectl timesync-status); systemctl enable --now chrony; chronyc makestep",
        )
        for node, seconds in off.items()
    ]


def clocks(meshes: t.Mapping[str, Mesh]) -> dict[str, float]:
    """{node: seconds before the first node}, along measured pairs; nodes that no measurement connects to it are left out."""
    offsets: dict[str, list[tuple[str, float]]] = collections.defaultdict(list)
    for node, mesh in meshes.items():
        for peer, found in mesh["peers"].items():
            if found["clock"] and peer in meshes:
                offsets[node].append((peer, found["clock"]["offset_s"]))
                offsets[peer].append((node, -found["clock"]["offset_s"]))
    if not offsets:
        return {}
    start = next(iter(offsets))
    ahead = {start: 0.0}
    queue = collections.deque([start])
    while queue:
        node = queue.popleft()
        for peer, seconds in offsets[node]:
            if peer not in ahead:
                ahead[peer] = ahead[node] + seconds
                queue.append(peer)
    return ahead
