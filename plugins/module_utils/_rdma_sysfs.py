# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every RDMA device and port as the kernel shows it in /sys/class/infiniband. PRIVATE to the collection.

Source: Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel. Nothing here needs a tool or root.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _pci_path
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

INFINIBAND = "/sys/class/infiniband"

EMPTY_GID = ":".join(["0000"] * 8)
MAPPED_IPV4 = "0000:0000:0000:0000:0000:ffff:"

#: Reading a GID table stops after this many empty slots in a row. The kernel fills the lowest free slot first, so a
#: gap this long means the end; Soft-RoCE has 1,024 slots, and each costs three system calls.
GID_GAP = 256

#: RDMA driver by the driver of the PCI function below it, where the two differ in name
RDMA_DRIVERS = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "hns3": "hns_roce_hw_v2",
    "cxgb4": "iw_cxgb4",
    "qede": "qedr",
    "mana": "mana_ib",
}

DEVICE_ATTRIBUTES = (
    "board_id",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "node_guid",
    "sys_image_guid",
    "node_desc",
    "node_type",
)

#: other spellings: ibsim says IB, and the attribute is absent on kernels before 2.6.37, which had InfiniBand only
LINK_LAYERS = {"IB": "InfiniBand", "": "InfiniBand"}

COUNTER_DIRECTORIES = ("counters", "hw_counters")


def read_devices(fs: RootedFs, counters: str = "physical") -> tuple[list[dict[str, t.Any]], list[dict[str, str]]]:
    """All RDMA devices, by name in natural order, and what could not be read ({id, subject, evidence}).

    counters: "none", "physical" (not of virtual functions: some answer each read with a line in the kernel log) or "all".
    A device: name, driver, rdma_driver, virtual (no hardware below it), vf, board_id, fw_ver, hca_type, hw_rev,
    node_guid, sys_image_guid, node_desc, node_type ("1: CA"), pcie (see _pci_path.describe(), None without a PCI
    function), numa_node, ports.
    """
    devices = []
    problems = []
    for name in sorted(fs.listdir(INFINIBAND), key=natural):
        device = _read_device(fs, name, counters)
        devices.append(device)
        if not device["ports"]:
            problems.append(
                {"id": "hca_unreadable", "subject": name, "evidence": f"{INFINIBAND}/{name}/ports is absent or empty"}
            )
    return devices, problems


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _read_device(fs: RootedFs, name: str, counters: str) -> dict[str, t.Any]:
    base = f"{INFINIBAND}/{name}"
    attributes = {key: fs.read_value(f"{base}/{key}") or "" for key in DEVICE_ATTRIBUTES}
    parent = fs.read_value(f"{base}/parent") or ""
    driver = _driver(fs, base, parent, attributes["node_desc"])
    address = _pci_address(fs, base)
    vf = bool(address) and fs.is_link(f"{_pci_path.DEVICES}/{address}/physfn")
    with_counters = counters == "all" or (counters == "physical" and not vf)
    numbers = sorted((n for n in fs.listdir(f"{base}/ports") if n.isdigit()), key=int)
    own_netdevs = _own_netdevs(fs, base)
    return {
        "name": name,
        "driver": driver,
        "rdma_driver": RDMA_DRIVERS.get(driver, driver),
        "virtual": not fs.exists(f"{base}/device"),
        "vf": vf,
        **attributes,
        "pcie": _pci_path.describe(fs, address) if address else None,
        "numa_node": _pci_path.numa_node(fs, address) if address else None,
        "ports": [_read_port(fs, base, int(n), parent, own_netdevs, with_counters) for n in numbers],
    }


def _driver(fs: RootedFs, base: str, parent: str, node_desc: str) -> str:
    """The driver's name, "" where the kernel gives no hint.

    Hardware: the link device/driver. Soft-RoCE has neither, but the attribute `parent` with its interface's name;
    Soft-iWARP's node description is fixed in the driver (node descriptions of others can be changed by anybody).
    """
    driver = fs.readlink(f"{base}/device/driver")
    if driver:
        return driver.rpartition("/")[2]
    if fs.exists(f"{base}/device"):
        return ""
    if parent or node_desc == "rxe":
        return "rdma_rxe"
    return "siw" if node_desc.startswith("Software iWARP") else ""


def _pci_address(fs: RootedFs, base: str) -> str:
    """The nearest PCI function above the device (a subfunction of mlx5 lies on the auxiliary bus), "" without one."""
    if not fs.exists(f"{base}/device"):
        return ""
    for part in reversed(fs.resolve(f"{base}/device").split("/")):
        if _pci_path.ADDRESS.match(part):
            return part
    return ""


def _own_netdevs(fs: RootedFs, base: str) -> dict[int, str]:
    """{port number: interface} by dev_port (IPoIB: dev_id), which count from 0; as ibdev2netdev does."""
    found: dict[int, str] = {}
    for name in fs.listdir(f"{base}/device/net"):
        here = f"{base}/device/net/{name}"
        for attribute in ("dev_port", "dev_id"):
            try:
                port = int(fs.read_value(f"{here}/{attribute}") or "", 0) + 1
            except ValueError:
                continue
            found.setdefault(port, name)
            if port > 1:
                break
    return found


