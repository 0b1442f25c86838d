# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges each compute port: state, GIDs, LIDs, rate, link layer, MTU, PCIe link; against what is expected, else its peers."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import majority
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Port, Selection, Settings

#: LIDs that no subnet manager gave: 0, and the permissive one (InfiniBand specification, 4.1.3)
NO_LID = (None, 0, 0xFFFF)

V = t.TypeVar("V", int, float, str)

NIL_GUID = "0000:0000:0000:0000"

#: mlxconfig's numbers for link types
LINK_TYPES = {"InfiniBand": 1, "Ethernet": 2}

#: PCIe bandwidth below this share of what peers have counts as degraded; encodings differ by less
PCIE_TOLERANCE = 0.95


def judge_ports(selection: Selection, settings: Settings) -> list[Finding]:
    """Findings of all compute ports. A port that is not active has that one finding, since all else follows from it."""
    ports = [port for ports in selection.compute.values() for port in ports]
    alive = [port for port in ports if port.active]
    findings = [_not_active(port) for port in ports if not port.active]
    findings += [finding for finding in map(_identity, alive) if finding] if _wants_gids(settings) else []
    findings += _link_layers(alive, str(settings.get("rdma_expected_link_layer") or ""))
    findings += _boards(ports)
    findings += [_runs_subnet_manager(port) for port in alive if _is_managed_here(port)]
    findings += _rates(alive, float(settings.get("rdma_expected_rate_gbps") or 0))
    findings += _mtus(alive, settings)
    findings += _pcie(ports, settings)
    return findings


def _wants_gids(settings: Settings) -> bool:
    return bool(settings.get("rdma_require_routable_gid", True))


# ---- state


def _not_active(port: Port) -> Finding:
    state, physical = port.port["state"] or "unreadable", port.port["phys_state"] or "unreadable"
    cause, fix = _why_not_active(port)
    return Finding(
        id="hca_port_down" if state != "INIT" else "hca_port_no_sm",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"state {state}, physical state {physical} (sysfs)",
        expected="state ACTIVE, physical state LinkUp",
        cause=cause,
        fix=fix,
    )


def _why_not_active(port: Port) -> tuple[str, str]:
    netdev = port.port["netdev"]
    device = f"{port.hca['name']} -p {port.port['port']}"
    if port.port["state"] in ("INIT", "ARMED"):
        return (
            f"the subnet manager has not set the port up (LID {port.port['lid']})",
            "start opensm or look at its log; for a virtual function set virt_enabled 2 and its GUID there",
        )
    if netdev and port.netdev.get("admin_up") is False:
        return f"the interface {netdev} is administratively down", f"ip link set {netdev} up"
    if port.port["phys_state"] == "Disabled":
        return "the port is disabled, by an administrator or in firmware", f"mlxlink -d {device} --port_state UP"
    if port.port["phys_state"] == "Polling":
        return (
            "no carrier: cable, optics, or the switch port at the other end",
            f"mlxlink -d {device} -m; then reseat or swap the cable, and look at the switch port",
        )
    return "the link does not train", f"mlxlink -d {device}; then reseat or swap the cable"


def _identity(port: Port) -> Finding | None:
    """An address that peers can reach: a LID on InfiniBand, a routable RoCE v2 GID on Ethernet."""
    if port.port["link_layer"] == "InfiniBand":
        return _lid(port) or _nil_guid(port)
    return _gid(port) if port.roce else None


def _lid(port: Port) -> Finding | None:
    if port.port["lid"] not in NO_LID and port.port["sm_lid"] not in NO_LID:
        return None
    return Finding(
        id="hca_port_no_sm",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"state ACTIVE with LID {port.port['lid']} and SM LID {port.port['sm_lid']}",
        expected="a LID and a subnet manager's LID",
        cause="no subnet manager has configured the port",
        fix="start opensm on this subnet, or look at the log of the one that should run",
    )


def _nil_guid(port: Port) -> Finding | None:
    if port.port["port_guid"] not in ("", NIL_GUID):
        return None
    return _no_gid(port, f"port GUID {port.port['port_guid'] or 'unset'}", "the virtual function was given no GUID")


