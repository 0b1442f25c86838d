# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each node's HCAs carry: the active compute ports with their rates. Storage and front-end ports carry no collective."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.hca_rails import bad_subnet_setting
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import Port, ports_of, select_hcas

Nodes = t.Mapping[str, t.Mapping[str, t.Any]]


class LineRates:
    """Gb/s by node. nodes: {node: {part: what was observed}}; settings: the role rdma's choose the ports.

    Where no port of any node is a compute port by these rules (another vendor's driver), all ports count.
    """

    def __init__(self, nodes: Nodes, settings: t.Mapping[str, t.Any]) -> None:
        observed = {node: parts["rdma"]["observed"] for node, parts in nodes.items() if "rdma" in parts}
        rules = {} if bad_subnet_setting(settings) else settings
        chosen: t.Mapping[str, t.Sequence[Port]] = select_hcas(observed, rules).compute
        if not any(chosen.values()):
            chosen = ports_of(observed)
        self._rates = {
            node: [
                (str(port.hca["name"]), float(port.port["rate_gbps"]))
                for port in ports
                if port.active and port.port["rate_gbps"]
            ]
            for node, ports in chosen.items()
        }

    def of(self, node: str, rail: str = "") -> list[float]:
        """Gb/s of each active port. rail: an HCA's name or a network; of one that no port is named by, the slowest port."""
        rates = self._rates.get(node, [])
        if not rail or not rates:
            return [gbps for _unused, gbps in rates]
        return [gbps for name, gbps in rates if name == rail] or [min(gbps for _unused, gbps in rates)]

    def hcas(self, node: str) -> list[str]:
        """The node's HCAs that have an active port."""
        return list(dict.fromkeys(name for name, _unused in self._rates.get(node, [])))
