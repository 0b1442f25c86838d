# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two run records side by side: settings, speed, findings, and one line on what that comes to."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_settings import settings_changes
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_speed import (
    BETTER,
    NOISE,
    ONLY_AFTER,
    ONLY_BEFORE,
    WORSE,
    speed_changes,
)

Record = t.Mapping[str, t.Any]

#: of a record, what says which run it was
ABOUT = ("run_id", "started", "finished", "collection_version", "verdict")

#: statuses of a comparison that pass the gate
GOOD = ("better", "same")


def compare_runs(before: Record, after: Record, noise: float = NOISE) -> dict[str, t.Any]:
    """{before, after, nodes, settings, speed, findings, verdict}, from two records of this version (see run_reader).

    nodes: {came, went}; findings: {came, went, stayed: how many}; verdict: {status, text}, where status is worse, better, mixed,
    same, or incomparable: both runs measured, and nothing of it is the same measurement.
    """
    speed = speed_changes(before, after, noise)
    findings = _findings(before, after)
    return {
        "before": {key: before.get(key) for key in ABOUT},
        "after": {key: after.get(key) for key in ABOUT},
        "nodes": {
            "came": [node for node in after["inventory"] if node not in set(before["inventory"])],
            "went": [node for node in before["inventory"] if node not in set(after["inventory"])],
        },
        "settings": settings_changes(before, after),
        "speed": speed,
        "findings": findings,
        "verdict": _verdict(speed, findings),
    }


def _findings(before: Record, after: Record) -> dict[str, t.Any]:
    """A finding stays if its kind, node and subject do: its evidence may hold numbers that are never twice the same."""

    def by_key(record: Record) -> dict[tuple[str, str, str], t.Mapping[str, str]]:
        return {(f["id"], f["node"], f["subject"]): f for f in record["findings"]}

    old, new = by_key(before), by_key(after)
    return {
        "came": [finding for key, finding in new.items() if key not in old],
        "went": [finding for key, finding in old.items() if key not in new],
        "stayed": len(old.keys() & new.keys()),
    }


def _verdict(speed: t.Sequence[t.Mapping[str, t.Any]], findings: t.Mapping[str, t.Any]) -> dict[str, str]:
    measured = {side: [series["what"] for series in speed if series[side]] for side in ("before", "after")}
    compared = [series for series in speed if series["status"] not in (ONLY_BEFORE, ONLY_AFTER)]
    if measured["before"] and measured["after"] and not compared:
        return {"status": "incomparable", "text": f"NOT COMPARABLE: {_nothing_in_common(measured)}"}
    slower = [series for series in compared if series["status"] == WORSE]
    faster = [series for series in compared if series["status"] == BETTER]
    errors = [f for f in findings["came"] if f["severity"] == "error"]
    cured = [f for f in findings["went"] if f["severity"] == "error"]
    bad = _counted(slower, "slower") + _named(errors, "new error")
    good = _counted(faster, "faster") + _named(cured, "error gone")
    if bad:
        return {"status": "mixed" if good else "worse", "text": f"WORSE: {'; '.join(bad)}" + _also(good)}
    if good:
        return {"status": "better", "text": f"BETTER: {'; '.join(good)}"}
    said = "no speed changed outside the noise" if compared else "nothing was measured in either run"
    if not measured["before"] or not measured["after"]:
        said = "speed was not compared, since " + (
            "neither run measured"
            if not speed
            else f"only the run {'before' if measured['before'] else 'after'} measured"
        )
    return {"status": "same", "text": f"NO CHANGE FOR THE WORSE: {said}, no error came or went"}


def _also(good: t.Sequence[str]) -> str:
    return f". Better: {'; '.join(good)}" if good else ""


def _counted(series: t.Sequence[t.Mapping[str, t.Any]], word: str) -> list[str]:
    """One clause: how many, and the one that changed most."""
    if not series:
        return []
    failed = next((one for one in series if one["after"]["failures"] and not one["before"]["failures"]), None)
    if failed is not None:
        return [f"{failed['what']} failed ({failed['after']['failures'][0]})"]
    worst = max(series, key=lambda one: abs(_furthest(one)["ratio"] - 1.0))
    point = _furthest(worst)
    return [
        f"{len(series)} of the measurements {word}, most of all {worst['what']}: {point['before_gbs']:.4g} to "
        f"{point['after_gbs']:.4g} GB/s at {point['size_bytes']} bytes"
    ]


def _furthest(series: t.Mapping[str, t.Any]) -> t.Mapping[str, t.Any]:
    """The size that changed most of those that changed."""
    changed = [point for point in series["points"] if point["status"] in (BETTER, WORSE)]
    return max(changed, key=lambda point: abs(point["ratio"] - 1.0))


def _named(findings: t.Sequence[t.Mapping[str, str]], word: str) -> list[str]:
    if not findings:
        return []
    first = findings[0]
    where = " ".join(filter(None, [first["node"], first["subject"]]))
    return [f"{len(findings)} {word}{'s' * (len(findings) > 1 and word != 'error gone')}, first {where}: {first['id']}"]


def _nothing_in_common(measured: t.Mapping[str, t.Sequence[str]]) -> str:
    def listed(side: str) -> str:
        names = measured[side]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    return f"the run before measured {listed('before')}, the run after {listed('after')}, and no collective over the same stage is in both"
