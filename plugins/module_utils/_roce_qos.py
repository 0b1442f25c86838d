# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a RoCE interface treats its traffic: trust, PFC, ECN, traffic classes. PRIVATE to the collection.

Sources: mlnx_qos(8), dcb(8), the kernel's Documentation/ABI/testing/configfs-rdma_cm, drivers/infiniband/hw/mlx5/cong.c
(debugfs cc_params), and the sysfs attributes qos, ecn and tc of NVIDIA's driver packages.
"""

from __future__ import annotations

import contextlib
import os
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _nccl_conf, _rdma_sysfs
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Completed, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools import dcb
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.mlnx_qos import parse_mlnx_qos
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

NET = "/sys/class/net"
RDMA_CM = "/sys/kernel/config/rdma_cm"
DEBUGFS = "/sys/kernel/debug/mlx5"

TOOLS = ("mlnx_qos", "dcb")
PRIORITIES = range(8)

#: notification point (marks and answers) and reaction point (slows down) of DCQCN, as the attributes spell them
ECN_ROLES = ("np", "rp")


def observe(
    fs: RootedFs, tools: Tools, interfaces: t.Sequence[str], tool: str = "auto", traffic_class: int | None = None
) -> dict[str, t.Any]:
    """{"interfaces": [one mapping each], "nccl_tc", "verified_tc", "problems"}.

    interfaces: names; a bond is looked at through the interfaces below it, since the adapter treats the packets.
    nccl_tc: NCCL_IB_TC of /etc/nccl.conf as text, or None; verified_tc: *traffic_class* if every interface carries it
    without loss, else None.
    """
    owners = _owners(fs)
    problems = []
    found = []
    for name in interfaces:
        if not fs.exists(f"{NET}/{name}"):
            problems.append({"id": "roce_qos_no_interface", "subject": name, "evidence": f"{NET}/{name} is absent"})
            continue
        for below in physical(fs, name):
            found.append(observe_interface(fs, tools, below, owners.get(below) or owners.get(name), tool))
    lossless = traffic_class is not None and found and all(carries(seen, traffic_class) for seen in found)
    return {
        "interfaces": found,
        "nccl_tc": _nccl_tc(fs),
        "verified_tc": traffic_class if lossless else None,
        "problems": problems,
    }


def carries(seen: t.Mapping[str, t.Any], traffic_class: int) -> bool:
    """Whether packets of a traffic class (DSCP in its upper six bits) ride a priority with PFC on this interface."""
    priority = seen["dscp_prio"].get(str(traffic_class >> 2))
    return seen["trust"] == "dscp" and priority is not None and priority in (seen["pfc"] or [])


def physical(fs: RootedFs, name: str) -> list[str]:
    """The interfaces below a bond or VLAN, or the interface itself."""
    lower = [path.rpartition("/lower_")[2] for path in fs.glob(f"{NET}/{name}", "lower_*")]
    return [deeper for below in lower for deeper in physical(fs, below)] or [name]


def _owners(fs: RootedFs) -> dict[str, dict[str, t.Any]]:
    """{interface: {hca, port, pci}} of every RDMA port that has one."""
    devices, _problems = _rdma_sysfs.read_devices(fs, counters="none")
    return {
        port["netdev"]: {
            "hca": device["name"],
            "port": port["port"],
            "pci": device["pcie"]["address"] if device["pcie"] else "",
        }
        for device in devices
        for port in device["ports"]
        if port["netdev"]
    }


def observe_interface(
    fs: RootedFs, tools: Tools, name: str, owner: t.Mapping[str, t.Any] | None, tool: str = "auto"
) -> dict[str, t.Any]:
    """One interface; a value that nothing shows is None.

    tool: the one that answered, "" where none did; problem: why; dcbx: host, firmware, agent or None, with who owns the
    settings then; trust: dscp or pcp; pfc: priorities; dscp_prio: {"26": 3}; ecn: {source, np, rp, cnp_dscp,
    cnp_priority}, where np and rp are {"3": bool}; tclass: the adapter's override; cma_tos: what rdma_cm gives new
    connections; pause: {rx, tx} of global pause.
    """
    owner = owner or {"hca": "", "port": 0, "pci": ""}
    return {
        "interface": name,
        "hca": owner["hca"],
        "port": owner["port"],
        **_layer2(tools, name, tool),
        "ecn": _ecn(fs, name, str(owner["pci"])),
        "tclass": _tclass(fs, str(owner["hca"]), int(owner["port"])),
        "cma_tos": cma_tos(fs, str(owner["hca"]), int(owner["port"])),
        "pause": _pause(tools, name),
        "pci": owner["pci"],
    }


# ---- trust and PFC


def _layer2(tools: Tools, name: str, tool: str) -> dict[str, t.Any]:
    said: dict[str, t.Any] = {}
    reasons = []
    for candidate in TOOLS if tool == "auto" else (tool,):
        said = _ask_mlnx_qos(tools, name) if candidate == "mlnx_qos" else _ask_dcb(tools, name)
        if said["tool"]:
            return said
        reasons.append(said["problem"])
    return {**said, "problem": "; ".join(dict.fromkeys(reasons))}


def _nothing(problem: str) -> dict[str, t.Any]:
    return {"tool": "", "problem": problem, "dcbx": None, "trust": None, "pfc": None, "dscp_prio": {}}


def _ask_mlnx_qos(tools: Tools, name: str) -> dict[str, t.Any]:
    done = tools.run(["mlnx_qos", "-i", name], timeout=20)
    found = parse_mlnx_qos(done.stdout)
    if not found["trust"] and not found["dcbx"]:
        return _nothing(done.problem or f"mlnx_qos -i {name} printed neither trust nor DCBX mode")
    mode = str(found["dcbx"] or "").lower()
    return {
        "tool": "mlnx_qos",
        "problem": "",
        "dcbx": "firmware" if "firmware" in mode else "host" if "os" in mode.split() else None,
        "trust": found["trust"] or None,
        "pfc": found["pfc_enabled"],
        "dscp_prio": {str(dscp): prio for dscp, prio in (found["prio_of_dscp"] or {}).items()},
    }


def _ask_dcb(tools: Tools, name: str) -> dict[str, t.Any]:
    pfc = tools.run(["dcb", "pfc", "show", "dev", name], timeout=10)
    if not pfc.ok:
        return _nothing(pfc.problem)
    app = tools.run(["dcb", "-N", "app", "show", "dev", name, "dscp-prio"], timeout=10)
    table = dcb.parse_dscp(app.stdout)
    return {
        "tool": "dcb",
        "problem": "",
        "dcbx": _dcbx(tools.run(["dcb", "dcbx", "show", "dev", name], timeout=10)),
        "trust": ("dscp" if table else "pcp") if app.ok else None,
        "pfc": dcb.parse_pfc(pfc.stdout),
        "dscp_prio": {str(dscp): prios[-1] for dscp, prios in table.items()},
    }


def _dcbx(done: Completed) -> str | None:
    """Without the flag `host` the settings are the firmware's, or with `lld-managed` an LLDP agent's (dcb-dcbx(8))."""
    flags = dcb.parse_dcbx(done.stdout) if done.ok else None
    if flags is None:
        return None
    return "host" if "host" in flags else "agent" if "lld-managed" in flags else "firmware"


# ---- ECN


def _ecn(fs: RootedFs, name: str, pci: str) -> dict[str, t.Any]:
    """Per-priority switches where NVIDIA's driver shows them; the inbox driver shows parameters in debugfs only."""
    base = f"{NET}/{name}/ecn"
    if fs.is_dir(f"{base}/roce_np"):
        roles = {role: _switches(fs, f"{base}/roce_{role}/enable") for role in ECN_ROLES}
        return {
            "source": "sysfs",
            **roles,
            "cnp_dscp": _number(fs.read_value(f"{base}/roce_np/cnp_dscp")),
            "cnp_priority": _number(fs.read_value(f"{base}/roce_np/cnp_802p_prio")),
        }
    here = f"{DEBUGFS}/{pci}/cc_params"
    return {
        "source": "debugfs" if pci and fs.is_dir(here) else "",
        "np": {},
        "rp": {},
        "cnp_dscp": _number(fs.read_value(f"{here}/np_cnp_dscp")) if pci else None,
        "cnp_priority": _number(fs.read_value(f"{here}/np_cnp_prio")) if pci else None,
    }


