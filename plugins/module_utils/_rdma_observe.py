# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node's RDMA side, whole: sysfs first, the tools as witnesses beside it. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _netdevs, _pci_path, _rdma_sysfs, _rdma_witnesses
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_stack import read_stack
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def observe_rdma(
    fs: RootedFs, tools: Tools, witnesses: t.Sequence[str] = (), counters: str = "physical", timeout: float = 20.0
) -> dict[str, t.Any]:
    """Everything about one node that the judges need, as plain data; what could not be read is under ``problems``.

    hcas: see _rdma_sysfs.read_devices(), each with ``gpu`` (the nearest GPUs), and each port with what sysfs lacks:
    ``active_mtu`` and ``max_mtu`` in bytes (ibv_devinfo), ``peer`` as {switch, port, by} (iblinkinfo, LLDP), ``cable``
    (mlxlink's link and module data); netdevs: {name: _netdevs.describe()} of the ports' interfaces;
    gpus: [{address, maker}]; unbound: functions of HCA makers without an RDMA device; witnesses: _rdma_witnesses.ask();
    neighbours: ARP entries on the ports' interfaces; stack: _rdma_stack.read_stack().
    """
    devices, problems = _rdma_sysfs.read_devices(fs, counters)
    said = _rdma_witnesses.ask(tools, witnesses, timeout, devices)
    functions = _pci_path.functions(fs)
    gpus = _pci_path.gpus(functions)
    _add_gpus(fs, devices, gpus)
    _add_what_sysfs_lacks(devices, said)
    netdevs, problem = _netdevs_of(fs, tools, devices)
    if problem:
        problems.append({"id": "addresses_unreadable", "subject": "ip address", "evidence": problem})
    return {
        "hcas": devices,
        "netdevs": netdevs,
        "gpus": gpus,
        "unbound": _unbound(functions, devices),
        "witnesses": said,
        "neighbours": _netdevs.neighbours(fs, set(netdevs)),
        "stack": read_stack(fs, tools, bool(gpus)),
        "problems": problems,
    }


def _add_gpus(fs: RootedFs, devices: t.Sequence[dict[str, t.Any]], gpus: t.Sequence[t.Mapping[str, str]]) -> None:
    """Set ``gpu`` of each device: {relation, addresses} of the nearest GPUs, None without PCI or GPUs."""
    places = [(g["address"], _pci_path.path_of(fs, g["address"]), _pci_path.numa_node(fs, g["address"])) for g in gpus]
    for device in devices:
        path = device["pcie"]["path"] if device["pcie"] else []
        device["gpu"] = _pci_path.nearest(path, device["numa_node"], places) if path else None


def _add_what_sysfs_lacks(devices: t.Sequence[dict[str, t.Any]], said: t.Mapping[str, t.Mapping[str, t.Any]]) -> None:
    """Set ``active_mtu``, ``max_mtu``, ``peer`` and ``cable`` of each port from the witnesses that know them."""
    of_port: dict[str, t.Mapping[str, t.Mapping[str, t.Any]]] = {name: answer["ports"] for name, answer in said.items()}
    by_netdev = {
        seen["interface"]: {"switch": seen["switch"] or seen["chassis_id"], "port": seen["port"], "by": "LLDP"}
        for seen in said.get("lldp", {}).get("neighbours", [])
    }
    for device in devices:
        for port in device["ports"]:
            key = f"{device['name']}/{port['port']}"
            told = of_port.get("ibv_devinfo", {}).get(key, {})
            port["active_mtu"] = told.get("active_mtu")
            port["max_mtu"] = told.get("max_mtu")
            port["peer"] = of_port.get("iblinkinfo", {}).get(key, {}).get("peer") or by_netdev.get(port["netdev"])
            port["cable"] = of_port.get("mlxlink", {}).get(key, {}).get("cable")


def _netdevs_of(
    fs: RootedFs, tools: Tools, devices: t.Sequence[t.Mapping[str, t.Any]]
) -> tuple[dict[str, dict[str, t.Any]], str]:
    names = {port["netdev"] for device in devices for port in device["ports"] if port["netdev"]}
    if not names:
        return {}, ""
    addresses, problem = _netdevs.read_addresses(tools)
    return {name: _netdevs.describe(fs, name, addresses.get(name, [])) for name in sorted(names)}, problem


def _unbound(
    functions: t.Iterable[t.Mapping[str, str]], devices: t.Iterable[t.Mapping[str, t.Any]]
) -> list[t.Mapping[str, str]]:
    """HCAs on the bus that no RDMA device belongs to: their RDMA driver is not loaded, or refused them."""
    bound = {device["pcie"]["address"] for device in devices if device["pcie"]}
    return [
        function
        for function in functions
        if function["vendor"] in _pci_path.HCA_VENDORS
        and function["class"].startswith(_pci_path.HCA_CLASSES)
        and function["address"] not in bound
    ]
