# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What changed in speed between two runs, a collective, transport and size each, and what of it is noise."""

from __future__ import annotations

import dataclasses
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_samples import compare

Record = t.Mapping[str, t.Any]
Run = t.Mapping[str, t.Any]

#: two runs of an unchanged, quiet fabric differ by 5 to 10 % (relative)
NOISE = 0.10
#: and by more where a size is mostly latency: one late interrupt counts for much of so short a time
LATENCY_NOISE = 0.25
#: a size is mostly latency if its busbw is below that share of what larger sizes reach
MOSTLY_LATENCY = 0.5
#: repeats from which a bootstrap interval can be told, and the difference below which it is not worth a word
REPEATS, MATTERS = 3, 0.03

BETTER, WORSE, NOISY, ONLY_BEFORE, ONLY_AFTER = "better", "worse", "noise", "only before", "only after"


@dataclasses.dataclass(frozen=True)
class Key:
    """By what measurements of two runs are the same measurement. node: only where one node ran alone."""

    backend: str
    stage: str
    collective: str
    rail: str
    node: str
    dtype: str
    redop: str
    transport: str

    @property
    def text(self) -> str:
        where = [self.stage, self.node, self.rail and f"rail {self.rail}", self.transport]
        kind = (
            ""
            if (self.dtype, self.redop) in (("float", "sum"), ("float", "none"), ("", ""))
            else f" {self.dtype} {self.redop}"
        )
        return f"{self.collective}{kind} ({self.backend}, {', '.join(filter(None, where))})"

    @property
    def without_transport(self) -> Key:
        return dataclasses.replace(self, transport="")


@dataclasses.dataclass
class Series:
    """One key's measurements of one run record. samples: {size in bytes: busbw (GB/s) of each repeat}.

    spread: {size: relative spread of single iterations}; failures: kinds, where a repeat failed.
    """

    samples: dict[int, list[float]] = dataclasses.field(default_factory=dict)
    spread: dict[int, float] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)
    nodes: list[str] = dataclasses.field(default_factory=list)
    ranks: int = 0
    proven: str = ""

    def mostly_latency(self, size: int) -> bool:
        peak = max((statistics.median(values) for other, values in self.samples.items() if other > size), default=0.0)
        return statistics.median(self.samples[size]) < MOSTLY_LATENCY * peak


def series_of(record: Record) -> dict[Key, Series]:
    """All series of a run record, out-of-place; runs of the same kind are repeats of each other."""
    found: dict[Key, Series] = {}
    for run in record.get("benchmark", {}).get("runs", []):
        kinds = dict.fromkeys((row.get("dtype") or "", row.get("redop") or "") for row in run["rows"]) or {
            ("", ""): None
        }
        for dtype, redop in kinds:
            one = found.setdefault(_key(run, dtype, redop), Series())
            one.nodes, one.ranks = list(run["nodes"]), int(run["ranks"] or 0)
            one.proven = str((run.get("transport") or {}).get("proven") or one.proven)
            if run["failure"]:
                one.failures.append(run["failure"])
            for row in run["rows"]:
                if (row.get("dtype") or "", row.get("redop") or "") == (dtype, redop):
                    _add_row(one, row)
    return found


def _key(run: Run, dtype: str, redop: str) -> Key:
    alone = run["stage"] == "node" and len(run["nodes"]) == 1
    transport = run.get("transport") or {}
    return Key(
        backend=run["backend"],
        stage=run["stage"],
        collective=run["collective"],
        rail=run.get("rail") or "",
        node=run["nodes"][0] if alone else "",
        dtype=dtype,
        redop=redop,
        transport=str(transport.get("claimed") or transport.get("proven") or ""),
    )


def _add_row(series: Series, row: Record) -> None:
    half, size = row["out_of_place"], row["size_bytes"]
    if not half["busbw_gbs"]:
        return
    series.samples.setdefault(size, []).append(half["busbw_gbs"])
    spread = half.get("latency", {}).get("cv_pct")
    if spread is not None:
        series.spread[size] = max(series.spread.get(size, 0.0), spread / 100)


def pair(before: t.Mapping[Key, Series], after: t.Mapping[Key, Series]) -> list[tuple[Key, Key | None, Key | None]]:
    """[(the key to tell it by, key before, key after)] in the order of *before*; None where one run has no such series.

    A series whose transport alone is another one is still the same measurement, as long as it is clear which one is meant.
    """
    pairs: list[tuple[Key, Key | None, Key | None]] = []
    taken = {key for key in after if key in before}
    for key in before:
        other: Key | None = key if key in after else None
        if other is None:
            like = [k for k in after if k not in taken and k.without_transport == key.without_transport]
            rivals = [k for k in before if k not in after and k.without_transport == key.without_transport]
            other = like[0] if len(like) == len(rivals) == 1 else None
            taken.update([other] if other else [])
        pairs.append((key, key, other))
    return pairs + [(key, None, key) for key in after if key not in taken]


