# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the RDMA tools say beside sysfs. Each is bounded in time; one that is missing or panics only loses itself.

PRIVATE to the collection.
"""

from __future__ import annotations

import concurrent.futures
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Completed, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibdev2netdev import parse_ibdev2netdev
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibstat import parse_ibstat
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibv_devinfo import parse_ibv_devinfo
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.rdma_link import parse_rdma_link

Device = t.Mapping[str, t.Any]

#: the words that tools use for a port's state, to those of sysfs
STATES = {"Active": "ACTIVE", "Down": "DOWN", "Initializing": "INIT", "Armed": "ARMED", "No state change": "NOP"}


def _ibstat(done: Completed) -> dict[str, t.Any]:
    found = parse_ibstat(done.stdout + done.stderr)
    return {
        "devices": found["ca_names"],
        "ports": {
            f"{ca.get('ca')}/{port.get('port')}": {"state": STATES.get(str(port.get("state")), port.get("state"))}
            for ca in found["cas"]
            for port in ca.get("ports", [])
        },
        "unreadable": found["unreadable_ca"],
    }


def _ibv_devinfo(done: Completed) -> dict[str, t.Any]:
    found = parse_ibv_devinfo(done.stdout + done.stderr)
    return {
        "devices": [hca.get("hca_id") for hca in found["hcas"]],
        "ports": {
            f"{hca.get('hca_id')}/{port.get('port')}": {
                "state": str(port.get("state", "")).replace("PORT_", "").split(" ")[0] or None,
                "active_mtu": port.get("active_mtu"),
                "max_mtu": port.get("max_mtu"),
            }
            for hca in found["hcas"]
            for port in hca.get("ports", [])
        },
        "unreadable": found["uverbs_without_driver"],
    }


def _rdma(done: Completed) -> dict[str, t.Any]:
    found = parse_rdma_link(done.stdout)
    return {
        "devices": list(dict.fromkeys(link["dev"] for link in found["links"])),
        "ports": {
            f"{link['dev']}/{link.get('port')}": {"state": link.get("state"), "netdev": link.get("netdev")}
            for link in found["links"]
        },
        "unreadable": [],
    }


def _ibdev2netdev(done: Completed) -> dict[str, t.Any]:
    found = parse_ibdev2netdev(done.stdout)
    return {
        "devices": list(found["map"]),
        "ports": {f"{entry['dev']}/{entry['port']}": {"netdev": entry["netdev"]} for entry in found["entries"]},
        "unreadable": [],
    }


#: name: (command, reader of its answer). All of them look at the whole node at once.
WITNESSES: dict[str, tuple[tuple[str, ...], t.Callable[[Completed], dict[str, t.Any]]]] = {
    "ibstat": (("ibstat",), _ibstat),
    "ibv_devinfo": (("ibv_devinfo",), _ibv_devinfo),
    "rdma": (("rdma", "link"), _rdma),
    "ibdev2netdev": (("ibdev2netdev",), _ibdev2netdev),
}


def ask(tools: Tools, names: t.Sequence[str], timeout: float) -> dict[str, dict[str, t.Any]]:
    """{witness: {devices, ports, unreadable, missing, problem, seconds}}, all asked at once, each at most *timeout* seconds.

    devices: names in its order; ports: {"mlx5_0/1": what it says of that port}; unreadable: devices at which it gave
    up; missing: not installed; problem: one sentence, "" where it answered well. What it printed before failing counts.
    """
    wanted = [name for name in WITNESSES if name in names]
    if not wanted:
        return {}
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        done = pool.map(lambda name: tools.run(WITNESSES[name][0], timeout=timeout), wanted)
        return {name: _answer(name, completed) for name, completed in zip(wanted, done)}


def _answer(name: str, done: Completed) -> dict[str, t.Any]:
    return {
        **WITNESSES[name][1](done),
        "missing": done.missing,
        "problem": done.problem,
        "seconds": round(done.seconds, 3),
    }
