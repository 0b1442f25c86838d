# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings that only firmware or the boot loader can change: IOMMU mode, PCIe ACS, CPU governor. PRIVATE to the collection.

Sources: Documentation/ABI/testing/sysfs-kernel-iommu_groups, PCI Express Base Specification 7.7.11 (ACS),
Documentation/admin-guide/pm/cpufreq.rst.
"""

from __future__ import annotations

import struct
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils import _pci_path
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

CPUS = "/sys/devices/system/cpu"

#: class code of a PCI-to-PCI bridge
_BRIDGE = "0x0604"
_ACS_CAPABILITY = 0x000D
_EXTENDED_START = 0x100
_CONFIG_SIZE = 0x1000
#: P2P request redirect and P2P completion redirect: with either, traffic between peers takes the way over the root complex
_REDIRECTS = 0x0004 | 0x0008


def observe_platform(fs: RootedFs) -> dict[str, t.Any]:
    """iommu: {address: domain type} of GPUs and HCAs; acs: addresses of the bridges above them that redirect peers;
    acs_unread: bridges whose configuration space could not be read; governors: {name: number of CPUs}.

    iommu is empty without an IOMMU; its types are the kernel's words: identity (passthrough), DMA, DMA-FQ (translated).
    """
    functions = _pci_path.functions(fs)
    endpoints = [f["address"] for f in _pci_path.gpus(functions)]
    endpoints += [
        f["address"]
        for f in functions
        if f["vendor"] in _pci_path.HCA_VENDORS and f["class"].startswith(_pci_path.HCA_CLASSES)
    ]
    above = {part for address in endpoints for part in _pci_path.path_of(fs, address)[:-1]}
    bridges = [f["address"] for f in functions if f["class"].startswith(_BRIDGE) and f["address"] in above]
    controls = {address: _acs_control(fs, address) for address in bridges}
    return {
        "iommu": {address: kind for address in endpoints for kind in [_domain(fs, address)] if kind},
        "acs": [address for address, control in controls.items() if control is not None and control & _REDIRECTS],
        "acs_unread": [address for address, control in controls.items() if control is None],
        "governors": _governors(fs),
    }


def _domain(fs: RootedFs, address: str) -> str:
    return fs.read_value(f"{_pci_path.DEVICES}/{address}/iommu_group/type") or ""


def _acs_control(fs: RootedFs, address: str) -> int | None:
    """The ACS control register of a bridge, 0 where it has none, None where only root may know."""
    try:
        config = fs.read_bytes(f"{_pci_path.DEVICES}/{address}/config")
    except OSError:
        return None
    if len(config) < _CONFIG_SIZE:
        # a reader without privileges gets 64 bytes; a conventional PCI bridge has 256 and no ACS
        return 0 if len(config) == _EXTENDED_START else None
    offset = _EXTENDED_START
    seen = set()
    while _EXTENDED_START <= offset <= _CONFIG_SIZE - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20
    return 0


def _governors(fs: RootedFs) -> dict[str, int]:
    counts: dict[str, int] = {}
    for cpu in fs.glob(CPUS, "cpu[0-9]*"):
        governor = fs.read_value(f"{cpu}/cpufreq/scaling_governor")
        if governor:
            counts[governor] = counts.get(governor, 0) + 1
    return counts
