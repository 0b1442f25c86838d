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
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.iblinkinfo import parse_iblinkinfo
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibstat import parse_ibstat
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.ibv_devinfo import parse_ibv_devinfo
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.lldp import parse_lldp
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.mlxlink import parse_mlxlink
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_tools.rdma_link import parse_rdma_link

Device = t.Mapping[str, t.Any]
Said = dict[str, t.Any]

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
                "state": str(port.get("state", "")).replace("PORT_", "").partition(" ")[0] or None,
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


def _lldp(done: Completed) -> dict[str, t.Any]:
    return {"devices": [], "ports": {}, "unreadable": [], "neighbours": parse_lldp(done.stdout)["neighbours"]}


def _iblinkinfo(done: Completed) -> dict[str, t.Any]:
    """The first link is the port's own: the tool starts at it (-D 0) and goes one hop far (-n 1)."""
    links = parse_iblinkinfo(done.stdout)["links"]
    if not links or not links[0].get("peer"):
        return {}
    return {"peer": {"switch": links[0]["peer"], "port": str(links[0]["peer_port"]), "by": "iblinkinfo"}}


def _mlxlink(done: Completed) -> dict[str, t.Any]:
    found = parse_mlxlink(done.stdout)
    cable = {key: value for key, value in found.items() if key not in ("sections", "errors", "unparsed")}
    return {"cable": cable} if cable else {}


#: name: (command, reader of its answer). These look at the whole node at once.
WITNESSES: dict[str, tuple[tuple[str, ...], t.Callable[[Completed], Said]]] = {
    "ibstat": (("ibstat",), _ibstat),
    "ibv_devinfo": (("ibv_devinfo",), _ibv_devinfo),
    "rdma": (("rdma", "link"), _rdma),
    "ibdev2netdev": (("ibdev2netdev",), _ibdev2netdev),
    "lldp": (("lldpcli", "-f", "json", "show", "neighbors"), _lldp),
}


def _iblinkinfo_command(device: Device, port: Device) -> tuple[str, ...]:
    if port["link_layer"] != "InfiniBand" or port["phys_state"] != "LinkUp":
        return ()
    return ("iblinkinfo", "-C", device["name"], "-P", str(port["port"]), "-D", "0", "-n", "1")


def _mlxlink_command(device: Device, port: Device) -> tuple[str, ...]:
    if device["rdma_driver"] != "mlx5_ib" or device["vf"] or not device["pcie"]:
        return ()
    other_port = ("-p", str(port["port"])) if port["port"] != 1 else ()
    return ("mlxlink", "-d", device["pcie"]["address"], *other_port, "-m", "-c")


#: name: (command for one port, or () where the tool has nothing to say about it; reader of its answer)
PORT_WITNESSES: dict[str, tuple[t.Callable[[Device, Device], tuple[str, ...]], t.Callable[[Completed], Said]]] = {
    "iblinkinfo": (_iblinkinfo_command, _iblinkinfo),
    "mlxlink": (_mlxlink_command, _mlxlink),
}

NAMES = (*WITNESSES, *PORT_WITNESSES)

#: processes at a time; each waits for firmware or the network more than it computes
WORKERS = 8


def ask(
    tools: Tools, names: t.Sequence[str], timeout: float, devices: t.Sequence[Device] = ()
) -> dict[str, dict[str, t.Any]]:
    """{witness: {devices, ports, unreadable, missing, problem, seconds}}, all asked at once, each at most *timeout* seconds.

    devices: names in its order; ports: {"mlx5_0/1": what it says of that port}; unreadable: devices at which it gave
    up; missing: not installed; problem: one sentence, "" where it answered well. What it printed before failing counts.
    """
    commands = {(name, ""): WITNESSES[name][0] for name in WITNESSES if name in names}
    for name in PORT_WITNESSES:
        if name in names:
            for device in devices:
                for port in device["ports"]:
                    command = PORT_WITNESSES[name][0](device, port)
                    if command:
                        commands[name, f"{device['name']}/{port['port']}"] = command
    if not commands:
        return {}
    with concurrent.futures.ThreadPoolExecutor(min(len(commands), WORKERS)) as pool:
        done = list(pool.map(lambda command: tools.run(command, timeout=timeout), commands.values()))
    answers: dict[str, dict[str, t.Any]] = {}
    for (name, key), completed in zip(commands, done):
        if key:
            _join(answers.setdefault(name, _nothing()), key, PORT_WITNESSES[name][1](completed), completed)
        else:
            answers[name] = {**_nothing(), **WITNESSES[name][1](completed), **_outcome(completed)}
    return answers


def _nothing() -> dict[str, t.Any]:
    return {"devices": [], "ports": {}, "unreadable": [], "missing": False, "problem": "", "seconds": 0.0}


def _outcome(done: Completed) -> dict[str, t.Any]:
    return {"missing": done.missing, "problem": done.problem, "seconds": round(done.seconds, 3)}


def _join(answer: dict[str, t.Any], key: str, said: Said, done: Completed) -> None:
    """Add what was said of one port to its witness's answer; the first problem is kept."""
    device = key.split("/")[0]
    if said:
        answer["ports"][key] = said
        if device not in answer["devices"]:
            answer["devices"].append(device)
    elif done.problem:
        answer["unreadable"].append(device)
    outcome = _outcome(done)
    answer["missing"] = outcome["missing"]
    answer["problem"] = answer["problem"] or outcome["problem"]
    answer["seconds"] = max(answer["seconds"], outcome["seconds"])
