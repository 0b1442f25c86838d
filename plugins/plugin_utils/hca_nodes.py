# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges a node's HCAs as a set: those that are missing, those left out, its firmware and RDMA software."""

from __future__ import annotations

import collections
import fnmatch
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import natural
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed, majority
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import (
    Observation,
    Port,
    Selection,
    Settings,
)

#: what a node without a vendor's stack has
INBOX = "inbox"


def judge_presence(nodes: t.Mapping[str, Observation], selection: Selection, settings: Settings) -> list[Finding]:
    """Missing compute HCAs, each by the name that its peers give it; wrong counts that no missing one explains."""
    findings = []
    expected_count = int(settings.get("rdma_expected_hcas") or 0)
    owners = _owners(selection)
    expected = {rail for rail, having in owners.items() if len(having) * 2 >= len(nodes)}
    for node, observed in nodes.items():
        have = selection.compute[node]
        count = len({port.hca["name"] for port in have})
        if not have:
            findings.append(_none_at_all(node, observed, selection, expected_count))
            continue
        missing = _missing_devices(expected, have)
        if _other_names(have, missing, expected):
            findings.append(
                _odd_names(node, have, missing or sorted({_device(port.rail) for port in have}, key=natural))
            )
        elif missing and count != expected_count:
            findings += [_missing(node, rail, owners, selection, observed) for rail in missing]
            count += len(missing)
        if expected_count and count != expected_count:
            findings.append(_wrong_count(node, have, expected_count))
    return findings + _left_out(selection)


def _owners(selection: Selection) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = collections.defaultdict(list)
    for node, ports in selection.compute.items():
        for port in ports:
            owners[port.rail].append(node)
    return owners


def _device(rail: str) -> str:
    return rail.split("/")[0]


def _missing_devices(expected: t.Collection[str], have: t.Sequence[Port]) -> list[str]:
    """What a node lacks: HCAs by name, however many rails they have; a single port only where its HCA is there."""
    own = {port.rail for port in have}
    devices = {_device(rail) for rail in own}
    lacking = {_device(rail) if _device(rail) not in devices else rail for rail in expected if rail not in own}
    return sorted(lacking, key=natural)


def _other_names(have: t.Sequence[Port], missing: t.Sequence[str], expected: t.Collection[str]) -> bool:
    """Whether a node names its HCAs by another scheme: by places they are its peers' HCAs, or as many under no known name."""
    names = {str(port.hca["name"]) for port in have}
    rails = {_device(port.rail) for port in have}
    if names.isdisjoint(rails):
        return True
    return len(missing) == len(names) and {_device(rail) for rail in expected}.isdisjoint(names)


def _odd_names(node: str, have: t.Sequence[Port], missing: t.Sequence[str]) -> Finding:
    names = listed([port.hca["name"] for port in have])
    return Finding(
        id="hca_names_differ",
        severity="warning",
        node=node,
        subject="HCA names",
        evidence=f"its {len(have)} HCAs are called {names}, and its peers' {listed(missing)}",
        expected="one naming scheme on all nodes",
        cause="udev's persistent names come with rdma-core: the module was loaded before the package was installed",
        fix="reboot the node, or unload and load mlx5_ib; address HCAs by rule until then",
    )


def _none_at_all(node: str, observed: Observation, selection: Selection, expected_count: int) -> Finding:
    left_out = selection.left_out[node]
    if observed["unbound"]:
        function = observed["unbound"][0]
        evidence = (
            f"{len(observed['unbound'])} HCA(s) on the PCI bus (first: {function['address']}, driver "
            f"{function['driver'] or 'none'}), and /sys/class/infiniband holds no compute HCA"
        )
        cause = "mlx5_ib is not loaded; on Ubuntu it is in linux-modules-extra-$(uname -r)"
        fix = "modprobe mlx5_ib, and install linux-modules-extra-$(uname -r) if that fails"
    elif left_out:
        reasons = [f"{port.subject}: {why}" for port, why in left_out]
        evidence = f"none of its RDMA ports is a compute port ({'; '.join(reasons[:3])})"
        cause = "the rules leave out every port of the node"
        fix = "correct rdma_allowed_drivers or the rdma_select_ variables"
    else:
        evidence = "/sys/class/infiniband is absent or empty, and no known HCA is on the PCI bus"
        cause = "the HCAs are not seated, not powered or hidden from this machine, or it has no RDMA network"
        fix = "lspci -nn | grep -i -e mellanox -e 15b3; leave the role rdma out for nodes without an RDMA network"
    return Finding(
        id="hca_none",
        severity="error",
        node=node,
        subject="RDMA",
        evidence=evidence,
        expected=f"{expected_count or len(selection.rails) or 'one or more'} compute HCAs",
        cause=cause,
        fix=fix,
    )