def _gid(port: Port) -> Finding | None:
    gids = port.port["gids"]
    if not gids:
        cause = (
            f"the interface {port.port['netdev'] or 'of the port'} is in another network namespace, or has no GID yet"
        )
        return _no_gid(port, "the GID table is empty (port GUID 0)", cause)
    routable = [gid for gid in gids if not gid["gid"].startswith("fe80:")]
    if any(gid["type"] in ("RoCE v2", "") for gid in routable):
        return None
    netdev = port.port["netdev"]
    if routable:
        return _no_gid(port, f"its routable GIDs are {routable[0]['type']} only", "RoCE v2 is switched off")
    if not port.addresses:
        evidence = f"its {len(gids)} GID(s) are link-local, and {netdev or 'its interface'} has no address"
        return _no_gid(port, evidence, f"the address of {netdev or 'its interface'} is lost or was never set")
    evidence = f"{netdev} has {port.addresses[0]}, and the table holds {len(gids)} link-local GID(s) only"
    return _no_gid(port, evidence, "the kernel did not take the address into the GID table")


def _no_gid(port: Port, evidence: str, cause: str) -> Finding:
    netdev = port.port["netdev"]
    return Finding(
        id="hca_gid_missing",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"state ACTIVE, but {evidence}",
        expected="a routable RoCE v2 GID" if port.ethernet else "a port GUID",
        cause=cause,
        fix=f"ip address add ADDRESS/PREFIX dev {netdev}; make it last in the network configuration"
        if netdev
        else "show_gids; ip link; bring the interface of the port into this namespace",
    )


# ---- rate and link layer


def _by_rail(ports: t.Iterable[Port]) -> dict[str, list[Port]]:
    rails: dict[str, list[Port]] = collections.defaultdict(list)
    for port in ports:
        rails[port.rail].append(port)
    return rails


def _reference(
    rail: str, values: t.Sequence[V], of_all: tuple[V, int, int] | None, expected: V | None, variable: str
) -> tuple[V, str]:
    """(what the ports of a rail are held against, why it is that).

    In this order: what the user expects; what most of the rail's nodes have; what most compute ports have (a single
    node, or two that disagree); else the greatest, which is said to be a guess.
    """
    if expected:
        return expected, variable
    common = majority(values) if len(values) > 1 else None
    if common:
        return common[0], f"as on {common[1]} of {common[2]} nodes of rail {rail}"
    if of_all:
        doubt = f"; the nodes of rail {rail} disagree" if len(values) > 1 else ""
        return of_all[0], f"as on {of_all[1]} of {of_all[2]} compute ports{doubt}"
    return max(values), f"as its peers on rail {rail}, of which there are too few to say which one is odd"


def _deviations(
    ports: t.Sequence[Port], value: t.Callable[[Port], V | None], expected: V | None, variable: str
) -> t.Iterator[tuple[Port, V, V, str]]:
    """(port, what it has, what it should have, why that) of every port that differs from its reference."""
    known = [(port, have) for port in ports for have in [value(port)] if have]
    of_all = majority(have for _port, have in known)
    rails: dict[str, list[tuple[Port, V]]] = collections.defaultdict(list)
    for port, have in known:
        rails[port.rail].append((port, have))
    for rail, members in rails.items():
        wanted, told = _reference(rail, [have for _port, have in members], of_all, expected, variable)
        for port, have in members:
            if have != wanted:
                yield port, have, wanted, told


def _link_layers(ports: t.Sequence[Port], expected: str) -> list[Finding]:
    deviations = _deviations(ports, lambda port: str(port.port["link_layer"]), expected, "rdma_expected_link_layer")
    return [
        Finding(
            id="hca_link_layer",
            severity="error",
            node=port.node,
            subject=port.subject,
            evidence=f"link layer {have}",
            expected=f"{wanted}, {told}",
            cause="the port's link type is set in firmware (VPI), or the adapter is another one",
            fix=f"mlxconfig -d {port.hca['name']} set LINK_TYPE_P{port.port['port']}={LINK_TYPES.get(wanted, 1)}",
        )
        for port, have, wanted, told in deviations
    ]


