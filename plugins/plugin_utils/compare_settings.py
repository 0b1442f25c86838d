# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What changed between two runs in the settings that decide on speed: as observed on the nodes, and as asked for."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import natural

Record = t.Mapping[str, t.Any]
#: {(kind, name): {node: value}}; a value of the run as a whole stands under the node ""
Facts = dict[tuple[str, str], dict[str, str]]

#: kinds in the order in which they are told
KINDS = ("version", "HCA", "sysctl", "NCCL environment", "rank environment", "RoCE", "transport", "role variable")

#: ways in which ranks are started, the nearest to nccl-tests' own first: its environment is what counts
WAYS = ("mpirun", "ssh", "login", "systemd")

#: of a port: (key in hca_info, how it is called)
PORT_FACTS = (
    ("state", "state"), ("rate_gbps", "Gb/s"), ("active_mtu", "MTU"), ("link_layer", "link layer"), ("netdev", "interface"),
)  # fmt: skip

#: role variables that say where a run was carried out and not how
PLACES = ("_root", "_results_dir", "_baseline")


def settings_changes(before: Record, after: Record) -> list[dict[str, t.Any]]:
    """[{kind, name, before, after, nodes}]: what differs, nodes with the same change told together.

    before, after: texts, None where one run says nothing of it. Only nodes that both runs observed in that respect
    count: that a part did not run is no change of a setting. nodes is empty for what belongs to the run as a whole.
    """
    old, new = facts_of(before), facts_of(after)
    known = [
        {kind: {node for (k, _name), by in facts.items() if k == kind for node in by} for kind in KINDS}
        for facts in (old, new)
    ]
    changes: dict[tuple[str, str, str | None, str | None], list[str]] = {}
    for kind, name in sorted({*old, *new}, key=lambda key: (KINDS.index(key[0]), natural(key[1]))):
        was, now = old.get((kind, name), {}), new.get((kind, name), {})
        for node in {**was, **now}:
            if node in known[0][kind] and node in known[1][kind] and was.get(node) != now.get(node):
                changes.setdefault((kind, name, was.get(node), now.get(node)), []).append(node)
    return [
        {"kind": kind, "name": name, "before": was, "after": now, "nodes": [node for node in nodes if node]}
        for (kind, name, was, now), nodes in changes.items()
    ]


def facts_of(record: Record) -> Facts:
    """Every setting that a run record holds, as text."""
    facts: Facts = {}

    def add(kind: str, name: str, node: str, value: t.Any) -> None:
        if value not in (None, ""):
            facts.setdefault((kind, name), {})[node] = value if isinstance(value, str) else json.dumps(value)

    for name in ("collection_version", "ansible_core"):
        add(
            "version",
            {"collection_version": "gpufabric.cluster", "ansible_core": "ansible-core"}[name],
            "",
            record.get(name),
        )
    for node, parts in record.get("nodes", {}).items():
        _add_node(node, parts, add)
    for run in record.get("benchmark", {}).get("runs", []):
        where = " ".join(filter(None, [run["stage"], run.get("rail", "")]))
        add("version", f"NCCL of {run['stage']} runs", "", run.get("nccl_version"))
        add("transport", f"{where} {run['collective']}", "", (run.get("transport") or {}).get("proven"))
        for name, value in (run.get("environment") or {}).items():
            add("rank environment", f"{name} ({where})", "", str(value))
    for groups in record.get("settings", {}).values():
        for group in groups:
            for name, value in group["values"].items():
                if not name.endswith(PLACES):
                    for node in group["nodes"]:
                        add("role variable", name, node, value)
    return facts


Add = t.Callable[[str, str, str, t.Any], None]


def _add_node(node: str, parts: t.Mapping[str, t.Any], add: Add) -> None:
    seen = parts.get("node", {}).get("observed", {})
    release = " ".join(filter(None, [seen.get("distribution", ""), seen.get("distribution_version", "")]))
    add("version", "distribution", node, release)
    add("version", "kernel", node, seen.get("kernel"))
    gpus = seen.get("gpus") or []
    add("version", "GPUs", node, f"{len(gpus)} × {gpus[0].get('name', '?')}" if gpus else None)
    add("version", "NVIDIA driver", node, gpus[0].get("driver_version") if gpus else None)
    for key in parts.get("kernel", {}).get("keys", []):
        add("sysctl", key["key"], node, " ".join(str(key.get("effective") or key.get("value") or "").split()))
    for hca in parts.get("rdma", {}).get("observed", {}).get("hcas", []):
        _add_hca(node, hca, add)
    nccl = parts.get("nccl_env", {}).get("observed", {})
    add("version", "libnccl.so.2", node, (nccl.get("library") or {}).get("version"))
    way: t.Mapping[str, t.Any] = next((nccl["ways"][way] for way in WAYS if way in nccl.get("ways", {})), {})
    for name, variable in way.get("effective", {}).items():
        add("NCCL environment", name, node, variable.get("value"))
    for interface in parts.get("roce_qos", {}).get("observed", {}).get("interfaces", []):
        for name in ("trust", "pfc", "ecn", "tclass"):
            add("RoCE", f"{interface['interface']} {name}", node, interface.get(name))


def _add_hca(node: str, hca: t.Mapping[str, t.Any], add: Add) -> None:
    name = hca["name"]
    add("HCA", name, node, "there")
    add("HCA", f"{name} firmware", node, hca.get("fw_ver"))
    add("HCA", f"{name} driver", node, hca.get("driver"))
    for port in hca["ports"]:
        for key, called in PORT_FACTS:
            add("HCA", f"{name} port {port['port']} {called}", node, port.get(key))
