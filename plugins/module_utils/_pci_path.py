# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""PCI functions in sysfs: links as trained and as possible, and how near two functions are. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

DEVICES = "/sys/bus/pci/devices"

ADDRESS = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")

#: vendor ids (pci.ids) whose display, 3D and processing-accelerator functions are compute GPUs
GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")

#: vendors of RDMA adapters, and the PCI classes (network: Ethernet, InfiniBand) that their adapters have
HCA_VENDORS = ("0x15b3",)
HCA_CLASSES = ("0x0200", "0x0207")

#: nearest first, in the words of `nvidia-smi topo -m`
RELATIONS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def functions(fs: RootedFs) -> list[dict[str, str]]:
    """Every PCI function: {address, vendor, device, class, driver} (hexadecimal texts as sysfs prints them)."""
    found = []
    for address in fs.listdir(DEVICES):
        base = f"{DEVICES}/{address}"
        found.append(
            {
                "address": address,
                "vendor": fs.read_value(f"{base}/vendor") or "",
                "device": fs.read_value(f"{base}/device") or "",
                "class": fs.read_value(f"{base}/class") or "",
                "driver": (fs.readlink(f"{base}/driver") or "").rpartition("/")[2],
            }
        )
    return found


def gpus(found: t.Iterable[t.Mapping[str, str]]) -> list[dict[str, str]]:
    """The compute GPUs among PCI functions: {address, maker}."""
    return [
        {"address": f["address"], "maker": GPU_VENDORS[f["vendor"]]}
        for f in found
        if f["vendor"] in GPU_VENDORS and f["class"].startswith(GPU_CLASSES)
    ]


def path_of(fs: RootedFs, address: str) -> list[str]:
    """The host bridge and every function from it down to *address*; empty where there is no such function."""
    if not fs.exists(f"{DEVICES}/{address}"):
        return []
    parts = fs.resolve(f"{DEVICES}/{address}").split("/")
    return [part for part in parts if ADDRESS.match(part) or part.startswith("pci")]


def describe(fs: RootedFs, address: str) -> dict[str, t.Any]:
    """The link of one function.

    speed_gts, width: as trained (GT/s, lanes); max_speed_gts, max_width: what the function itself can do;
    slot_speed_gts, slot_width: what the bridge above it can do; narrowest: the slowest link between the function and
    the host bridge, as {address, speed_gts, width}. A virtual function is described by its physical one, since it has
    no link of its own. Unknown numbers are None (sysfs says "Unknown" and 0 or 255 lanes then).
    """
    physical = (fs.readlink(f"{DEVICES}/{address}/physfn") or "").rpartition("/")[2]
    path = path_of(fs, physical or address)
    chain = [part for part in path if ADDRESS.match(part)]
    own = _link(fs, physical or address)
    slot = _link(fs, chain[-2]) if len(chain) > 1 else {}
    links = [{"address": part, **_link(fs, part)} for part in chain]
    known = [link for link in links if link["speed_gts"] and link["width"]]
    narrowest = min(known, key=lambda link: link["speed_gts"] * link["width"], default=None)
    return {
        "address": address,
        "physical": physical,
        "speed_gts": own["speed_gts"],
        "width": own["width"],
        "max_speed_gts": own["max_speed_gts"],
        "max_width": own["max_width"],
        "slot_speed_gts": slot.get("max_speed_gts"),
        "slot_width": slot.get("max_width"),
        "narrowest": narrowest and {key: narrowest[key] for key in ("address", "speed_gts", "width")},
        "path": path,
    }


def _link(fs: RootedFs, address: str) -> dict[str, t.Any]:
    base = f"{DEVICES}/{address}"
    return {
        "speed_gts": _speed(fs.read_value(f"{base}/current_link_speed")),
        "width": _width(fs.read_value(f"{base}/current_link_width")),
        "max_speed_gts": _speed(fs.read_value(f"{base}/max_link_speed")),
        "max_width": _width(fs.read_value(f"{base}/max_link_width")),
    }


def _speed(text: str | None) -> float | None:
    """'32.0 GT/s PCIe' (older kernels: '8 GT/s') to 32.0."""
    match = re.match(r"([\d.]+) GT/s", text or "")
    return float(match.group(1)) if match else None


def _width(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) in (1, 2, 4, 8, 12, 16, 32) else None


def numa_node(fs: RootedFs, address: str) -> int | None:
    """NUMA node, None where the firmware does not say (-1)."""
    text = fs.read_value(f"{DEVICES}/{address}/numa_node") or ""
    return int(text) if text.isdigit() else None


def relation(one: t.Sequence[str], other: t.Sequence[str], same_numa: bool) -> str:
    """How near two functions are, given their paths from path_of().

    PIX: below one PCIe bridge; PXB: below several bridges of one root port; PHB: below one host bridge; NODE: on one
    NUMA node; SYS: across the processors' interconnect (NCCL and nvidia-smi use the same words).
    """
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if shared == 0:
        return "NODE" if same_numa else "SYS"
    if shared == 1:
        return "PHB"
    bridges = (len(one) - 1 - shared) + (len(other) - 1 - shared)
    return "PIX" if bridges <= 2 else "PXB"


def nearest(
    path: t.Sequence[str], numa: int | None, others: t.Iterable[tuple[str, t.Sequence[str], int | None]]
) -> dict[str, t.Any] | None:
    """The nearest of *others* (address, path, NUMA node): {relation, addresses: [all that are equally near]}."""
    by_relation: dict[str, list[str]] = {}
    for address, other_path, other_numa in others:
        near = relation(path, other_path, numa is not None and numa == other_numa)
        by_relation.setdefault(near, []).append(address)
    for name in RELATIONS:
        if name in by_relation:
            return {"relation": name, "addresses": by_relation[name]}
    return None
