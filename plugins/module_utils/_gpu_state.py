# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA GPUs as `nvidia-smi -q -x` describes them, and the services that NVLink fabrics need. PRIVATE to the collection.

The XML form names each value, whatever driver prints it; elements that an older driver lacks are None here.
"""

from __future__ import annotations

import re
import typing as t
import xml.etree.ElementTree as ET

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

SERVICES = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced")

#: reasons for lower clocks that are no fault: an idle GPU, and clocks that somebody set
HARMLESS_REASONS = ("gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting")

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def read_gpus(fs: RootedFs, tools: Tools) -> dict[str, t.Any]:
    """{present, driver, cuda, gpus, services, nvswitches, toolkit, fabricmanager_version, imex_nodes, problem}.

    A gpu: see read_smi(). services: {unit: active, inactive, failed, unknown ...} where a GPU is there. toolkit: the CUDA toolkit's
    version below /usr/local/cuda, "" without one.
    """
    done = tools.run(["nvidia-smi", "-q", "-x"], timeout=60)
    if done.missing:
        return {"present": False, "gpus": [], "services": {}, "problem": ""}
    answer: dict[str, t.Any] = {"present": True, "problem": done.problem, **read_smi(done.stdout)}
    if not answer["gpus"] and not answer["problem"]:
        answer["problem"] = "nvidia-smi -q -x named no GPU"
    answer["services"] = _services(tools)
    answer["nvswitches"] = len(fs.glob("/dev", "nvidia-nvswitch[0-9]*"))
    answer["toolkit"] = _toolkit(fs)
    answer["fabricmanager_version"] = _fabricmanager_version(tools) if answer["nvswitches"] else ""
    answer["imex_nodes"] = len([line for line in fs.read_lines("/etc/nvidia-imex/nodes_config.cfg") if line.strip()])
    return answer


def read_smi(text: str) -> dict[str, t.Any]:
    """{driver, cuda, gpus: [...]} of nvidia-smi's XML; no GPUs where it is none.

    A gpu: index, bus, uuid, name, serial, reasons (active ones that are no harmless ones), power_limit_w, default_power_limit_w,
    max_power_limit_w, temperature_c, remapped {correctable, uncorrectable, pending, failed}, ecc_uncorrectable, ecc_mode,
    mig, persistence, fabric {state, status, clique}, pcie {gen, max_gen, width, max_width}, nvlinks is not in this form.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError:
        return {"driver": "", "cuda": "", "gpus": []}
    return {
        "driver": _text(root, "driver_version"),
        "cuda": _text(root, "cuda_version"),
        "gpus": [_gpu(index, gpu) for index, gpu in enumerate(root.findall("gpu"))],
    }


def _gpu(index: int, gpu: ET.Element) -> dict[str, t.Any]:
    power = next(
        (found for name in ("gpu_power_readings", "power_readings") if (found := gpu.find(name)) is not None), None
    )
    limits = {key: _number(power, name) for key, name in _POWER.items()}
    link = gpu.find("pci/pci_gpu_link_info")
    return {
        "index": index,
        "bus": gpu.get("id", "").lower(),
        "uuid": _text(gpu, "uuid"),
        "name": _text(gpu, "product_name"),
        "serial": _text(gpu, "serial"),
        "reasons": _reasons(gpu),
        **limits,
        "temperature_c": _number(gpu, "temperature/gpu_temp"),
        "remapped": {
            "correctable": _number(gpu, "remapped_rows/remapped_row_corr"),
            "uncorrectable": _number(gpu, "remapped_rows/remapped_row_unc"),
            "pending": _text(gpu, "remapped_rows/remapped_row_pending") == "Yes",
            "failed": _text(gpu, "remapped_rows/remapped_row_failure") == "Yes",
        },
        "ecc_mode": _text(gpu, "ecc_mode/current_ecc"),
        "ecc_uncorrectable": _uncorrectable(gpu),
        "mig": _text(gpu, "mig_mode/current_mig"),
        "persistence": _text(gpu, "persistence_mode"),
        "fabric": {"state": _text(gpu, "fabric/state"), "status": _text(gpu, "fabric/status")},
        "pcie": {
            "gen": _number(link, "pcie_gen/current_link_gen"),
            "max_gen": _number(link, "pcie_gen/max_link_gen"),
            "width": _number(link, "link_widths/current_link_width"),
            "max_width": _number(link, "link_widths/max_link_width"),
        },
    }


#: names of the power limits have changed with the drivers: current_power_limit from 530 on, power_limit before
_POWER = {
    "power_limit_w": "current_power_limit|power_limit",
    "default_power_limit_w": "default_power_limit",
    "max_power_limit_w": "max_power_limit",
}


def _reasons(gpu: ET.Element) -> list[str]:
    """Why the clocks are lower than they could be: clocks_event_reasons, clocks_throttle_reasons of drivers before 535."""
    found = []
    for parent in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.findall(f"{parent}/*"):
            name = re.sub(r"^clocks_(?:event|throttle)_reason_", "", reason.tag)
            if (reason.text or "").strip() == "Active" and name not in HARMLESS_REASONS and name not in found:
                found.append(name)
    return found


def _uncorrectable(gpu: ET.Element) -> int:
    """Uncorrectable ECC errors since the driver was loaded, of all memories."""
    volatile = gpu.find("ecc_errors/volatile")
    values = (
        []
        if volatile is None
        else [e.text or "" for e in volatile.iter() if "uncorrectable" in e.tag or "double" in e.tag]
    )
    return sum(int(value) for value in values if value.strip().isdigit())


def _text(parent: ET.Element | None, path: str) -> str:
    found = None if parent is None else parent.find(path)
    return "" if found is None else (found.text or "").strip()


def _number(parent: ET.Element | None, paths: str) -> float | None:
    """The number in the first of *paths* (joined by |) that holds one: "700.00 W", "16x", "N/A"."""
    for path in paths.split("|"):
        match = _NUMBER.match(_text(parent, path))
        if match:
            return float(match.group(0))
    return None


def _services(tools: Tools) -> dict[str, str]:
    done = tools.run(["systemctl", "is-active", *SERVICES], timeout=10)
    states = done.stdout.split()
    return dict(zip(SERVICES, states)) if len(states) == len(SERVICES) else {}


def _toolkit(fs: RootedFs) -> str:
    match = re.search(
        r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', fs.read_value("/usr/local/cuda/version.json") or ""
    )
    return match.group(1) if match else ""


def _fabricmanager_version(tools: Tools) -> str:
    done = tools.run(["nv-fabricmanager", "--version"], timeout=10)
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", done.stdout)
    return match.group(1) if match else ""
