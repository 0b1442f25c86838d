# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what node_state_info found: firewalls, shared memory, interfaces, clocks, mixed versions, and, by others, GPUs and kernel logs."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_gpus import judge_gpus
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_kernel_log import judge_kernel_log
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed, majority

State = t.Mapping[str, t.Any]

ROCE_PORT = 4791
MIB = 1 << 20
#: shared memory that NCCL, MPI and data loaders of one rank need, and of a node besides
SHM_EACH_GPU, SHM_BASE = 64 * MIB, 64 * MIB
#: Linux's own, where the node does not say
PORT_RANGE = (32768, 60999)

#: interface names that NCCL itself leaves to the last (NCCL_SOCKET_IFNAME's default, "^docker,lo")
PASSED_OVER = ("docker", "lo")


def judge_state(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the registered results of node_state_info, O(N)."""
    states = {name: result["state"] for name, result in nodes.items() if "state" in result}
    findings: list[Finding] = []
    for name, state in states.items():
        findings += [*_firewall(name, state), *_shm(name, state), *judge_gpus(name, state["gpus"])]
        findings += judge_kernel_log(name, state["kernel_log"])
    return [*findings, *_interfaces(states), *_clocks(states), *_versions(states)]


# ---- firewall


def _firewall(name: str, state: State) -> list[Finding]:
    """Rules and policies that take TCP to high ports, or RoCE, away. That they really do is for the mesh to show."""
    firewall = state["firewall"]
    first, last = (state.get("port_range") or PORT_RANGE)[:2]
    findings = []
    for rule in firewall["rules"]:
        hit = _what_it_hits(rule, first, last)
        if hit:
            findings.append(
                Finding(
                    id="firewall_rule",
                    severity="warning",
                    node=name,
                    subject=rule["where"],
                    evidence=f"a rule takes {hit} away: {rule['rule']}",
                    expected="TCP to all ports and UDP 4791 between the cluster's nodes",
                    cause="NCCL's bootstrap and sockets, MPI and perftest use random high ports, RoCE v2 uses UDP 4791 "
                    "(hardware HCAs bypass the kernel's filter, Soft-RoCE does not)",
                    fix=f"look at it: {_list_command(rule['where'])}; accept the cluster's networks before it",
                )
            )
    for policy in firewall["policies"]:
        findings.append(
            Finding(
                id="firewall_policy",
                severity="notice",
                node=name,
                subject=policy["where"],
                evidence=f"what no rule accepts is dropped ({policy['accepts']} rules accept something)",
                expected="the cluster's networks accepted as a whole",
                cause="if the random high ports of NCCL's bootstrap are not among what is accepted, jobs hang at their start",
                fix=f"{_list_command(policy['where'])}; accept the cluster's networks as sources",
            )
        )
    if firewall["problem"]:
        findings.append(
            Finding(
                id="firewall_unread",
                severity="notice",
                node=name,
                subject="firewall",
                evidence=firewall["problem"],
                expected="the packet filter's rules",
                cause="only root may read them",
                fix="-e diagnose_become=true, with a user that may become root",
            )
        )
    return findings


def _what_it_hits(rule: t.Mapping[str, t.Any], first: int, last: int) -> str:
    """What of a collective's traffic the rule takes, "" where it takes none or only some senders'."""
    if rule["narrow"] or "lo" in rule["interfaces"]:
        return ""
    ports = rule["ports"]
    if rule["protocol"] == "udp" and any(low <= ROCE_PORT <= high for low, high in ports):
        return "RoCE (UDP 4791)"
    if rule["protocol"] == "tcp" and any(low <= last and high >= first for low, high in ports):
        return f"TCP to ports of the ephemeral range ({first} to {last})"
    return ""


def _list_command(where: str) -> str:
    kind, _unused, rest = where.partition(" ")
    return f"nft list chain {rest}" if kind == "nft" else f"iptables -S {rest}"


# ---- shared memory


def _shm(name: str, state: State) -> list[Finding]:
    shm, gpus = state["shm"], len(state["gpus"].get("gpus", []))
    needed = SHM_BASE + SHM_EACH_GPU * max(gpus, 1)
    if shm is None or (shm["bytes"] >= needed and shm["free_bytes"] >= needed // 2):
        return []
    full = shm["bytes"] >= needed
    return [
        Finding(
            id="shm_full" if full else "shm_small",
            severity="warning",
            node=name,
            subject="/dev/shm",
            evidence=f"{shm['free_bytes'] // MIB} MiB of {shm['bytes'] // MIB} MiB are free",
            expected=f"at least {needed // MIB} MiB for {max(gpus, 1)} rank(s)",
            cause="segments of dead processes fill it" if full else "a container's default of 64 MiB, or a small tmpfs",
            fix="ls -la /dev/shm; rm what belongs to no running process"
            if full
            else "docker run --shm-size=16g or --ipc=host; on a host: mount -o remount,size=50% /dev/shm",
        )
    ]


# ---- interfaces


def _interfaces(states: t.Mapping[str, State]) -> list[Finding]:
    """Interfaces by which no other node is reached though NCCL may take them: one address on several nodes."""
    owners: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for name, state in states.items():
        for link in state["interfaces"]:
            for address in link["addresses"]:
                plain = address.split("/")[0]
                if link["up"] and link["name"] != "lo" and ":" not in plain:
                    owners[plain][name] = link["name"]
    by_link: dict[str, tuple[list[str], set[str]]] = {}
    for address, having in owners.items():
        if len(having) > 1:
            for node, link in having.items():
                addresses, nodes = by_link.setdefault(link, ([], set()))
                nodes.add(node)
                if address not in addresses:
                    addresses.append(address)
    findings = []
    for link, (addresses, nodes) in by_link.items():
        first = [node for node in nodes if _first_choice(states[node]) == link]
        findings.append(
            Finding(
                id="interface_misleads",
                severity="warning" if first else "notice",
                node="",
                subject=link,
                evidence=f"{listed(addresses)} is the address of {link} on {len(nodes)} nodes ({listed(sorted(nodes))})"
                + (f", and NCCL's first choice on {len(first)} of them" if first else ""),
                expected="an address of its own on each node, for every interface that collectives may use",
                cause="a bridge or NAT of each node (docker0, virbr0, cni0): no other node is reached by it, so a bootstrap by it hangs",
                fix=f"NCCL_SOCKET_IFNAME=^{link},lo (the role nccl_env writes it: gpufabric_control_network); for Gloo GLOO_SOCKET_IFNAME",
            )
        )
    return findings


def _first_choice(state: State) -> str:
    """The interface that NCCL takes for its bootstrap when nothing is set: the first one up with an address, but for PASSED_OVER."""
    usable = [
        link["name"]
        for link in state["interfaces"]
        if link["up"]
        and any(not a.startswith(("fe80", "169.254.")) for a in link["addresses"])
        and link["name"] != "lo"
    ]
    infiniband = [name for name in usable if name.startswith("ib")]
    others = [name for name in usable if not name.startswith(PASSED_OVER)]
    return str((infiniband or others or usable or [""])[0])


# ---- clocks and versions


def _clocks(states: t.Mapping[str, State]) -> list[Finding]:
    told = {name: state["clock"]["synchronized"] for name, state in states.items()}
    drifting = sorted(name for name, kept in told.items() if kept is False)
    if not drifting:
        return []
    alone = len(drifting) == 1
    return [
        Finding(
            id="clock_unsynchronized",
            severity="notice",
            node=drifting[0] if alone else "",
            subject="clock",
            evidence=f"no time service keeps the clock of {listed(drifting)}",
            expected="NTPSynchronized=yes in timedatectl show",
            cause="chronyd or systemd-timesyncd does not run, or reaches no server",
            fix="systemctl enable --now chrony; chronyc sources",
        )
    ]


VERSIONS = {
    "driver": (
        "GPU driver",
        "warning",
        "apt-cache policy or dnf list of the driver's packages on both; install one version",
    ),
    "cuda": ("CUDA version of the driver", "notice", "one driver version on all nodes"),
    "toolkit": ("CUDA toolkit", "notice", "one toolkit on all nodes, or jobs in containers"),
    "kernel": ("kernel", "notice", "one kernel on all nodes: apt install or dnf install of one version, and a reboot"),
}


def _versions(states: t.Mapping[str, State]) -> list[Finding]:
    """Nodes whose version is not most nodes'; without a majority, all versions in one finding."""
    findings = []
    for key, (what, severity, fix) in VERSIONS.items():
        have = {name: state["versions"][key] for name, state in states.items() if state["versions"][key]}
        if len(set(have.values())) < 2 or (key == "cuda" and _differ(states, "driver")):
            continue
        usual = majority(have.values())
        odd = {name: version for name, version in have.items() if usual and version != usual[0]}
        by_version = {v: sorted(n for n, has in have.items() if has == v) for v in sorted(set(have.values()))}
        shown = "; ".join(f"{version} on {listed(names)}" for version, names in by_version.items())
        for node in odd or [""]:
            findings.append(
                Finding(
                    id=f"mixed_{key}",
                    severity=severity,
                    node=node,
                    subject=what,
                    evidence=f"{have[node]}" if node else shown,
                    expected=f"{usual[0]}, as on {usual[1]} of {usual[2]} nodes"
                    if usual
                    else "one version on all nodes",
                    cause="nodes were installed or updated at different times",
                    fix=fix,
                )
            )
    return findings


def _differ(states: t.Mapping[str, State], key: str) -> bool:
    return len({state["versions"][key] for state in states.values() if state["versions"][key]}) > 1