def _missing(
    node: str, what: str, owners: t.Mapping[str, t.Sequence[str]], selection: Selection, observed: Observation
) -> Finding:
    """what: an HCA's name, or the rail of a single port."""
    rail = next(rail for rail in owners if what in (rail, _device(rail)))
    peers = owners[rail]
    model = next(port for port in selection.compute[peers[0]] if port.rail == rail)
    place = model.hca["pcie"]["address"] if model.hca["pcie"] else ""
    bare = next((f for f in observed["unbound"] if place and f["address"] == place), None)
    barred = next((why for port, why in selection.left_out[node] if what in (port.rail, _device(port.rail))), "")
    if bare:
        cause = f"its PCI function {place} is there with driver {bare['driver'] or 'none'}, without an RDMA device"
        fix = "modprobe mlx5_ib; then dmesg | grep -i mlx5"
    elif barred:
        cause = f"a device of that name is there, but {barred}"
        fix = "remove the device that took its place, and load the HCA's own driver"
    elif place:
        cause = f"nothing is at {place}, where its peers have it: fallen off the bus, disabled or removed"
        fix = f"lspci -s {place}; dmesg | grep -i -e mlx5 -e pcieport; then power-cycle or reseat"
    elif model.hca["driver"] == "rdma_rxe":
        cause = "the software device was deleted; its interface may work on"
        fix = f"rdma link add {model.hca['name']} type rxe netdev {model.port['netdev']}"
    else:
        cause = "the device is gone, its interface may work on"
        fix = "dmesg | grep -i -e infiniband -e rdma; reload the driver"
    return Finding(
        id="hca_missing",
        severity="error",
        node=node,
        subject=what,
        evidence=f"no {'port' if '/' in what else 'RDMA device'} {what} in /sys/class/infiniband, while {len(peers)} peer(s)"
        f" have it ({listed(peers, 3)})",
        expected=f"{what}, as on its peers",
        cause=cause,
        fix=fix,
    )


def _wrong_count(node: str, have: t.Sequence[Port], expected: int) -> Finding:
    names = sorted({port.hca["name"] for port in have}, key=natural)
    return Finding(
        id="hca_count",
        severity="error" if len(names) < expected else "warning",
        node=node,
        subject="RDMA",
        evidence=f"{len(names)} compute HCAs: {listed(names, 12)}",
        expected=f"rdma_expected_hcas is {expected}",
        cause="the rules take in an HCA too many"
        if len(names) > expected
        else "an HCA is gone on every node, or the rules leave one out",
        fix="lspci -d 15b3: ; rdma link; then correct the rdma_select_ variables or rdma_expected_hcas",
    )


def _left_out(selection: Selection) -> list[Finding]:
    """Ports that are not judged, with the reason. Those of a node without any compute port are its error's already."""
    return [
        Finding(
            id="hca_left_out",
            severity="notice",
            node=node,
            subject=port.subject,
            evidence=why,
            expected="a compute port, if training uses it",
            cause="storage and front-end ports carry no collectives, so they are not judged",
            fix="name it in rdma_select_names if it is one",
        )
        for node, left in selection.left_out.items()
        if selection.compute[node]
        for port, why in left
    ]


def judge_software(nodes: t.Mapping[str, Observation], selection: Selection, settings: Settings) -> list[Finding]:
    """Firmware and RDMA software against what is expected, else against the majority; GPUDirect; idle adapters.

    An adapter without an RDMA device where peers have a compute HCA is missing already, and not named again.
    """
    findings = _firmware(selection, settings)
    findings += _stacks(nodes, selection, settings)
    of_peers = {
        port.hca["pcie"]["address"] for ports in selection.compute.values() for port in ports if port.hca["pcie"]
    }
    for node, observed in nodes.items():
        if selection.compute[node]:
            findings += _modules(node, observed, settings)
            findings += _gpudirect(node, observed)
            findings += [_unbound(node, f) for f in observed["unbound"] if f["address"] not in of_peers]
        findings += [_unreadable(node, problem) for problem in observed["problems"]]
    return findings


def _firmware(selection: Selection, settings: Settings) -> list[Finding]:
    expected = [str(version) for version in settings.get("rdma_expected_firmware") or []]
    hcas = [
        (node, hca)
        for node, ports in selection.compute.items()
        for hca in {port.hca["name"]: port.hca for port in ports}.values()
        if hca["fw_ver"]
    ]
    of_board: dict[str, list[str]] = collections.defaultdict(list)
    for _node, hca in hcas:
        of_board[hca["board_id"]].append(hca["fw_ver"])
    usual = {board: majority(versions) for board, versions in of_board.items()}
    wrong: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    for node, hca in hcas:
        common = usual[hca["board_id"]]
        if expected and hca["fw_ver"] not in expected:
            wrong[node, hca["fw_ver"], f"rdma_expected_firmware: {listed(expected)}"].append(hca["name"])
        elif not expected and common and hca["fw_ver"] != common[0]:
            told = f"{common[0]}, as on {common[1]} of {common[2]} HCAs of board {hca['board_id'] or '(unnamed)'}"
            wrong[node, hca["fw_ver"], told].append(hca["name"])
    return [
        Finding(
            id="hca_firmware",
            severity="error" if expected else "warning",
            node=node,
            subject=listed(names, 12),
            evidence=f"firmware {version}",
            expected=told,
            cause="the node was not updated with the others, or its update waits for a reset",
            fix="mlxfwmanager --online -u, or the vendor's image; then mlxfwreset -d DEVICE reset or a power cycle",
        )
        for (node, version, told), names in wrong.items()
    ]


