# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which transport a run really used, from what the nodes' counters and the library's own words say."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS

#: share of the bytes that a run must move at least, which the counters of its interfaces must have seen
ENOUGH = 0.8
#: bytes in the largest packet of InfiniBand and RoCE: packets counted times this are at least the bytes moved
LARGEST_PACKET = 4096
#: port_xmit_data counts words of 4 bytes, Documentation/ABI/stable/sysfs-class-infiniband
DATA_WORD = 4

_SELECTED = re.compile(r"select: component (\w+) selected")
_OFI_PROVIDER = re.compile(r"mtl:ofi:prov(?:ider)?: (\S+)")


def prove(
    raw: t.Mapping[str, t.Any], rows: t.Sequence[t.Mapping[str, t.Any]], parsed: t.Mapping[str, t.Any]
) -> dict[str, t.Any]:
    """{claimed, proven, evidence}: proven is the transport's name, or "" where nothing proves one.

    For the mpi backend: tcp or rdma, on every node. Evidence: sentences with the numbers in them.
    """
    if raw["backend"] == "mpi":
        return _prove_mpi(raw, rows)
    return {"claimed": raw["claim"], "proven": "", "evidence": []}


def bytes_to_move(collective: str, ranks: int, iterations: int, rows: t.Sequence[t.Mapping[str, t.Any]]) -> float:
    """Bytes that cross one rank's link in all timed iterations: busbw's own definition, size × factor, in both halves."""
    factor = FACTORS[collective](ranks) if collective in FACTORS else 1.0
    return 2.0 * iterations * factor * float(sum(row["size_bytes"] for row in rows))


def _prove_mpi(raw: t.Mapping[str, t.Any], rows: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    needed = bytes_to_move(raw["collective"], raw["ranks"], _iterations(raw["argv"]), rows)
    evidence = []
    said = _SELECTED.findall(raw["stderr"]) + _OFI_PROVIDER.findall(raw["stderr"])
    if said:
        evidence.append(f"Open MPI selected {', '.join(dict.fromkeys(said))}")
    seen = {node: _moved(delta, raw["interfaces"].get(node, [])) for node, delta in raw["deltas"].items()}
    for node, (ethernet, rdma) in seen.items():
        evidence.append(
            f"{node}: {ethernet / 1e6:.1f} MB through {', '.join(raw['interfaces'].get(node, [])) or 'no rail'}, "
            f"of them {rdma / 1e6:.1f} MB as RDMA by the HCAs' counters; the run moves {needed / 1e6:.1f} MB a node"
        )
    proven = ""
    if seen and needed and set(seen) == set(raw["nodes"]):
        if all(rdma >= ENOUGH * needed for _, rdma in seen.values()):
            proven = "rdma"
        elif all(ethernet >= ENOUGH * needed and rdma < ENOUGH * needed / 2 for ethernet, rdma in seen.values()):
            proven = "tcp"
    return {"claimed": raw["claim"], "proven": proven, "evidence": evidence}


def _iterations(argv: t.Sequence[str]) -> int:
    return int(argv[argv.index("-n") + 1]) if "-n" in argv else 1


def _moved(delta: t.Mapping[str, t.Any], interfaces: t.Sequence[str]) -> tuple[float, float]:
    """(bytes through the interfaces, bytes moved as RDMA), the busier direction of each."""
    netdevs = [delta["netdevs"].get(name, {}) for name in interfaces]
    ethernet = max(sum(device.get(key, 0) for device in netdevs) for key in ("tx_bytes", "rx_bytes"))
    ports = list(delta["hcas"].values())
    data = max(sum(port.get(key, 0) * DATA_WORD for port in ports) for key in ("port_xmit_data", "port_rcv_data"))
    packets = max(sum(port.get(key, 0) * LARGEST_PACKET for port in ports) for key in ("sent_pkts", "rcvd_pkts"))
    return float(ethernet), float(max(data, min(packets, ethernet) if ethernet else packets))