def speed_changes(before: Record, after: Record, noise: float = NOISE) -> list[dict[str, t.Any]]:
    """[{what, stage, collective, rail, node, transport, before, after, points, changed, median_ratio, status}], a series each.

    before, after: {nodes, ranks, transport, repeats, failures}, None where that run has no such series. points: a size each,
    [{size_bytes, before_gbs, after_gbs, ratio, band, status, why}]: medians of busbw, and the relative band within which a
    difference is noise. median_ratio: over the sizes that are not mostly latency. noise: the least band.
    """
    old, new = series_of(before), series_of(after)
    return [
        _series_change(key, old.get(was) if was else None, new.get(now) if now else None, now, noise)
        for key, was, now in pair(old, new)
    ]


def _series_change(key: Key, old: Series | None, new: Series | None, now: Key | None, noise: float) -> dict[str, t.Any]:
    points = [_point(size, old, new, noise) for size in sorted({*_sizes(old), *_sizes(new)})]
    compared = [point for point in points if point["ratio"] is not None]
    large = [point["ratio"] for point in compared if not point["latency"]] or [point["ratio"] for point in compared]
    statuses = {point["status"] for point in points}
    status = WORSE if WORSE in statuses else BETTER if BETTER in statuses else NOISY
    if old is None or new is None or not compared:
        status = ONLY_AFTER if old is None else ONLY_BEFORE if new is None else NOISY
    if old and new and new.failures and not old.failures:
        status = WORSE
    return {
        "what": key.text,
        "stage": key.stage,
        "collective": key.collective,
        "rail": key.rail,
        "node": key.node,
        "transport": key.transport,
        "before": _about(old, key),
        "after": _about(new, now or key),
        "points": points,
        "median_ratio": statistics.median(large) if large else None,
        "status": status,
    }


def _sizes(series: Series | None) -> t.Iterable[int]:
    return series.samples if series else ()


def _about(series: Series | None, key: Key) -> dict[str, t.Any] | None:
    if series is None:
        return None
    return {
        "nodes": series.nodes,
        "ranks": series.ranks,
        "transport": series.proven or key.transport,
        "repeats": max((len(values) for values in series.samples.values()), default=0),
        "failures": series.failures,
    }


def _point(size: int, old: Series | None, new: Series | None, noise: float) -> dict[str, t.Any]:
    was = old.samples.get(size) if old else None
    now = new.samples.get(size) if new else None
    point = {
        "size_bytes": size,
        "before_gbs": statistics.median(was) if was else None,
        "after_gbs": statistics.median(now) if now else None,
        "ratio": None,
        "band": None,
        "latency": False,
    }
    if not old or not new or not was or not now:
        return {**point, "status": ONLY_AFTER if not was else ONLY_BEFORE, "why": ""}
    point["latency"] = old.mostly_latency(size)
    if min(len(was), len(now)) >= REPEATS:
        return {**point, **_by_repeats(was, now)}
    return {**point, **_by_band(size, old, new, noise, bool(point["latency"]))}


def _by_repeats(was: t.Sequence[float], now: t.Sequence[float]) -> dict[str, t.Any]:
    """From what repeats of the same measurement differ by among themselves."""
    told = compare(now, was)
    matters = abs(told.ratio - 1.0) > MATTERS
    status = BETTER if told.better and matters else WORSE if told.worse and matters else NOISY
    why = f"{len(was)} and {len(now)} repeats: {told.low:.3g} to {told.high:.3g} times with 95 % confidence"
    return {"ratio": told.ratio, "band": (told.high - told.low) / 2, "status": status, "why": why}


def _by_band(size: int, old: Series, new: Series, noise: float, latency: bool) -> dict[str, t.Any]:
    """Without repeats: what unchanged fabrics differ by, or what single iterations differed by here if that is more."""
    ratio = statistics.median(new.samples[size]) / statistics.median(old.samples[size])
    spread = (old.spread.get(size, 0.0) ** 2 + new.spread.get(size, 0.0) ** 2) ** 0.5
    usual = max(noise, LATENCY_NOISE) if latency else noise
    band = max(usual, spread)
    status = BETTER if ratio > 1.0 + band else WORSE if ratio < 1.0 / (1.0 + band) else NOISY
    source = (
        "iterations differed by as much"
        if spread > usual
        else "mostly latency"
        if latency
        else "usual between two runs"
    )
    return {"ratio": ratio, "band": band, "status": status, "why": f"noise is ±{band:.0%}: {source}"}