def _switches(fs: RootedFs, directory: str) -> dict[str, bool]:
    values = {str(prio): fs.read_value(f"{directory}/{prio}") for prio in PRIORITIES}
    return {prio: value == "1" for prio, value in values.items() if value in ("0", "1")}


# ---- traffic classes


def tclass_path(hca: str, port: int) -> str:
    return f"{_rdma_sysfs.INFINIBAND}/{hca}/tc/{port}/traffic_class"


def _tclass(fs: RootedFs, hca: str, port: int) -> int | None:
    """The adapter's override of every RoCE traffic class ("Global tclass=106"), None where the driver has none set."""
    match = re.search(r"(?i)global tclass\s*=\s*(\d+)", fs.read_value(tclass_path(hca, port)) or "") if hca else None
    return int(match.group(1)) if match else None


def cma_tos(fs: RootedFs, hca: str, port: int, value: int | None = None) -> int | None:
    """Read, or with *value* write, the type of service that rdma_cm gives new connections of a port.

    The device's directory in configfs exists only while somebody has made it; it is made and removed around the access,
    as the tool cma_roce_tos does. None where configfs is not mounted or rdma_cm is not loaded; OSError as the kernel answers.
    """
    if not hca or not fs.is_dir(RDMA_CM):
        return None
    directory = f"{RDMA_CM}/{hca}"
    path = f"{directory}/ports/{port}/default_roce_tos"
    made = not fs.exists(directory)
    try:
        if made:
            with contextlib.suppress(OSError):
                os.mkdir(fs.host_path(directory))
        if value is not None:
            fs.write_value(path, f"{value}\n")
        return _number(fs.read_value(path))
    finally:
        if made:
            fs.remove_empty_dir(directory)


def _pause(tools: Tools, name: str) -> dict[str, bool | None]:
    """Global pause as `ethtool -a` prints it: PFC and global pause exclude each other."""
    done = tools.run(["ethtool", "-a", name], timeout=10)
    return {
        way: {"on": True, "off": False}.get(match.group(1)) if match else None
        for way in ("rx", "tx")
        for match in [re.search(rf"(?mi)^{way}:\s+(on|off)\s*$", done.stdout)]
    }


def _nccl_tc(fs: RootedFs) -> str | None:
    """NCCL_IB_TC as NCCL reads it from its system-wide file."""
    return _nccl_conf.variables(fs.read_value(_nccl_conf.SYSTEM_FILE) or "").get("NCCL_IB_TC")


def _number(text: str | None) -> int | None:
    try:
        return int(text or "", 0)
    except ValueError:
        return None