def _read_port(
    fs: RootedFs, base: str, number: int, parent: str, own_netdevs: t.Mapping[int, str], counters: bool
) -> dict[str, t.Any]:
    """One port.

    state, phys_state: the names that the kernel prints (ACTIVE, LinkUp), with *_code their numbers; rate_gbps: Gb/s;
    lid, sm_lid: numbers; gids: the slots in use; netdev: from the GID table, else from the device; counters: numbers,
    None where the kernel says "N/A (no PMA)".
    """
    here = f"{base}/ports/{number}"
    state_code, state = _coded(fs.read_value(f"{here}/state"))
    phys_code, phys_state = _coded(fs.read_value(f"{here}/phys_state"))
    rate = fs.read_value(f"{here}/rate") or ""
    link_layer = fs.read_value(f"{here}/link_layer") or ""
    gids, slots = _read_gids(fs, here)
    return {
        "port": number,
        "state": state,
        "state_code": state_code,
        "phys_state": phys_state,
        "phys_state_code": phys_code,
        "rate_gbps": _rate(rate),
        "rate_text": rate,
        "link_layer": LINK_LAYERS.get(link_layer, link_layer),
        "lid": _hex(fs.read_value(f"{here}/lid")),
        "sm_lid": _hex(fs.read_value(f"{here}/sm_lid")),
        "lmc": _hex(fs.read_value(f"{here}/lid_mask_count")),
        "port_guid": _port_guid(gids),
        "gids": gids,
        "gid_slots": slots,
        "netdev": _netdev(gids) or parent or own_netdevs.get(number, ""),
        "counters": read_counters(fs, here) if counters else {},
    }


def _coded(text: str | None) -> tuple[int | None, str]:
    """'4: ACTIVE' to (4, 'ACTIVE')."""
    match = re.match(r"(\d+):\s*(.*)", text or "")
    return (int(match.group(1)), match.group(2).strip()) if match else (None, (text or "").strip())


def _rate(text: str) -> float | None:
    match = re.match(r"([\d.]+) Gb/sec", text)
    return float(match.group(1)) if match else None


def _hex(text: str | None) -> int | None:
    try:
        return int(text or "", 0)
    except ValueError:
        return None


def _read_gids(fs: RootedFs, port: str) -> tuple[list[dict[str, t.Any]], int]:
    """The GIDs in use as {index, gid, type, netdev, ipv4}, and how many slots the table has.

    type: "RoCE v2", "IB/RoCE v1" or "" as the kernel words it; ipv4: "" for a GID that maps none.
    """
    indexes = sorted(int(name) for name in fs.listdir(f"{port}/gids") if name.isdigit())
    directory = fs.host_path(f"{port}/gids")
    found = []
    empty = 0
    for index in indexes:
        gid = _read_quickly(f"{directory}/{index}")
        if not gid or gid == EMPTY_GID:
            empty += 1
            if empty >= GID_GAP:
                break
            continue
        empty = 0
        found.append(
            {
                "index": index,
                "gid": gid,
                "type": fs.read_value(f"{port}/gid_attrs/types/{index}") or "",
                "netdev": fs.read_value(f"{port}/gid_attrs/ndevs/{index}") or "",
                "ipv4": _ipv4(gid),
            }
        )
    return found, len(indexes)


def _read_quickly(path: str) -> str:
    """A short attribute in three system calls, "" where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 64).decode("ascii", errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _ipv4(gid: str) -> str:
    if not gid.startswith(MAPPED_IPV4):
        return ""
    digits = gid[len(MAPPED_IPV4) :].replace(":", "")
    return ".".join(str(int(digits[i : i + 2], 16)) for i in range(0, 8, 2))


def _port_guid(gids: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The lower half of GID 0, which is what ibstat calls the port GUID; "" where slot 0 is empty."""
    return ":".join(gids[0]["gid"].split(":")[4:]) if gids and gids[0]["index"] == 0 else ""


def _netdev(gids: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The interface that holds the device's own link-local GID: VLANs and bridges on top of it have further entries."""
    for gid in gids:
        if gid["netdev"] and gid["gid"].startswith("fe80:"):
            return str(gid["netdev"])
    return next((str(gid["netdev"]) for gid in gids if gid["netdev"]), "")


def read_counters(fs: RootedFs, port: str) -> dict[str, int | None]:
    """The numbers below *port* (a directory such as /sys/class/infiniband/mlx5_0/ports/1), None where there is no PMA."""
    counters: dict[str, int | None] = {}
    for directory in COUNTER_DIRECTORIES:
        for name in fs.listdir(f"{port}/{directory}"):
            text = fs.read_value(f"{port}/{directory}/{name}")
            if name != "lifespan" and text is not None:  # lifespan is how often the driver refreshes, not a count
                counters[name] = int(text) if text.isdigit() else None
    return counters


def moved_counters(
    before: t.Iterable[t.Mapping[str, t.Any]], after: t.Iterable[t.Mapping[str, t.Any]]
) -> dict[str, dict[str, int]]:
    """{"mlx5_0 port 1": {counter: by how much it rose}} between two readings of the devices.

    One that fell (the driver was reloaded) or that one of the readings lacks is left out: nothing can be said of it.
    """
    earlier = {(d["name"], p["port"]): p["counters"] for d in before for p in d["ports"]}
    moved = {}
    for device in after:
        for port in device["ports"]:
            old = earlier.get((device["name"], port["port"]), {})
            rises = {
                name: value - old[name]
                for name, value in port["counters"].items()
                if value is not None and old.get(name) is not None and value > old[name]
            }
            if rises:
                moved[f"{device['name']} port {port['port']}"] = rises
    return moved
