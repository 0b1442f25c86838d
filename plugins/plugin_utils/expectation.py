# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbw a healthy fabric should give: computed from the nodes' NICs and GPUs, from a baseline, or as the user says.

The model is two numbers a run: the bandwidth of the narrowest link that every rank's data crosses, and a latency that
grows with the number of steps. busbw(size) = bytes on that link / (latency + bytes on that link / bandwidth).
nccl-tests defines busbw so that it can be held against hardware whatever the number of ranks (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import re
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS, parse_size
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.line_rates import LineRates, Nodes

Run = t.Mapping[str, t.Any]
Baseline = t.Mapping[tuple[str, str, str, str, str, int], float]

DATA = pathlib.Path(__file__).parent / "data"

#: collectives in which each rank's data leaves through one NIC of its own, however many the node has
ONE_NIC = frozenset({"alltoall", "sendrecv", "gather", "scatter"})
#: a size that is mostly latency may take so many times the expected time: what one operation takes varies more than bandwidth
MOST_LATENCY = 3.0
#: Gb/s to GB/s
GBIT = 1 / 8


@dataclasses.dataclass(frozen=True)
class Expectation:
    """For one run. line_rate_gbs: of the narrowest link, GB/s, None where nothing tells it; source: a sentence on where it is from.

    peak_gbs: the busbw that a healthy fabric approaches with size; latency_us: what one operation takes at least.
    """

    line_rate_gbs: float | None
    peak_gbs: float | None
    latency_us: float
    source: str

    def busbw_gbs(self, collective: str, size_bytes: int, ranks: int) -> float | None:
        """Least busbw (GB/s) for *size_bytes*, None where nothing can be expected."""
        if self.peak_gbs is None or size_bytes <= 0:
            return None
        moved = size_bytes * (FACTORS[collective](ranks) if collective in FACTORS else 1.0)
        seconds = self.latency_us / 1e6 + moved / (self.peak_gbs * 1e9)
        return moved / seconds / 1e9


@functools.cache
def constants() -> dict[str, t.Any]:
    """data/expectation.json: efficiencies, latencies in µs, NVLink bandwidth a GPU and direction in GB/s."""
    return t.cast("dict[str, t.Any]", json.loads((DATA / "expectation.json").read_text()))


@dataclasses.dataclass(frozen=True)
class Point:
    """What is expected of one size. busbw_gbs: GB/s, None where nothing tells it; source: where it is from, as a sentence.

    kind: the same in a word: user, baseline or computed. allowed_us: for a size that is mostly latency, the time that it
    may take, in µs; else None.
    """

    busbw_gbs: float | None
    source: str
    allowed_us: float | None = None
    kind: str = "computed"


class Expectations:
    """For all sizes of one run: the user's own numbers first, then a baseline's, then the computed ones.

    rates: of the HCAs of *nodes*; baseline: {key_of(): busbw} of an accepted run, see read_baseline().
    """

    def __init__(
        self,
        run: Run,
        settings: t.Mapping[str, t.Any],
        nodes: Nodes,
        rates: LineRates,
        baseline: Baseline | None = None,
    ) -> None:
        self._run = run
        self._told = settings.get("nccl_tests_expect") or []
        self._baseline = baseline or {}
        self.computed = expect(run, settings, nodes, rates)

    def at(self, size_bytes: int) -> Point:
        for entry in self._told:
            fits = entry.get("collective") in (None, self._run["collective"]) and entry.get("stage") in (
                None,
                self._run["stage"],
            )
            if fits and size_bytes >= parse_size(str(entry.get("min_bytes", 0))):
                return Point(float(entry["busbw_gbs"]), "nccl_tests_expect", kind="user")
        busbw = self.computed.busbw_gbs(self._run["collective"], size_bytes, self._run["ranks"])
        peak = self.computed.peak_gbs
        mostly_latency = busbw is not None and peak is not None and busbw < peak / 2
        accepted = self._baseline.get(key_of(self._run, size_bytes))
        kind, source = ("baseline", "the baseline") if accepted else ("computed", self.computed.source)
        busbw = accepted or busbw
        if not busbw:  # one rank alone moves nothing, so busbw is 0 by its definition
            return Point(None, source if size_bytes else "")
        if not mostly_latency:
            return Point(busbw, source, kind=kind)
        factor = FACTORS[self._run["collective"]](self._run["ranks"]) if self._run["collective"] in FACTORS else 1.0
        return Point(busbw, source, MOST_LATENCY * size_bytes * factor / (busbw * 1e3), kind)


def key_of(run: Run, size_bytes: int) -> tuple[str, str, str, str, str, int]:
    """By what a row of one run is the same as a row of another; a node that ran alone is its own measure."""
    alone = run["nodes"][0] if run["stage"] == "node" and len(run["nodes"]) == 1 else ""
    return (run["collective"], run["stage"], run["rail"], run["transport"]["claimed"], alone, size_bytes)


def read_baseline(record: t.Mapping[str, t.Any]) -> Baseline:
    """Out-of-place busbw of every row of a run record, by key_of(); of repeats the median."""
    found: dict[tuple[str, str, str, str, str, int], list[float]] = {}
    for run in record.get("benchmark", {}).get("runs", []):
        for row in run["rows"]:
            if row["out_of_place"]["busbw_gbs"]:
                found.setdefault(key_of(run, row["size_bytes"]), []).append(row["out_of_place"]["busbw_gbs"])
    return {key: statistics.median(values) for key, values in found.items()}


def published(run: Run, nodes: Nodes) -> t.Mapping[str, t.Any] | None:
    """What others published for these GPUs, this collective and stage (data/published_busbw.json), None where nobody did."""
    gpus = [
        gpu for node in run["nodes"] for gpu in nodes.get(node, {}).get("node", {}).get("observed", {}).get("gpus", [])
    ]
    if not gpus:
        return None
    for figure in json.loads((DATA / "published_busbw.json").read_text())["figures"]:
        same = (figure["collective"], figure["stage"], figure["gpus"]) == (
            run["collective"],
            run["stage"],
            run["ranks"],
        )
        if same and figure["gpu"] in gpus[0]["name"]:
            return t.cast("t.Mapping[str, t.Any]", figure)
    return None


def expect(run: Run, settings: t.Mapping[str, t.Any], nodes: Nodes, rates: LineRates) -> Expectation:
    """The expectation for one run. settings: the role's variables; nodes: what was observed on each node; rates: of their HCAs."""
    backend, claim = run["backend"], run["transport"]["claimed"]
    line_rate, source = _line_rate(run, settings, nodes, rates)
    efficiency = settings.get("nccl_tests_efficiency") or constants()["efficiency"][backend].get(claim, 0.5)
    floor = constants()["latency_us"][backend].get(claim, 100.0)
    steps = math.ceil(math.log2(max(run["ranks"], 2))) * 2
    latency = settings.get("nccl_tests_latency_us") or floor + steps * constants()["hop_us"][backend].get(claim, 10.0)
    if line_rate is None:
        return Expectation(None, None, latency, source)
    peak = line_rate * efficiency
    return Expectation(line_rate, peak, latency, f"{source}, of which {efficiency:.0%} is expected")


def _line_rate(run: Run, settings: t.Mapping[str, t.Any], nodes: Nodes, rates: LineRates) -> tuple[float | None, str]:
    """(GB/s that one rank's data can get at most, where the number is from)."""
    if run["stage"] == "node":
        return _nvlink(run, settings, nodes)
    per_node = len(run["nodes"]) and run["ranks"] // len(run["nodes"])
    told = settings.get("nccl_tests_line_rate_gbps")
    if told:
        rails = max(len(rates.of(run["nodes"][0])), 1) if run["rail"] else 1
        ports, gbps = 1, float(told) / rails
        source = f"{gbps:g} Gb/s a node (nccl_tests_line_rate_gbps" + (f" over {rails} rails)" if rails > 1 else ")")
    else:
        every = {node: rates.of(node, run["rail"]) for node in run["nodes"]}
        poorest = min(every, key=lambda node: sum(every[node]), default="")
        if not poorest or not every[poorest]:
            return None, "no active HCA tells a rate"
        ports, gbps = len(every[poorest]), sum(every[poorest])
        source = f"{ports} × {every[poorest][0]:g} Gb/s" + ("" if ports > 1 else " a node")
    if run["collective"] in ONE_NIC and per_node > 1:
        share = gbps / per_node if ports >= per_node else gbps / ports
        crossing = max(run["ranks"] - per_node, 1) / max(run["ranks"] - 1, 1)
        if run["collective"] == "alltoall":
            # Only the part for other nodes crosses the NIC, while busbw counts the part for the own node, too.
            return share * GBIT / crossing, f"{source}, one NIC a rank"
        return share * GBIT, f"{source}, one NIC a rank"
    return gbps * GBIT, source


def _nvlink(run: Run, settings: t.Mapping[str, t.Any], nodes: Nodes) -> tuple[float | None, str]:
    told = settings.get("nccl_tests_nvlink_gbs")
    if told:
        return float(told), f"{told} GB/s a GPU (nccl_tests_nvlink_gbs)"
    gpus = [
        gpu for node in run["nodes"] for gpu in nodes.get(node, {}).get("node", {}).get("observed", {}).get("gpus", [])
    ]
    rate = nvlink_gbs(gpus[0]["name"]) if gpus else None
    if rate is not None:
        return rate, f"NVLink of {gpus[0]['name']}, {rate:g} GB/s a direction"
    return None, f"no figure for the links of {gpus[0]['name']}" if gpus else "no GPU is known"


def nvlink_gbs(gpu: str) -> float | None:
    """One GPU's NVLink bandwidth in one direction in GB/s, by its name; None for GPUs without NVLink or of another name."""
    for entry in constants()["nvlink_gbs"]:
        if re.search(entry["match"], gpu):
            return float(entry["gbs"])
    return None
