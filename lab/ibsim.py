# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variant `ibsim`: InfiniBand without hardware. n1 runs a simulated fabric and its subnet manager (Debian's ibsim and
OpenSM); every node has one HCA on it, `ibsim0`, which the real ibstat, iblinkinfo and ibnetdiscover show.
"""

from __future__ import annotations

import typing as t

from lab.node_files import OwnFile
from lab.plan import Node, Plan

_PORT = 17070
_LEAVES = 2
_SWITCH_PORTS = 36
_UPLINK = 36
SPARE_PORT = 35
"""A port of every leaf that nothing is plugged into."""
# Enabled speeds as a bit mask (SDR, DDR, QDR): with the default width of 4X, 40 Gb/s.
_SPEEDS = "s=7"


class Cable(t.NamedTuple):
    """Where a node's HCA is plugged in."""

    switch: str
    port: int


def cable(node: Node) -> Cable:
    """The planned cable of node: nodes are dealt out to the leaves in turn."""
    turn, leaf = divmod(node.number - 1, _LEAVES)
    return Cable(f"leaf{leaf}", turn + 1)


def topology(plan: Plan) -> str:
    """The fabric as ibsim reads it (the format of ibnetdiscover): two leaves below a spine, one HCA a node."""
    leaves = [f"leaf{leaf}" for leaf in range(_LEAVES)]
    blocks = [
        _block("Switch", _SWITCH_PORTS, leaf, [*_node_ports(plan, leaf), (_UPLINK, "spine0", number + 1)])
        for number, leaf in enumerate(leaves)
    ]
    blocks.append(
        _block("Switch", _SWITCH_PORTS, "spine0", [(number + 1, leaf, _UPLINK) for number, leaf in enumerate(leaves)])
    )
    blocks += [_block("Hca", 1, node.name, [(1, *cable(node))]) for node in plan.nodes]
    return "\n".join(blocks)


def _node_ports(plan: Plan, leaf: str) -> list[tuple[int, str, int]]:
    return [(cable(node).port, node.name, 1) for node in plan.nodes if cable(node).switch == leaf]


def _block(kind: str, ports: int, name: str, links: t.Iterable[tuple[int, str, int]]) -> str:
    lines = "".join(f'[{port}]\t"{peer}"[{peer_port}] {_SPEEDS}\n' for port, peer, peer_port in links)
    return f'{kind}\t{ports} "{name}"\n{lines}'


def own_files(plan: Plan) -> list[OwnFile]:
    """The topology, and where the simulator listens."""
    address = plan.nodes[0].control.address
    return [
        OwnFile("etc/lab/fabric", topology(plan)),
        OwnFile("etc/lab/fabric.env", f"IBSIM_SERVER_NAME={address}\nIBSIM_SERVER_PORT={_PORT}\n"),
    ]


def group_variables(plan: Plan) -> dict[str, t.Any]:
    """What the collection is told of the fabric: where each node's cable leads."""
    return {
        "rdma_cabling": [
            {"node": node.name, "switch": cable(node).switch, "switch_port": str(cable(node).port)}
            for node in plan.nodes
        ]
    }
