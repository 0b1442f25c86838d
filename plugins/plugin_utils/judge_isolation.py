# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What isolate found, as findings with what to type. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

FLEET_FAILS = Finding(
    id="fleet_fails",
    severity="error",
    node="",
    subject="all nodes",
    evidence="every pair hung or failed",
    expected="runs that end",
    cause="something that all nodes share: a firewall on NCCL's ports, settings, the launcher, or one interface name that exists nowhere",
    fix="ansible-playbook gpufabric.cluster.diagnose",
)


def findings(said: t.Mapping[str, t.Any], lost: t.Mapping[str, str] | None = None) -> list[Finding]:
    """The verdict as findings, each with what to type. lost: {node: why its connection ended}, where that is known."""
    found = [_finding_of_node(entry, said) for entry in said["accused"]]
    found += [_finding_of_link(entry) for entry in said["links"]]
    found += [_finding_of_rack(entry) for entry in said["racks"]]
    found += [_finding_of_uplink(entry) for entry in said["uplinks"]]
    found += [_finding_of_path(entry) for entry in said["paths"]]
    found += [_finding_of_rail(entry) for entry in said["rails"]]
    found += [_finding_of_two(names) for names in said["untold"]]
    if said["fleet"]["below"] and not said["untold"]:
        found.append(_finding_of_fleet(said["fleet"]))
    if said["all_failed"]:
        found.append(FLEET_FAILS)
    found += [_finding_of_doubt(entry, said) for entry in said["undecided"]]
    found += [vanished_finding(name, lost or {}) for name in said["vanished"]]
    if said["unjudged"]:
        found.append(_finding_of_unjudged(said))
    if said["unmeasured"]:
        found.append(_finding_of_unmeasured(said))
    if said["resolution"] is not None and said["spread"]:
        found.append(_finding_of_resolution(said))
    return found


def diagnose_among(node: str, good: t.Sequence[str]) -> str:
    """The command that looks at one node, with good ones beside it: its mesh needs somebody to reach."""
    limit = f" --limit {','.join([node, *good])}" if good else ""
    return f"ansible-playbook gpufabric.cluster.diagnose{limit}"


def _per_cent(ratio: float) -> str:
    return f"{100 * ratio:.1f}%"


def _gbs(speed: float) -> str:
    """GB/s in three significant digits, of slow networks too, and without an exponent."""
    return f"{float(f'{speed:.3g}'):g} GB/s"


def _odds(chance: float, what: str = "node") -> str:
    return f"a healthy {what} is accused on such evidence in fewer than one fleet in {1 / max(chance, 1e-12):,.0f}"


def _finding_of_node(entry: t.Mapping[str, t.Any], said: t.Mapping[str, t.Any]) -> Finding:
    node = str(entry["node"])
    slow = [one for one in entry["subjects"] if one["slow"]]
    rails = [one for one in entry["subjects"] if one["subject"] not in ("NVLink", "GPU to NIC")]
    narrow = slow and not (rails and all(one["slow"] for one in rails))
    subject = ", ".join(one["subject"] for one in slow) if narrow else "node"
    partners = ", ".join(f"{one['node']} {_per_cent(one['ratio'])}" for one in entry["partners"])
    if entry["kind"].startswith("fails"):
        how = f"{entry['failed']} of {entry['runs']} runs hung or failed"
        cause = "something on this node stops every run that it takes part in"
        reason = "collectives hang or fail"
    else:
        reason = f"slow: {_per_cent(entry['ratio'])} of its peers"
        how = f"{_per_cent(entry['ratio'])} of its peers in {entry['runs']} runs"
        if entry["busbw"] is not None:
            how += f" ({_gbs(entry['busbw'])} against {_gbs(entry['peers_busbw'])})"
        cause = "this node is slower than its peers with whomever it is paired"
    alone = " by itself" if entry["kind"].endswith("alone") else ""
    evidence = f"{how}{alone}" + (f"; with known-good partners: {partners}" if partners else "")
    evidence += "".join(f"; {one['subject']} {_per_cent(one['ratio'])}" for one in entry["subjects"])
    evidence += "".join(f"; {note}" for note in entry["notes"])
    return Finding(
        id="node_fails" if entry["kind"].startswith("fails") else "node_slow",
        severity="error",
        node=node,
        subject=subject,
        evidence=f"{evidence}; {_odds(entry['false_accusation'])}",
        expected=f"at least {_per_cent(1 - said['resolution'])} of its peers" if said["resolution"] else "as its peers",
        cause=cause,
        fix=f"{diagnose_among(node, said['good'])}; "
        f"scontrol update NodeName={node} State=DRAIN Reason='{reason}'  # where Slurm schedules it, until that is mended",
    )


def _finding_of_link(entry: t.Mapping[str, t.Any]) -> Finding:
    one, two = entry["nodes"]
    fails = entry["kind"] == "fails"
    seen = "fails" if fails else f"reaches {_per_cent(entry['ratio'])} of other pairs"
    return Finding(
        id="link_fails" if fails else "link_slow",
        severity="error",
        node=one,
        subject=f"link to {two}",
        evidence=f"{one} with {two} {seen} in {entry['runs']} runs, both are good with others; {_odds(entry['false_accusation'], 'link')}",
        expected="as fast as either is with others",
        cause="the path between these two: a cable, a switch port, a hash that puts both on one congested link, or an access list",
        fix=f"ansible-playbook gpufabric.cluster.diagnose --limit {one},{two}; compare the switch ports' error counters and routes",
    )


