# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges the mesh that fabric_probe measured: who cannot reach whom, folded to the node, rail, group or pair at fault."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.culprits import BOTH, IN, OUT, Accused, find_culprits
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_cells import (
    CONTROL,
    TESTS,
    Mesh,
    Path,
    Thresholds,
    read_paths,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_names import judge_clocks, judge_names
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_texts import TEXTS, Text

#: pairs named one by one for a path and test; more are a number, and the matrix in the report shows them
PAIRS_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class _Blame:
    """A node accused on a path by a test."""

    accused: Accused
    path: str


def judge_mesh(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of fabric_probe; O(number of probed pairs).

    nodes: {node: {"mesh": row}}; settings: the public variables of the role diagnose.
    """
    meshes: dict[str, Mesh] = {node: result["mesh"] for node, result in nodes.items() if "mesh" in result}
    taking_part = {node: mesh for node, mesh in meshes.items() if mesh["peers"]}
    findings = _left_out(meshes)
    if not taking_part:
        return findings
    paths = read_paths(taking_part, Thresholds.of(settings))
    for test in TESTS:
        findings += _judge_test(test, paths, taking_part)
    return [
        *findings,
        *judge_names(taking_part),
        *judge_clocks(taking_part, float(settings.get("diagnose_clock_skew_s", 1.0))),
        *_icmp_filtered(taking_part),
        *_unfinished(taking_part),
    ]


def _judge_test(test: str, paths: t.Mapping[str, Path], meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    text = TEXTS[test]
    findings: list[Finding] = []
    blames: dict[tuple[str, str], list[_Blame]] = {}
    for path in paths.values():
        cells = path.tests[test]
        verdict = find_culprits(cells)
        if verdict.everyone:
            findings.append(_whole_path(text, test, path, meshes))
        for group in verdict.groups:
            findings.append(_group(text, path, group, meshes))
        for accused in verdict.nodes:
            blames.setdefault((accused.node, accused.direction), []).append(_Blame(accused, path.name))
        findings += _pairs(text, test, path, verdict.pairs, len({n for cell in cells for n in cell}), meshes)
    for blamed in blames.values():
        # A host's firewall, or a dead host, is one fault and not one a rail.
        whole = text.of_host and len(blamed) > 1 and len(blamed) == _paths_tested(test, paths, blamed[0].accused.node)
        for blame in blamed[:1] if whole else blamed:
            findings.append(
                _accused(text, test, paths, blame, [b.path for b in blamed] if whole else [blame.path], meshes)
            )
    return findings


def _paths_tested(test: str, paths: t.Mapping[str, Path], node: str) -> int:
    return sum(any(node in cell for cell in path.tests[test]) for path in paths.values())


# ---- subjects and words


def subject(path: str, node: str, meshes: t.Mapping[str, Mesh]) -> str:
    """What a node has at its end of a path: ``mlx5_0 port 1``, or the interface where there is no HCA."""
    end = _end(path, node, meshes)
    if "device" in end:
        return f"{end['device']} port {end['port']}"
    return str(end.get("netdev") or path)


def _end(path: str, node: str, meshes: t.Mapping[str, Mesh]) -> t.Mapping[str, t.Any]:
    mesh = meshes.get(node, {})
    found: t.Mapping[str, t.Any] = mesh.get("control", {}) if path == CONTROL else mesh.get("rails", {}).get(path, {})
    return found


def rail_words(path: str) -> str:
    return "the control network" if path == CONTROL else f"rail {path}"


def _values(path: Path, test: str, cells: t.Iterable[tuple[str, str]]) -> str:
    """The numbers that made the test bad, beside what is usual."""
    shown = []
    for quantity, form in TEXTS[test].quantities:
        values = [path.numbers[quantity][cell] for cell in cells if cell in path.numbers[quantity]]
        if values:
            usual = path.usual.get(quantity)
            low, high = min(values), max(values)
            span = (
                form.format(low)
                if form.format(low) == form.format(high)
                else f"{form.format(low)} to {form.format(high)}"
            )
            shown.append(span + (f" (on most nodes {form.format(usual)})" if usual else ""))
    return "; ".join(shown)


def _said(path: Path, cells: t.Iterable[tuple[str, str]]) -> str:
    return next((path.said[cell] for cell in cells if cell in path.said), "")


def _details(path: Path, test: str, cells: t.Sequence[tuple[str, str]]) -> str:
    parts = list(filter(None, [_values(path, test, cells), _said(path, cells)]))
    return f": {'; '.join(parts)}" if parts else ""


# ---- findings


def _accused(
    text: Text,
    test: str,
    paths: t.Mapping[str, Path],
    blame: _Blame,
    on: t.Sequence[str],
    meshes: t.Mapping[str, Mesh],
) -> Finding:
    accused, path = blame.accused, paths[blame.path]
    bad = [
        cell
        for cell, works in path.tests[test].items()
        if not works
        and accused.node in cell
        and (accused.direction != OUT or cell[0] == accused.node)
        and (accused.direction != IN or cell[1] == accused.node)
    ]
    others = len({n for cell in path.tests[test] for n in cell}) - 1
    ways = {BOTH: "to and from", OUT: "to", IN: "from"}[accused.direction]
    where = rail_words(on[0]) if len(on) == 1 else f"all {len(on)} paths"
    end = _end(blame.path, accused.node, meshes)
    here = subject(blame.path, accused.node, meshes)
    words = {
        "node": accused.node,
        "netdev": end.get("netdev") or here,
        "device": end.get("device") or here,
        "address": end.get("address", ""),
        "mtu": end.get("mtu") or 9000,
        "peer_address": _end(blame.path, accused.partners[0], meshes).get("address") or accused.partners[0],
    }
    return Finding(
        id=f"mesh_{text.name}",
        severity=_severity(text, test, path, accused),
        node=accused.node,
        subject=text.host_subject
        if len(on) > 1
        else (text.host_subject if text.of_host and on[0] == CONTROL else here),
        evidence=f"{where}, {ways} {listed(accused.partners)} ({len(accused.partners)} of {others} peers): {text.bad}"
        + _details(path, test, bad)
        + _local(text, end)
        + (f"; between the others {text.good}" if others > 1 else ""),
        expected=text.expected,
        cause=text.causes[accused.direction],
        fix=text.fix.format(**words),
    )


def _severity(text: Text, test: str, path: Path, accused: Accused) -> str:
    """A busy processor slows what it receives or what it sends; a link that carries less slows both."""
    return "warning" if test == "bandwidth" and path.software and accused.direction != BOTH else text.severity


def _local(text: Text, end: t.Mapping[str, t.Any]) -> str:
    """The node's own MTU, where the packets were too long for it."""
    if text.name != "mtu" or not end.get("own_mtu") or end["own_mtu"] == end.get("mtu"):
        return ""
    return f"; {end['netdev']} has MTU {end['own_mtu']}, and the rail {end['mtu']}"


def _whole_path(text: Text, test: str, path: Path, meshes: t.Mapping[str, Mesh]) -> Finding:
    bad = [cell for cell, works in path.tests[test].items() if not works]
    names = {n for cell in path.tests[test] for n in cell}
    return Finding(
        id=f"mesh_{text.name}_everywhere",
        severity=text.severity,
        node="",
        subject=rail_words(path.name),
        evidence=f"{len(bad)} of {len(path.tests[test])} directed pairs among {len(names)} nodes: {text.bad}"
        + _details(path, test, bad),
        expected=text.expected,
        cause=f"no node does well here, so the fault is in what they share: {text.shared_cause}",
        fix=text.shared_fix,
    )


def _group(text: Text, path: Path, group: t.Sequence[str], meshes: t.Mapping[str, Mesh]) -> Finding:
    return Finding(
        id=f"mesh_{text.name}_split",
        severity=text.severity,
        node="",
        subject=f"{rail_words(path.name)}: {listed(group)}",
        evidence=f"{len(group)} nodes do well among themselves, and with no other node: {text.bad}",
        expected=text.expected,
        cause="they share a switch, a partition, a VLAN or a subnet that is cut off from the others",
        fix="look at the uplinks, VLANs and routes of the switch that these nodes share",
    )


def _pairs(
    text: Text,
    test: str,
    path: Path,
    pairs: t.Sequence[tuple[str, str, bool]],
    tested_nodes: int,
    meshes: t.Mapping[str, Mesh],
) -> list[Finding]:
    """What no node explains. A number that is bad in one direction alone is noise until a second one says so."""
    if text.quantities and tested_nodes > 2:
        pairs = [pair for pair in pairs if pair[2]]
    findings = []
    for one, other, both in pairs[:PAIRS_SHOWN]:
        bad = [(one, other), (other, one)] if both else [(one, other)]
        arrow = "<->" if both else "->"
        findings.append(
            Finding(
                id=f"mesh_{text.name}_pair",
                severity=text.severity,
                node="",
                subject=f"{one} {arrow} {other}, {rail_words(path.name)}",
                evidence=f"between {one} ({subject(path.name, one, meshes)}) and {other} ({subject(path.name, other, meshes)})"
                f": {text.bad}{_details(path, test, bad)}",
                expected=text.expected,
                cause="with two nodes it cannot be told which end is at fault: a third node would tell"
                if tested_nodes == 2
                else "both do well with other nodes, so it is the way between these two: a cable, a route, a rule for this pair",
                fix=f"look at both ends; {text.shared_fix}",
            )
        )
    if len(pairs) > PAIRS_SHOWN:
        findings.append(
            Finding(
                id=f"mesh_{text.name}_pairs",
                severity=text.severity,
                node="",
                subject=rail_words(path.name),
                evidence=f"{len(pairs) - PAIRS_SHOWN} more pairs: {text.bad}",
                expected=text.expected,
                cause="no node has most of them",
                fix="see the matrix in the report",
            )
        )
    return findings


def _left_out(meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    """Nodes without a part in the mesh. A lone node is no fault."""
    return [
        Finding(
            id="mesh_left_out",
            severity="notice" if len(meshes) == 1 else "warning",
            node=node,
            subject="mesh",
            evidence=f"the node was not probed: {mesh['left_out']}",
            expected="a node that others can reach",
            cause="a lone node has nobody to be probed from" if len(meshes) == 1 else "",
            fix="run it with more nodes"
            if len(meshes) == 1
            else f"ansible {node} -m gpufabric.cluster.fabric_probe -a state=started",
        )
        for node, mesh in meshes.items()
        if mesh["left_out"]
    ]


def _icmp_filtered(meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    """Nodes that answer TCP and no ping: somebody filters ICMP, and packets that are too long are not reported either."""
    silent: dict[str, set[str]] = {}
    for node, mesh in meshes.items():
        for peer, found in mesh["peers"].items():
            for cell in found["paths"].values():
                if cell.get("ping") and not cell["ping"]["received"] and cell.get("tcp", {}).get("ok"):
                    silent.setdefault(peer, set()).add(node)
    return [
        Finding(
            id="mesh_icmp_filtered",
            severity="notice",
            node=peer,
            subject="ICMP",
            evidence=f"opens TCP connections and answers no ping, to {listed(sorted(probers))}",
            expected='answers to ping, and ICMP\'s "fragmentation needed"',
            cause="a firewall drops ICMP: loss and the largest packet could not be tested, and path MTU discovery cannot work",
            fix="let ICMP types 0, 3, 8 and 11 through: "
            "nft insert rule inet filter input icmp type '{ echo-request, destination-unreachable }' accept",
        )
        for peer, probers in silent.items()
    ]


def _unfinished(meshes: t.Mapping[str, Mesh]) -> list[Finding]:
    late = {node: mesh["out_of_time"] for node, mesh in meshes.items() if mesh["out_of_time"]}
    if not late:
        return []
    first = next(iter(late))
    return [
        Finding(
            id="mesh_unfinished",
            severity="notice",
            node="",
            subject="mesh",
            evidence=f"on {len(late)} nodes there was no time for all probes ({first}: {listed(late[first])})",
            expected="every planned pair probed",
            cause="timeouts of what does not answer, or many rails",
            fix="-e diagnose_budget_s=600, or fewer: -e diagnose_bandwidth_rounds=1",
        )
    ]