def _boards(ports: t.Iterable[Port]) -> list[Finding]:
    """HCAs of another model than most of their rail have."""
    findings = []
    for rail, members in _by_rail(ports).items():
        common = majority(port.hca["board_id"] for port in members)
        findings += [
            Finding(
                id="hca_board",
                severity="warning",
                node=port.node,
                subject=port.hca["name"],
                evidence=f"board {port.hca['board_id']} ({port.hca['hca_type'] or 'type unknown'})",
                expected=f"board {common[0]}, as on {common[1]} of {common[2]} nodes of rail {rail}",
                cause="another adapter model was fitted, with firmware and limits of its own",
                fix="fit the model of the other nodes, or give the node another rdma_group",
            )
            for port in members
            if common and common[0] and port.hca["board_id"] not in ("", common[0])
        ]
    return findings


def _is_managed_here(port: Port) -> bool:
    lid = port.port["lid"]
    return bool(port.port["link_layer"] == "InfiniBand" and lid not in NO_LID and lid == port.port["sm_lid"])


def _runs_subnet_manager(port: Port) -> Finding:
    return Finding(
        id="hca_runs_sm",
        severity="notice",
        node=port.node,
        subject=port.subject,
        evidence=f"its LID {port.port['lid']} is the subnet manager's",
        expected="a subnet manager on a node that computes nothing",
        cause="SHARP refuses a port that the subnet manager uses, and load on the node delays its sweeps",
        fix="run opensm on a management node",
    )


def _rates(ports: t.Sequence[Port], expected: float) -> list[Finding]:
    """Ports slower than their reference; a faster one is no fault."""
    deviations = _deviations(ports, lambda port: port.port["rate_gbps"], expected, "rdma_expected_rate_gbps")
    return [_slow(port, wanted, told) for port, have, wanted, told in deviations if have < wanted]


def _slow(port: Port, wanted: float, told: str) -> Finding:
    return Finding(
        id="hca_rate",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"rate {port.port['rate_text']}",
        expected=f"{wanted:g} Gb/s, {told}",
        cause="the link trained at a lower speed or with fewer lanes: cable, optics, or a setting at the switch port",
        fix=f"mlxlink -d {port.hca['name']} -p {port.port['port']} -m -c; then reseat or swap the cable",
    )


# ---- MTU


def _mtus(ports: t.Sequence[Port], settings: Settings) -> list[Finding]:
    """One finding for a port whose MTU differs: the interface's on Ethernet, else what RDMA uses (active_mtu)."""
    of_netdev = int(settings.get("rdma_expected_mtu") or 0)
    of_rdma = int(settings.get("rdma_expected_active_mtu") or 0)
    interfaces = _deviations(
        [port for port in ports if port.ethernet], lambda port: port.netdev.get("mtu"), of_netdev, "rdma_expected_mtu"
    )
    findings = [_odd_mtu(port, have, "MTU", wanted, told) for port, have, wanted, told in interfaces]
    named = {(f.node, f.subject) for f in findings}
    rest = [port for port in ports if port.port["active_mtu"] and (port.node, port.subject) not in named]
    active = _deviations(rest, lambda port: port.port["active_mtu"], of_rdma, "rdma_expected_active_mtu")
    findings += [_odd_mtu(port, have, "active MTU", wanted, told) for port, have, wanted, told in active]
    if not of_netdev and not of_rdma:
        named = {(f.node, f.subject) for f in findings}
        findings += _small(port for port in rest if (port.node, port.subject) not in named)
    return findings


def _odd_mtu(port: Port, have: int, what: str, wanted: int, told: str) -> Finding:
    netdev = port.port["netdev"]
    return Finding(
        id="hca_mtu",
        severity="error",
        node=port.node,
        subject=port.subject,
        evidence=f"{what} {have}" + (f" on {netdev}" if what == "MTU" else f", of {port.port['max_mtu']} possible"),
        expected=f"{wanted}, {told}",
        cause="ends with different MTUs drop what the larger one sends, or fall back to smaller packets",
        fix=f"ip link set {netdev} mtu {wanted}; make it last in the network configuration"
        if netdev
        else "set the same MTU in the subnet manager's partition",
    )


