# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of the kernel's log that people of this field look for: Xids, HCA and PCIe errors, killed processes. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools

#: lines kept of one kind, the latest ones
LINES = 3

#: kind: what its lines hold. Wording: the drivers' own sources (NVRM, mlx5_core, pcieport, mm/oom_kill.c, kernel/hung_task.c)
KINDS: dict[str, re.Pattern[str]] = {
    "xid": re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)"),
    "sxid": re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+)"),
    "gpu_lost": re.compile(r"GPU has fallen off the bus|GPU at PCI:\S+ has fallen"),
    "hca_error": re.compile(
        r"mlx5_core .*(?:health compromised|assert_var|Fatal|internal error|device's health|insufficient power|wait_func.*timeout|"
        r"module \d+, .*(?:High Temperature|Bad or unsupported|Power budget|unplugged))"
    ),
    "pcie_error": re.compile(
        r"AER: .*(?:error (?:message )?received|Uncorrect|Correctable)|PCIe Bus Error: severity=|pciehp: .*Link Down"
    ),
    "iommu_fault": re.compile(r"DMAR: \[DMA|AMD-Vi: Event logged|arm-smmu.* event 0x"),
    "machine_check": re.compile(r"\[Hardware Error\]|mce: \[Hardware|EDAC .*(?:CE|UE) "),
    "out_of_memory": re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"),
    "hung_task": re.compile(r"blocked for more than \d+ seconds|soft lockup|rcu_\w+ (?:detected|self-detected) stall"),
    "link_flap": re.compile(r"(?:NIC Link is Down|Link is Down|: [Ll]ink down)"),
    "peermem": re.compile(r"nvidia_peermem: .*(?:err|fail|disagrees)|nv_peer_mem: .*(?:err|fail)", re.IGNORECASE),
}


def read_kernel_log(tools: Tools) -> dict[str, t.Any]:
    """{kinds: {kind: {count, codes: {Xid: count}, devices, lines}}, problem}; kinds only of which there are lines."""
    done = tools.run(["dmesg"], timeout=20)
    if done.missing or not done.ok:
        return {"kinds": {}, "problem": done.problem}
    return {"kinds": find_kinds(done.stdout), "problem": ""}


def find_kinds(text: str) -> dict[str, dict[str, t.Any]]:
    """The kinds of telling lines in a kernel log."""
    found: dict[str, dict[str, t.Any]] = {}
    for line in text.splitlines():
        for kind, pattern in KINDS.items():
            match = pattern.search(line)
            if match is None:
                continue
            entry = found.setdefault(kind, {"count": 0, "codes": {}, "devices": [], "lines": []})
            entry["count"] += 1
            entry["lines"] = [*entry["lines"], line.strip()[:300]][-LINES:]
            if match.groups():
                device, code = match.groups()
                entry["codes"][code] = entry["codes"].get(code, 0) + 1
                if device not in entry["devices"]:
                    entry["devices"].append(device)
            break
    return found