def _stacks(nodes: t.Mapping[str, Observation], selection: Selection, settings: Settings) -> list[Finding]:
    """The RDMA stack as installed: against rdma_expected_stack, else the majority; and whether its modules run."""
    expected = str(settings.get("rdma_expected_stack") or "")
    stacks = {node: nodes[node]["stack"]["vendor_stack"] or INBOX for node in nodes if selection.compute[node]}
    common = majority(stacks.values())
    findings = []
    for node, stack in stacks.items():
        if expected and not fnmatch.fnmatchcase(stack, expected):
            findings.append(_stack(node, stack, expected, "rdma_expected_stack", "error"))
        elif not expected and common and stack != common[0]:
            told = f"as on {common[1]} of {common[2]} nodes"
            findings.append(_stack(node, stack, common[0], told, "warning"))
        module = nodes[node]["stack"]["mlx5_core"]
        if stack != INBOX and module["loaded"] and not module["version"]:
            findings.append(_other_modules(node, stack))
    return findings


def _stack(node: str, stack: str, wanted: str, told: str, severity: str) -> Finding:
    return Finding(
        id="rdma_stack",
        severity=severity,
        node=node,
        subject="RDMA software",
        evidence=f"RDMA stack: {stack}",
        expected=f"{wanted}, {told}",
        cause="mixed DOCA-OFED, MLNX_OFED and inbox stacks differ in defaults, tools and sysfs attributes",
        fix=f"install {wanted} on {node}; this role installs nothing over a vendor's stack",
    )


def _other_modules(node: str, stack: str) -> Finding:
    return Finding(
        id="rdma_stack_not_running",
        severity="warning",
        node=node,
        subject="mlx5_core",
        evidence=f"{stack} is installed, and the loaded mlx5_core is the kernel's own",
        expected=f"the modules of {stack}",
        cause="the kernel was updated and the stack's modules were not built for it, or openibd did not load them",
        fix="dkms status; dkms autoinstall; /etc/init.d/openibd restart",
    )


def _modules(node: str, observed: Observation, settings: Settings) -> list[Finding]:
    """Modules that are wanted and not live. Drivers of HCAs are left out: that their devices are there shows them."""
    live = set(observed["stack"]["modules"])
    wanted = [str(name).replace("-", "_") for name in settings.get("rdma_modules") or []]
    absent = [name for name in wanted if not name.startswith("mlx") and name not in live]
    if not absent:
        return []
    return [
        Finding(
            id="rdma_modules_absent",
            severity="warning",
            node=node,
            subject=listed(absent, 12),
            evidence="not in /sys/module",
            expected="loaded, as rdma_modules says",
            cause="it was not loaded yet, is blacklisted, or this kernel lacks it; ibstat needs ib_umad, NCCL ib_uverbs",
            fix=f"modprobe -a {' '.join(absent)}",
        )
    ]


def _gpudirect(node: str, observed: Observation) -> list[Finding]:
    seen = observed["stack"]["gpudirect"]
    if not seen or not seen["driver"]:
        return []
    if seen["peermem"] or (seen["open_driver"] and seen["dmabuf"] is not False):
        return []
    lacks = "the GPU driver is not the open one" if not seen["open_driver"] else "the kernel has no ib_umem_dmabuf_get"
    return [
        Finding(
            id="gpudirect_unavailable",
            severity="warning",
            node=node,
            subject="GPUDirect RDMA",
            evidence=f"no peer-memory client is registered, and DMA-BUF is out because {lacks}",
            expected="nvidia_peermem, or DMA-BUF with the open GPU driver",
            cause="without either every byte between GPU and HCA takes a detour through host memory",
            fix="modprobe nvidia_peermem, or install the open kernel modules of the GPU driver",
        )
    ]


def _unbound(node: str, function: t.Mapping[str, str]) -> Finding:
    return Finding(
        id="hca_unbound",
        severity="warning",
        node=node,
        subject=function["address"],
        evidence=f"PCI function {function['vendor']}:{function['device']} with driver {function['driver'] or 'none'}"
        " has no RDMA device",
        expected="an RDMA device of its own",
        cause="its driver is not loaded, refused it, or lent it to a virtual machine (vfio-pci)",
        fix=f"dmesg | grep {function['address']}; modprobe mlx5_ib",
    )


def _unreadable(node: str, problem: t.Mapping[str, t.Any]) -> Finding:
    return Finding(
        id=str(problem.get("id", "rdma_unreadable")),
        severity="warning",
        node=node,
        subject=str(problem.get("subject", "RDMA")),
        evidence=str(problem.get("evidence", "")),
        expected="an answer",
        cause="this part of the node could not be read, so it was not judged",
    )