def _small(ports: t.Iterable[Port]) -> list[Finding]:
    """Ports that agree on an active MTU below what they can do: said once, for all of them."""
    small = [port for port in ports if port.port["max_mtu"] and port.port["active_mtu"] < port.port["max_mtu"]]
    if not small:
        return []
    first = small[0]
    netdev = first.netdev.get("mtu")
    return [
        Finding(
            id="hca_mtu_small",
            severity="warning",
            node="",
            subject="MTU",
            evidence=f"{len(small)} compute ports use an active MTU of {first.port['active_mtu']} bytes"
            + (f" (their interfaces: {netdev})" if netdev else ""),
            expected=f"{first.port['max_mtu']}, which the ports can do; for RoCE an interface MTU of 4200 or more",
            cause="small packets cost bandwidth; RoCE takes the largest size below the interface's MTU",
            fix="raise the MTU on switches and interfaces alike; or say that it is wanted: rdma_expected_mtu",
        )
    ]


# ---- PCIe


def _pcie(ports: t.Sequence[Port], settings: Settings) -> list[Finding]:
    """HCAs whose PCIe link gives less than expected, than their peers have, or (alone) than they could do."""
    seen: set[tuple[str, str]] = set()
    rails: dict[str, list[tuple[Port, float]]] = collections.defaultdict(list)
    for port in ports:
        bandwidth = _bandwidth(port.hca["pcie"])
        if bandwidth and (port.node, port.hca["name"]) not in seen:
            seen.add((port.node, port.hca["name"]))
            rails[port.rail].append((port, bandwidth))
    findings = []
    below: list[Port] = []
    expected = _expected_pcie(settings)
    for rail, members in rails.items():
        common = majority(bandwidth for _port, bandwidth in members)
        for port, bandwidth in members:
            pcie = port.hca["pcie"]
            if expected:
                if bandwidth < expected[0] * PCIE_TOLERANCE:
                    findings.append(_narrow(port, expected[1], "error"))
            elif common and common[2] > 1 and bandwidth < common[0] * PCIE_TOLERANCE:
                findings.append(_narrow(port, f"what {common[1]} of {common[2]} nodes have on rail {rail}", "error"))
            elif bandwidth < (pcie["max_speed_gts"] or 0) * (pcie["max_width"] or 0) * PCIE_TOLERANCE:
                below.append(port)
    return findings + _below_own_maximum(below)


def _bandwidth(pcie: t.Mapping[str, t.Any] | None) -> float:
    """GT/s × lanes of the narrowest link on the way to the processor: the slot counts, not the card alone."""
    narrowest = pcie and pcie["narrowest"]
    return float(narrowest["speed_gts"] * narrowest["width"]) if narrowest else 0.0


def _expected_pcie(settings: Settings) -> tuple[float, str] | None:
    speed = float(settings.get("rdma_expected_pcie_gts") or 0)
    width = int(settings.get("rdma_expected_pcie_width") or 0)
    return (speed * width, f"{speed:g} GT/s x{width} (rdma_expected_pcie_gts, _width)") if speed and width else None


def _narrow(port: Port, expected: str, severity: str) -> Finding:
    pcie = port.hca["pcie"]
    slow = pcie["narrowest"]
    where = "its link" if slow["address"] == pcie["address"] else f"the link of the bridge {slow['address']} above it"
    return Finding(
        id="hca_pcie",
        severity=severity,
        node=port.node,
        subject=port.hca["name"],
        evidence=f"{where} runs at {slow['speed_gts']:g} GT/s x{slow['width']}; the HCA can do "
        f"{pcie['max_speed_gts'] or 0:g} GT/s x{pcie['max_width']}",
        expected=expected,
        cause="the link trained down, or the card sits in a smaller or older slot or behind a riser",
        fix=f"lspci -vv -s {slow['address']} | grep -e LnkCap -e LnkSta; then reseat the card or move it",
    )


def _below_own_maximum(ports: t.Sequence[Port]) -> list[Finding]:
    """HCAs below their own maximum like all their peers: the slots are what they are, said once a rail."""
    first: dict[str, Port] = {}
    for port in ports:
        first.setdefault(port.rail, port)
    return [
        _narrow(port, "the maximum of the HCA, if slot and riser allow it; its peers are alike", "notice")
        for port in first.values()
    ]
