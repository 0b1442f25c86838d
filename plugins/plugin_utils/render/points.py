# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verdicts of single sizes as a reader wants them: those that failed in full, a thousand that pass as a number."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed

Verdict = t.Mapping[str, t.Any]

#: verdicts in one table; beyond that, those that pass are left out first
MOST_POINTS = 500


class Points(t.NamedTuple):
    """counts: {status: how many}; shown: verdicts in the record's order; left_out: how many are not among them."""

    counts: dict[str, int]
    shown: list[Verdict]
    left_out: int


def points_of(record: t.Mapping[str, t.Any]) -> Points:
    """What of the record's verdicts a table shows."""
    verdicts: list[Verdict] = record["verdicts"]
    counts = dict(collections.Counter(str(verdict["status"]) for verdict in verdicts))
    shown = verdicts
    if len(verdicts) > MOST_POINTS:
        shown = [verdict for verdict in verdicts if verdict["status"] != "pass"][:MOST_POINTS]
    return Points(counts, shown, len(verdicts) - len(shown))


def on(verdict: Verdict) -> str:
    """Where a verdict was measured: nodes, rail and transport."""
    return ", ".join(filter(None, [listed(verdict["nodes"]), verdict["rail"], verdict["transport"]]))
