# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mesh over real interfaces without virtual machines: three network namespaces on two rails and a control network.

Needs root and ping; everything that it makes is gone with its namespaces. RDMA is for the lab.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_mesh import judge_mesh
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.launch_nodes import LaunchNode, networks_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_cells import Thresholds, suspects
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.mesh_plan import (
    Candidate,
    Limits,
    plan_again,
    plan_mesh,
)

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NODES = ("n1", "n2", "n3")
#: link: (network, MTU)
LINKS = {"ctl": ("10.76.0", 1500), "eth1": ("10.77.0", 9000), "eth2": ("10.77.1", 9000)}

PROGRAM = """
import dataclasses, json, sys
from ansible_collections.gpufabric.cluster.plugins.module_utils import _probe_responder
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_mesh import Prober
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

fs = RootedFs("/")
given = json.load(sys.stdin)
if given["do"] == "start":
    print(json.dumps(_probe_responder.start(fs, 240)))
elif given["do"] == "stop":
    _probe_responder.stop(fs, given["pid"], given["since"])
else:
    prober = Prober(Tools(fs), given["plan"], given["tokens"], 120)
    row = prober.probe_again(given["earlier"]) if given["earlier"] else prober.probe()
    print(json.dumps(dataclasses.asdict(row)))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ping") or not shutil.which("ip"),
    reason="needs root for namespaces, ip and ping",
)


@dataclasses.dataclass(frozen=True)
class Fabric:
    """Namespaces named after a prefix: one a node, and one with the bridges that stand for switches."""

    prefix: str

    def run(self, where: str, command: str, check: bool = True) -> None:
        argv = ["ip", "netns", "exec", f"{self.prefix}{where}", *command.split()]
        subprocess.run(argv, check=check, capture_output=True, timeout=30)

    def make(self) -> None:
        for where in ("sw", *NODES):
            subprocess.run(["ip", "netns", "add", f"{self.prefix}{where}"], check=True, timeout=30)
        for link, (_network, mtu) in LINKS.items():
            self.run("sw", f"ip link add {link} type bridge")
            self.run("sw", f"ip link set {link} mtu {mtu} up")
        for number, node in enumerate(NODES, start=1):
            self.run(node, "ip link set lo up")
            for link, (network, mtu) in LINKS.items():
                self.run("sw", f"ip link add {node}{link} type veth peer name {link} netns {self.prefix}{node}")
                self.run("sw", f"ip link set {node}{link} mtu {mtu} master {link} up")
                self.run(node, f"ip link set {link} mtu {mtu} up")
                self.run(node, f"ip address add {network}.{number}/24 dev {link}")
        time.sleep(1)

    def end(self) -> None:
        for where in ("sw", *NODES):
            subprocess.run(["ip", "netns", "del", f"{self.prefix}{where}"], check=False, timeout=30)

    def start(self, node: str, given: dict[str, t.Any]) -> subprocess.Popen[str]:
        argv = ["ip", "netns", "exec", f"{self.prefix}{node}", sys.executable, "-c", PROGRAM]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "collections")}
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        process.stdin = None
        return process

    def ask(self, given: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
        """What each node answers; all work at the same time."""
        running = {node: self.start(node, wanted) for node, wanted in given.items()}
        texts = {node: process.communicate(timeout=300)[0] for node, process in running.items()}
        return {node: json.loads(text) for node, text in texts.items() if text.strip()}

    def judged(self) -> list[Finding]:
        responders = self.ask({node: {"do": "start"} for node in NODES})
        try:
            return self._judged(responders)
        finally:
            self.ask({node: {"do": "stop", **responder} for node, responder in responders.items()})

    def _judged(self, responders: dict[str, t.Any]) -> list[Finding]:
        plans = plan_mesh(
            [_candidate(n, node, responders[node]) for n, node in enumerate(NODES, start=1)], {}, Limits()
        )
        for plan in plans.values():
            for rail in plan["rails"].values():
                rail["mtu"] = 9000
        tokens = {node: responder["token"] for node, responder in responders.items()}
        rows = self.ask({n: {"do": "probe", "plan": plans[n], "tokens": tokens, "earlier": None} for n in NODES})
        again = plan_again(plans, suspects({n: {**plans[n], **row} for n, row in rows.items()}, Thresholds()))
        looks = {n: {"do": "probe", "plan": p, "tokens": tokens, "earlier": rows[n]["peers"]} for n, p in again.items()}
        for node, look in self.ask(looks).items():
            rows[node]["peers"] = look["peers"]
        results = {n: {"mesh": {**plans[n], "left_out": "", **row}} for n, row in rows.items()}
        return [finding for finding in judge_mesh(results, {}) if finding.severity == "error"]


def _candidate(number: int, node: str, responder: dict[str, t.Any]) -> Candidate:
    facts = {"addresses": {link: [f"{network}.{number}/24"] for link, (network, _mtu) in LINKS.items()}}
    launch = LaunchNode(node, f"10.76.0.{number}", 22, (), node, node, networks_of(facts))
    return Candidate(launch, facts, None, {}, responder)


@pytest.fixture(scope="module")
def fabric() -> t.Iterator[Fabric]:
    made = Fabric(f"mesh-{secrets.token_hex(2)}-")
    with contextlib.ExitStack() as stack:
        stack.callback(made.end)
        made.make()
        yield made


@contextlib.contextmanager
def planted(fabric: Fabric, where: str, command: str, undo: str) -> t.Iterator[None]:
    fabric.run(where, command)
    try:
        yield
    finally:
        fabric.run(where, undo)


#: how fast and how soon packets pass is the load of this machine, too, which other tests share
OF_SPEED = ("mesh_slow", "mesh_latency")


def reachability(fabric: Fabric) -> list[tuple[str, str, str]]:
    """(id, node, subject) of what was found but for speed."""
    return [(f.id, f.node, f.subject) for f in fabric.judged() if not f.id.startswith(OF_SPEED)]


def test_a_healthy_fabric(fabric: Fabric) -> None:
    assert reachability(fabric) == []


FAULTS = {
    "an interface with a smaller MTU": (
        "n2", "ip link set eth1 mtu 1500", "ip link set eth1 mtu 9000", ("mesh_mtu", "n2", "eth1"),
    ),
    "a switch port with a smaller MTU": (
        "sw", "ip link set n3eth2 mtu 1500", "ip link set n3eth2 mtu 9000", ("mesh_mtu", "n3", "eth2"),
    ),
    "a switch port that passes nothing": (
        "sw", "ip link set n1eth1 nomaster", "ip link set n1eth1 master eth1", ("mesh_unreachable", "n1", "eth1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_once(fabric: Fabric, name: str) -> None:
    where, command, undo, expected = FAULTS[name]
    with planted(fabric, where, command, undo):
        assert reachability(fabric) == [expected]


def test_a_node_behind_a_shaper_is_slow(fabric: Fabric) -> None:
    """In both directions, as at a switch port. The shaper takes packets of the full MTU."""
    shape = "tc qdisc add dev {} root tbf rate 20mbit burst 256kbit latency 50ms mtu 10000"
    clear = "tc qdisc del dev {} root"
    with (
        planted(fabric, "sw", shape.format("n2eth1"), clear.format("n2eth1")),
        planted(fabric, "n2", shape.format("eth1"), clear.format("eth1")),
    ):
        findings = fabric.judged()
    assert [(f.node, f.subject) for f in findings if f.id == "mesh_slow"] == [("n2", "eth1")]