def _finding_of_rack(entry: t.Mapping[str, t.Any]) -> Finding:
    seen = (
        "every pair within it fails"
        if entry["failed"]
        else f"its pairs reach {_per_cent(entry['ratio'])} of other racks'"
    )
    return Finding(
        id="rack_slow",
        severity="error",
        node="",
        subject=f"rack {entry['rack']}",
        evidence=f"{seen} in {entry['runs']} runs, whichever nodes are paired",
        expected="as fast as the other racks",
        cause="what the nodes of this rack share: its leaf switch, its power or cooling, or an image or setting of its own",
        fix="check the leaf switch's port counters, speeds and PFC state, then its nodes' settings: "
        "ansible-playbook gpufabric.cluster.diagnose",
    )


def _finding_of_uplink(entry: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="uplink_slow",
        severity="error",
        node="",
        subject=f"uplinks of rack {entry['rack']}",
        evidence=f"pairs from it to {entry['paths']} other racks reach {_per_cent(entry['ratio'])} of what racks reach with each other",
        expected="as fast as paths between other racks",
        cause="fewer or slower uplinks than the other racks have, or traffic hashed onto few of them",
        fix="compare this leaf switch's uplink count, speed and error counters with another's",
    )


def _finding_of_path(entry: t.Mapping[str, t.Any]) -> Finding:
    one, two = (rack or "the rest" for rack in entry["racks"])
    return Finding(
        id="path_slow",
        severity="warning",
        node="",
        subject=f"path between racks {one} and {two}",
        evidence=f"pairs between them reach {_per_cent(entry['ratio'])} of what racks reach with each other",
        expected="as fast as other paths",
        cause="a slow spine link or an unlucky hash on this path",
        fix="trace the route between the two leaf switches and read the error counters along it",
    )


def _finding_of_rail(entry: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="rail_slow",
        severity="error",
        node="",
        subject=f"rail {entry['rail']}",
        evidence=f"good pairs on this rail alone reach {_per_cent(entry['ratio'])} of the other rails in {entry['runs']} runs",
        expected="as fast as the other rails",
        cause="what all nodes share on this rail: its leaf switch, or one setting on all of its HCAs",
        fix=f"check the switch of rail {entry['rail']}, then ansible-playbook gpufabric.cluster.verify --tags rdma",
    )


def _finding_of_two(names: t.Sequence[str]) -> Finding:
    return Finding(
        id="nodes_untold",
        severity="error",
        node="",
        subject=" and ".join(names),
        evidence="their run with each other is bad, and there is nobody else to pair them with",
        expected="a third node, of which at least one is good",
        cause="it is one of the two, or the link between them: two nodes cannot tell",
        fix="add a node that is known to be good to the inventory and run isolate again",
    )


def _finding_of_fleet(fleet: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="fleet_slow",
        severity="error",
        node="",
        subject="all nodes",
        evidence=f"the healthy pairs reach {_gbs(fleet['busbw'])}",
        expected=_gbs(fleet["expectation"]),
        cause="something that all nodes share: settings, NCCL transport (sockets instead of RDMA), the fabric, "
        "or an expectation set too high",
        fix="ansible-playbook gpufabric.cluster.diagnose; read the transport lines first",
    )


def _finding_of_doubt(entry: t.Mapping[str, t.Any], said: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="node_undecided",
        severity="warning",
        node=str(entry["node"]),
        subject="node",
        evidence=f"{_per_cent(entry['ratio'])} of its peers in {entry['runs']} runs, {entry['failed']} of them failed",
        expected="evidence that a healthy node would give in fewer than one fleet in "
        f"{1 / said['false_accusation']:,.0f}, with two known-good partners",
        cause="the measurements differ too much, or it is bad with some partners and good with others",
        fix="run isolate again on idle nodes, or allow more launches: -e isolate_retests=60",
    )


def vanished_finding(name: str, lost: t.Mapping[str, str]) -> Finding:
    """Of a node that went away; *lost* as in findings()."""
    why = f" ({lost[name]})" if lost.get(name) else ""
    return Finding(
        id="node_vanished",
        severity="error",
        node=name,
        subject="node",
        evidence=f"it could no longer be reached while isolate ran{why}",
        expected="reachable to the end",
        cause="it went down, or its network or its SSH did",
        fix=f"ansible {name} -m ansible.builtin.ping; then its console and its last kernel messages",
    )


def _finding_of_unmeasured(said: t.Mapping[str, t.Any]) -> Finding:
    names = said["unmeasured"]
    lone = said["nodes"] == 1
    return Finding(
        id="node_unmeasured",
        severity="notice" if lone else "warning",
        node=names[0] if len(names) == 1 else "",
        subject=", ".join(names),
        evidence="never paired: there is no other node" if lone else "never measured with another node",
        expected="at least two other nodes to be paired with",
        cause="a lone node says nothing about its network"
        if lone
        else "its partners vanished, or it was alone in its round",
        fix="add nodes to the inventory and run isolate again",
    )


def _finding_of_unjudged(said: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="nodes_unjudged",
        severity="notice",
        node="",
        subject=" and ".join(said["unjudged"]),
        evidence=f"they reach {_gbs(said['fleet']['busbw'])} with each other, and there is nothing to compare that with",
        expected="a third node, or an expectation",
        cause="two nodes have no peers",
        fix="-e isolate_expectation=GB/s, or add nodes to the inventory",
    )


def _finding_of_resolution(said: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id="isolate_resolution",
        severity="notice",
        node="",
        subject="all nodes",
        evidence=f"healthy nodes differ by {_per_cent(said['spread'])}, "
        f"so that only a loss of {_per_cent(said['resolution'])} or more could be named",
        expected="nodes of one rack within the noise of the measurement",
        cause="racks that the inventory does not name, different hardware, or other work on the fabric",
        fix="say each node's rack in the inventory, and run isolate on idle nodes",
    )
