# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a step's messages will take, from messages that were timed alone with the same library and settings. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_cost import Curves, curves_of, price
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message


@dataclasses.dataclass(frozen=True)
class Prices:
    """The two ways in which messages go. following: one at once after another; apart: each by itself, beside computation."""

    following: Curves
    apart: Curves


def prices_of(answers: t.Iterable[t.Mapping[str, t.Any]], ranks: int) -> Prices:
    """answers: of the ranks, of which those with ``price`` count: {price: collective, size_bytes, time_us, apart_us}."""
    known = [answer for answer in answers if "price" in answer]
    return Prices(*(_curves(known, ranks, key) for key in ("time_us", "apart_us")))


def _curves(known: t.Sequence[t.Mapping[str, t.Any]], ranks: int, key: str) -> Curves:
    return curves_of(
        {
            "collective": one["price"],
            "ranks": ranks,
            "rows": [{"size_bytes": one["size_bytes"], "out_of_place": {"time_us": one.get(key)}}],
        }
        for one in known
    )


def predict(messages: t.Sequence[Message], prices: Prices, free_s: float) -> dict[str, t.Any]:
    """workload_cost.price() of the step's messages, with pattern: ``following`` or ``apart``.

    free_s: what the step takes but for communication that nothing hides. Messages that would take longer than that
    queue, and follow each other; where there is time for all of them, each finds the network idle.
    """
    following = price(messages, prices.following)
    apart = price(messages, prices.apart)
    if following["seconds"] > free_s or apart["missing"]:
        return {**following, "pattern": "following"}
    return {**apart, "pattern": "apart"}
