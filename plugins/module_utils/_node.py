# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node is and whether it is busy, in one reading. PRIVATE to the collection."""

from __future__ import annotations

import csv
import platform
import re
import shlex
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._netdevs import read_addresses
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: ID or ID_LIKE of os-release(5) to the family that package names and boot habits follow
OS_FAMILIES = {
    "debian": "debian",
    "ubuntu": "debian",
    "rhel": "redhat",
    "fedora": "redhat",
    "centos": "redhat",
    "suse": "suse",
    "sles": "suse",
    "opensuse": "suse",
}

#: slurmstepd(8) titles its process "slurmstepd: [<job>.<step>]"; the one called "infinity" serves no job
SLURM_STEP = re.compile(r"slurmstepd: \[(\d+)\.")

GPU_FIELDS = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total")
PROCESS_FIELDS = ("pid", "process_name", "gpu_uuid")


def observe_node(fs: RootedFs, tools: Tools) -> dict[str, t.Any]:
    """One node as a mapping; what cannot be read is None or empty, and said so under ``problems``.

    distribution, distribution_version: os-release(5); os_family: debian, redhat, suse or other; kernel: uname -r;
    addresses: {interface: [address/prefix]}; ssh_host_keys: public keys as in known_hosts, without the host;
    gpus, gpu_processes: as nvidia-smi prints them (memory in MiB); slurm_jobs: job ids; busy, busy_why: whether load on
    this node would disturb somebody.
    """
    release = _os_release(fs)
    addresses, address_problems = _addresses(tools)
    gpus, processes, gpu_problems = _gpus(tools)
    jobs = _slurm_jobs(fs)
    why = _busy_why(processes, jobs)
    return {
        "distribution": release.get("ID", ""),
        "distribution_version": release.get("VERSION_ID", ""),
        "os_family": os_family(release),
        "kernel": fs.read_value("/proc/sys/kernel/osrelease") or platform.release(),
        "python": platform.python_version(),
        "hostname": fs.read_value("/proc/sys/kernel/hostname") or fs.read_value("/etc/hostname") or "",
        "machine_id": fs.read_value("/etc/machine-id") or "",
        "boot_id": fs.read_value("/proc/sys/kernel/random/boot_id") or "",
        "is_container": fs.exists("/run/systemd/container") or fs.exists("/.dockerenv"),
        "cpus": len(fs.glob("/sys/devices/system/cpu", "cpu[0-9]*")),
        "addresses": addresses,
        "ssh_host_keys": _host_keys(fs),
        "gpus": gpus,
        "gpu_processes": processes,
        "slurm_jobs": jobs,
        "busy": bool(why),
        "busy_why": why,
        "problems": address_problems + gpu_problems,
    }


def os_family(release: t.Mapping[str, str]) -> str:
    """Family of an os-release mapping: by ID, then by the first known word of ID_LIKE."""
    for word in [release.get("ID", ""), *release.get("ID_LIKE", "").split()]:
        family = OS_FAMILIES.get(word.split("-")[0])
        if family:
            return family
    return "other"


def _os_release(fs: RootedFs) -> dict[str, str]:
    values = {}
    for line in (fs.read_value("/etc/os-release") or fs.read_value("/usr/lib/os-release") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            values[name.strip()] = _unquoted(value)
    return values


def _unquoted(value: str) -> str:
    try:
        return "".join(shlex.split(value))
    except ValueError:
        return value.strip()


def _addresses(tools: Tools) -> tuple[dict[str, list[str]], list[dict[str, str]]]:
    addresses, problem = read_addresses(tools)
    return addresses, [{"id": "addresses_unreadable", "subject": "ip address", "evidence": problem}] if problem else []


def _host_keys(fs: RootedFs) -> list[str]:
    texts = (fs.read_value(path) for path in fs.glob("/etc/ssh", "ssh_host_*_key.pub"))
    return [" ".join(text.split()[:2]) for text in texts if text]


def _gpus(tools: Tools) -> tuple[list[dict[str, str]], list[dict[str, str]], list[dict[str, str]]]:
    query = tools.run(
        ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"], timeout=30
    )
    if query.missing:
        return [], [], []
    if query.problem:
        return [], [], [{"id": "nvidia_smi_failed", "subject": "nvidia-smi", "evidence": query.problem}]
    running = tools.run(
        ["nvidia-smi", f"--query-compute-apps={','.join(PROCESS_FIELDS)}", "--format=csv,noheader,nounits"], timeout=30
    )
    return _table(query.stdout, GPU_FIELDS), _table(running.stdout, PROCESS_FIELDS), []


def _table(text: str, fields: t.Sequence[str]) -> list[dict[str, str]]:
    """Rows of nvidia-smi's CSV; sentences such as "No running processes found" have too few columns and are none."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    names = [field.replace(".", "_") for field in fields]
    return [dict(zip(names, row)) for row in rows if len(row) == len(fields)]


def _slurm_jobs(fs: RootedFs) -> list[str]:
    titles = (fs.read_value(f"/proc/{pid}/cmdline") for pid in fs.listdir("/proc") if pid.isdigit())
    found = (SLURM_STEP.match(title) for title in titles if title)
    return sorted({match.group(1) for match in found if match})


def _busy_why(processes: t.Sequence[t.Mapping[str, str]], jobs: t.Sequence[str]) -> str:
    reasons = []
    if processes:
        names = ", ".join(f"{p['process_name']} (pid {p['pid']})" for p in processes[:3])
        reasons.append(f"{len(processes)} GPU process(es): {names}")
    if jobs:
        reasons.append(f"Slurm job(s) {', '.join(jobs)}")
    return "; ".join(reasons)
