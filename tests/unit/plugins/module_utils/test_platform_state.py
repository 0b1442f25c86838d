# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""IOMMU, ACS and governors, read from a tree of two PCIe switches: one with a GPU below it, one with a disk."""

from __future__ import annotations

import pathlib
import struct

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._platform_state import observe_platform
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

GPU, HCA, DISK = "0000:02:00.0", "0000:03:00.0", "0000:05:00.0"
ABOVE, ASIDE = "0000:01:00.0", "0000:04:00.0"


def config(acs_control: int | None, size: int = 4096) -> bytes:
    """A configuration space whose second extended capability is ACS."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    if acs_control is not None:
        struct.pack_into("<I", space, 0x148, 0x000D | 1 << 16)
        struct.pack_into("<H", space, 0x148 + 6, acs_control)
    return bytes(space[:size])


def function(root: pathlib.Path, path: str, vendor: str, code: str, space: bytes = b"", iommu: str = "") -> None:
    directory = root / "sys/devices/pci0000:00" / path
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(f"{vendor}\n")
    (directory / "device").write_text("0x1234\n")
    (directory / "class").write_text(f"{code}\n")
    (directory / "config").write_bytes(space)
    if iommu:
        group = root / f"sys/kernel/iommu_groups/{path[-7:-5]}"
        group.mkdir(parents=True)
        (group / "type").write_text(f"{iommu}\n")
        (directory / "iommu_group").symlink_to(f"{'../' * (3 + path.count('/'))}kernel/iommu_groups/{path[-7:-5]}")
    link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/pci0000:00/{path}")


def machine(root: pathlib.Path, space: bytes, iommu: str = "") -> RootedFs:
    function(root, ABOVE, "0x1000", "0x060400", space)
    function(root, f"{ABOVE}/{GPU}", "0x10de", "0x030200", iommu=iommu)
    function(root, f"{ABOVE}/{HCA}", "0x15b3", "0x020700", iommu=iommu)
    function(root, ASIDE, "0x1000", "0x060400", config(0x1D))
    function(root, f"{ASIDE}/{DISK}", "0x144d", "0x010802", iommu="DMA")
    return RootedFs(str(root))


@pytest.mark.parametrize(
    ("space", "acs", "unread"),
    [
        (config(0x001D), [ABOVE], []),  # source validation, request and completion redirect, upstream forwarding
        (config(0x0008), [ABOVE], []),
        (config(0x0011), [], []),  # no redirect
        (config(0x0000), [], []),
        (config(None), [], []),
        (config(0x001D, 256), [], []),  # conventional PCI
        (config(0x001D, 64), [], [ABOVE]),  # what a reader without privileges gets
        (b"", [], [ABOVE]),
        (bytes(0x100) + struct.pack("<I", 0x100 << 20 | 1) + bytes(4096 - 0x104), [], []),  # a list that bites its tail
    ],
)
def test_acs_above_gpus_and_hcas_only(tmp_path: pathlib.Path, space: bytes, acs: list[str], unread: list[str]) -> None:
    found = observe_platform(machine(tmp_path, space))
    assert (found["acs"], found["acs_unread"]) == (acs, unread)


@pytest.mark.parametrize("kind", ["identity", "DMA-FQ"])
def test_iommu_domains_of_gpus_and_hcas(tmp_path: pathlib.Path, kind: str) -> None:
    assert observe_platform(machine(tmp_path, config(0), kind))["iommu"] == {GPU: kind, HCA: kind}


def test_governors_are_counted(tmp_path: pathlib.Path) -> None:
    for cpu, governor in enumerate(["performance", "powersave", "powersave"]):
        file = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"
        file.parent.mkdir(parents=True)
        file.write_text(f"{governor}\n")
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir()
    assert observe_platform(RootedFs(str(tmp_path)))["governors"] == {"performance": 1, "powersave": 2}


def test_a_bare_tree_has_nothing(tmp_path: pathlib.Path) -> None:
    assert observe_platform(RootedFs(str(tmp_path))) == {"iommu": {}, "acs": [], "acs_unread": [], "governors": {}}
