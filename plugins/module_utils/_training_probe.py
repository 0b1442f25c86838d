# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node has to train with: an interpreter with PyTorch, GPUs that PyTorch can use, memory, cores. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import re
import sys
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: what a training imports
NEEDED = ("torch", "transformers", "peft")
#: says versions without importing what is slow to import, then asks PyTorch for its GPUs
PROBE = f"""
import importlib.metadata as m, importlib.util as u, json
found = {{name: m.version(name) for name in {NEEDED!r} if u.find_spec(name)}}
said = {{"versions": found, "gpus": [], "nccl": ""}}
if "torch" in found:
    import torch
    if torch.cuda.is_available():
        count = range(torch.cuda.device_count())
        said["gpus"] = [torch.cuda.get_device_properties(n).total_memory // 2**20 for n in count]
        said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print("PROBE " + json.dumps(said))
"""
#: an import of PyTorch from a slow disk takes its time
PROBE_S = 120.0


def observe(fs: RootedFs, tools: Tools, wanted: str = "") -> dict[str, t.Any]:
    """{python, versions: of NEEDED, gpus: MiB of each that PyTorch can use, nccl, memory_mb: available, cores, problem}.

    The interpreter is the one that is *wanted*, else the first that has all of NEEDED of the one that runs this and the
    distribution's. problem: one sentence about what is missing, "" where a training can start.
    """
    best = _nothing(wanted or sys.executable, "was not found")
    for python in [wanted] if wanted else list(dict.fromkeys([sys.executable, "/usr/bin/python3"])):
        found = _ask(tools, python)
        if len(found["versions"]) > len(best["versions"]) or best["problem"].endswith("was not found"):
            best = found
        if not found["problem"]:
            break
    return {**best, "memory_mb": _memory_mb(fs), "cores": len(os.sched_getaffinity(0))}


def _nothing(python: str, why: str) -> dict[str, t.Any]:
    return {"python": python, "versions": {}, "gpus": [], "nccl": "", "problem": f"{python} {why}"}


def _ask(tools: Tools, python: str) -> dict[str, t.Any]:
    done = tools.run([python, "-c", PROBE], timeout=PROBE_S)
    if done.missing:
        return _nothing(python, "was not found")
    line = next((line for line in done.stdout.splitlines() if line.startswith("PROBE ")), "")
    if not line:
        return _nothing(python, f"cannot import PyTorch: {done.problem or 'it gave no answer'}")
    said = json.loads(line[len("PROBE ") :])
    missing = [name for name in NEEDED if name not in said["versions"]]
    problem = f"{python} has no {' and no '.join(missing)}" if missing else ""
    return {"python": python, **said, "problem": problem}


def _memory_mb(fs: RootedFs) -> int:
    """Memory that can be taken without swapping, in MiB, proc_meminfo(5)."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", fs.read_text("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) // 1024 if found else 0
