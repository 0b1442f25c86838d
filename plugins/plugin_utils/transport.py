# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which transport a run really used, from what the nodes' counters and the library's own words say."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log

#: share of the bytes that a run must move at least, which the counters of its interfaces must have seen
ENOUGH = 0.8
#: bytes in the largest packet of InfiniBand and RoCE: packets counted times this are at least the bytes moved
LARGEST_PACKET = 4096
#: port_xmit_data counts words of 4 bytes, Documentation/ABI/stable/sysfs-class-infiniband
DATA_WORD = 4

#: what of parse_nccl_log()'s answer stays with the run
LOG_KEYS = (
    "transport", "gdr", "nccl_version", "plugin", "hcas", "failure", "channels", "algorithms", "gdr_by_host", "hcas_by_host",
    "net_devices_used", "interfaces_by_host", "layout", "versions",
)  # fmt: skip

_SELECTED = re.compile(r"select: component (\w+) selected")
_OFI_PROVIDER = re.compile(r"mtl:ofi:prov(?:ider)?: (\S+)")


def prove(raw: t.Mapping[str, t.Any], rows: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """{claimed, proven, evidence}: proven is the transport's name, or "" where nothing proves one.

    For the mpi backend: tcp or rdma, on every node. For nccl: the family of the network plug-in (IB, Socket, AWS Libfabric, gIB), or
    P2P or SHM where no network was used; then also what the log says of GPUDirect RDMA, HCAs and channels.
    Evidence: sentences with the numbers in them.
    """
    if raw["backend"] == "mpi":
        return _prove_mpi(raw, rows)
    return _prove_nccl(raw)


def family(network: str) -> str:
    """The family of a network's name as NCCL prints it: HPC-X's IBext_v8 is IB, too."""
    return "IB" if re.fullmatch(r"IB(ext(_v\d+)?)?", network, re.IGNORECASE) else network


def _prove_nccl(raw: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """From the NCCL logs of the nodes that were brought back, else from what the ranks printed."""
    files = [text for logs in raw["logs"].values() for text in logs.values()]
    log = parse_nccl_log("\n".join(files) if files else _printed(raw))
    kinds: dict[str, int] = log["transports"]
    networks = {family(name) for kind in kinds if kind.startswith("NET/") for name in [kind.split("/")[1]]}
    inside = {kind.split("/")[0] for kind in kinds if not kind.startswith("NET/")}
    used = networks or inside
    evidence = [f"NCCL {log['nccl_version']}"] if log["nccl_version"] else []
    evidence += [f"{channels} channel(s) via {kind}" for kind, channels in kinds.items()]
    if log["transport"] and networks:
        evidence.append(f"network {log['transport']}" + (f", plug-in {log['plugin']}" if log["plugin"] else ""))
    if log["gdr"] is not None and networks:
        evidence.append(f"GPUDirect RDMA: {log['gdr']}")
    return {
        "claimed": raw["claim"],
        "proven": next(iter(used)) if len(used) == 1 else "+".join(sorted(used)),
        "evidence": evidence,
        "log": {key: log[key] for key in LOG_KEYS},
    }


def _printed(raw: t.Mapping[str, t.Any]) -> str:
    alone = raw.get("alone") or {}
    return "\n".join([raw["stdout"], raw["stderr"], *(node["stdout"] for node in alone.values() if "stdout" in node)])


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
        if all(rdma >= ENOUGH * needed for _unused, rdma in seen.values()):
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
