# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster for autotune's tests that answers at once, with the failures that real ones have. No test itself."""

from __future__ import annotations

import random
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import steps
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Knob, Settings, Space
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_objective import Objective, Part, for_busbw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import Budget, Measured, NodeLostError

SPACE = Space(
    (
        Knob("btl_tcp_links", (None, "2", "4"), "1"),
        Knob("btl_tcp_sndbuf", (None, "65536", "1048576", "4194304"), "0"),
        Knob("btl_tcp_eager_limit", (None, "16384", "262144"), "65536"),
    )
)
OBJECTIVE = for_busbw("all_reduce", ["4M"])
OTHERS = (Part("all_gather", 1 << 20, 1 << 20, probe=True), Part("alltoall", 1 << 20, 1 << 20, probe=True))
BUDGET = Budget(trials=20, minutes=30)


def speed(settings: Settings) -> float:
    """GB/s: 1 with nothing set, 3 with a send buffer of 1 MiB."""
    return {"1048576": 3.0, "4194304": 2.0}.get(settings.get("btl_tcp_sndbuf", ""), 1.0)


class Cluster:
    """seconds: of a launch; failing: settings -> kind of failure or ""; lost_after: launches after which a node is gone."""

    def __init__(
        self,
        speed_of: t.Callable[[Settings], float] = speed,
        noise: float = 0.03,
        failing: t.Callable[[Settings, Part], str] = lambda settings, part: "",
        lost_after: int = 10_000,
        seconds: float = 5.0,
    ) -> None:
        self.speed_of, self.noise, self.failing, self.lost_after = speed_of, noise, failing, lost_after
        self.seconds = seconds
        self.now = 0.0
        self.launches: list[tuple[dict[str, str], Part, float]] = []
        self.sentences: list[str] = []
        self._chance = random.Random(3)

    def measure(self, settings: Settings, part: Part, limit_s: float) -> Measured:
        if len(self.launches) >= self.lost_after:
            raise NodeLostError("n2 went away: it closed its connection; the study is kept")
        self.launches.append((dict(settings), part, limit_s))
        failure = self.failing(settings, part)
        took = limit_s if failure == "timeout" else self.seconds * (0.3 if part.probe else 1.0)
        self.now += took
        busbw = self.speed_of(settings) * self._chance.gauss(1, self.noise)
        rows = [
            {"size_bytes": size, "out_of_place": {"busbw_gbs": busbw, "time_us": size / busbw / 1e3}}
            for size in steps(part.min_bytes, part.max_bytes, part.factor)
        ]
        run = {"collective": part.collective, "ranks": 2, "rows": [] if failure else rows, "failure": failure}
        return Measured(run, failure, took)

    def clock(self) -> float:
        return self.now

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


__all__ = ["BUDGET", "OBJECTIVE", "OTHERS", "SPACE", "Budget", "Cluster", "Objective", "speed"]
