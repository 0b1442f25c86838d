# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shape that both writers of nccl-tests, text and JSON, are read into. PRIVATE to the collection.

Units throughout: sizes in bytes, times in µs, algbw and busbw in GB/s (1e9 bytes/s), ``wrong`` in elements (the largest relative
error where a version before 2.13 printed an ``error`` column).
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

Number = t.Union[int, float]

_COLLECTIVE = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|reduce|send_?recv|scatter|gather|hypercube)"
    r"_perf(?!\.cu)",
    re.IGNORECASE,
)


_NO_RUN = re.compile(  # building, and `ls -1` of what was built
    r"\b(?:Compiling|Linking|Archiving|nvcc|hipcc|g\+\+|gcc|ld)\s|\bmake(?:\[\d{1,3}\])?: |^\s{0,80}\w{1,40}_perf\*?\s{0,80}$"
)


def collective_of(text: str) -> str | None:
    """The collective that the first ``*_perf`` name in the text stands for, without underscores, e.g. ``allreduce``."""
    match = _COLLECTIVE.search(text)
    return match.group(1).lower().replace("_", "") if match else None


def collective_run_by(line: str) -> str | None:
    """The collective that a line runs or speaks of; None for a compiler's line and for a listing of several programs."""
    if _NO_RUN.search(line[:2000]):
        return None
    named = {match.group(1).lower().replace("_", "") for match in _COLLECTIVE.finditer(line)}
    return named.pop() if len(named) == 1 else None


@dataclasses.dataclass
class Half:
    """Out-of-place or in-place of one row; every field is None where the writer left the half blank or printed N/A."""

    time_us: Number | None = None
    algbw: Number | None = None
    busbw: Number | None = None
    wrong: Number | None = None
    per_iteration: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    extra: dict[str, Number | None] = dataclasses.field(default_factory=dict)

    def finite(self) -> bool:
        return all(
            value is None or math.isfinite(value) for value in (self.time_us, self.algbw, self.busbw, self.wrong)
        )

    def values(self) -> list[Number | None]:
        return [self.time_us, self.algbw, self.busbw, self.wrong]

    def as_dict(self) -> dict[str, t.Any]:
        shown: dict[str, t.Any] = {
            "time_us": self.time_us,
            "algbw": self.algbw,
            "busbw": self.busbw,
            "wrong": self.wrong,
        }
        if self.per_iteration:
            shown["per_iteration"] = self.per_iteration
        shown.update(self.extra)
        return shown


@dataclasses.dataclass
class Row:
    """One line of a table. ``size`` is bytes as printed, ``count`` elements per rank; ``root`` -1 where none applies."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Half
    in_place: Half
    timestamp: str | None = None
    iterations: int | None = None

    def finite(self) -> bool:
        return self.out_of_place.finite() and self.in_place.finite()

    def counted(self) -> bool:
        """Whether #wrong was really counted in one of the halves."""
        return self.out_of_place.wrong is not None or self.in_place.wrong is not None

    def flat(self) -> list[t.Any]:
        return [self.size, self.type, self.redop, self.root, *self.out_of_place.values(), *self.in_place.values()]

    def as_dict(self) -> dict[str, t.Any]:
        shown = {
            "size": self.size,
            "count": self.count,
            "type": self.type,
            "redop": self.redop,
            "root": self.root,
            "out_of_place": self.out_of_place.as_dict(),
            "in_place": self.in_place.as_dict(),
        }
        if self.timestamp:
            shown["timestamp"] = self.timestamp
        if self.iterations is not None:
            shown["iterations"] = self.iterations
        return shown


@dataclasses.dataclass
class Table:
    """One run of one benchmark: what it said of itself, its rows, its footer."""

    program: str | None = None
    collective: str | None = None
    version: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    devices: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    max_bytes_reduced_to: int | None = None
    has_header: bool = False
    rows: list[Row] = dataclasses.field(default_factory=list)
    non_finite: list[Row] = dataclasses.field(default_factory=list)
    unreadable: int = 0
    half_rows: int = 0
    out_of_bounds: tuple[int, str] | None = None
    avg_busbw: float | None = None
    avg_verdict: str | None = None

    def add(self, row: Row) -> None:
        (self.rows if row.finite() else self.non_finite).append(row)

    def empty(self) -> bool:
        """Whether nothing that belongs to a table's body or footer has been seen yet."""
        return not (self.has_header or self.rows or self.non_finite or self.unreadable or self.footer_begun())

    def footer_begun(self) -> bool:
        return self.out_of_bounds is not None or self.avg_busbw is not None

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "program": self.program,
            "collective": self.collective,
            "version": self.version,
            "options": self.options,
            "devices": self.devices,
            "max_bytes_reduced_to": self.max_bytes_reduced_to,
            "rows": [row.as_dict() for row in self.rows],
            "non_finite_rows": [row.as_dict() for row in self.non_finite],
            "half_rows": self.half_rows,
            "out_of_bounds": list(self.out_of_bounds) if self.out_of_bounds else None,
            "avg_busbw": self.avg_busbw,
            "avg_verdict": self.avg_verdict,
            "completed": bool(self.rows) and self.avg_busbw is not None,
        }


@dataclasses.dataclass
class Output:
    """Everything that one output of nccl-tests said, before it is summed up."""

    format: str
    collective: str | None = None
    tables: list[Table] = dataclasses.field(default_factory=list)
    headers: int = 0
    footers: int = 0
    ranks: int | None = None
    rank_twice: bool = False
    nccl_version: str | None = None
    json_path: str | None = None
    test_failures: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    time_limits: list[str] = dataclasses.field(default_factory=list)
    failing_hosts: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    def fail_on(self, host: str | None) -> None:
        if host and host not in self.failing_hosts:
            self.failing_hosts.append(host)

    def _failure(self, rows: int) -> str | None:
        """The first that holds, the gravest cause first: what a program said beats what can be concluded from its table."""
        said = [failure["kind"] for failure in self.test_failures]
        if said:
            return str(said[0])
        if self.time_limits:
            return "timeout"
        if any(table.out_of_bounds and table.out_of_bounds[1] == "FAILED" for table in self.tables):
            return "wrong_results"
        if self.rank_twice:
            return "not_one_communicator"
        if self.ranks == 1:
            return "single_rank"
        averages = [table.avg_busbw for table in self.tables if table.avg_busbw is not None]
        if any(table.non_finite for table in self.tables) or not all(map(math.isfinite, averages)):
            return "non_finite_values"
        if not rows and any(table.unreadable for table in self.tables):
            return "unparseable"
        return None

    def summary(self) -> dict[str, t.Any]:
        """The answer of parse_nccl_tests(); see there for the keys."""
        rows = [row for table in self.tables for row in table.rows]
        measured = rows + [row for table in self.tables for row in table.non_finite]
        return {
            "format": self.format,
            "collective": self.collective,
            "ranks": self.ranks,
            "rows": [row.flat() for row in rows],
            "avg_busbw_printed": [table.avg_busbw for table in self.tables if table.avg_busbw is not None],
            "out_of_bounds": [list(table.out_of_bounds) for table in self.tables if table.out_of_bounds],
            "completed": bool(rows) and self.footers > 0 and self.footers >= self.headers,
            "validated": any(row.counted() for row in measured),
            "failure": self._failure(len(rows)),
            "failing_hosts": self.failing_hosts,
            "test_failures": self.test_failures,
            "time_limits": self.time_limits,
            "errors": self.errors,
            "nccl_version": self.nccl_version,
            "json_path": self.json_path,
            "non_finite_rows": sum(len(table.non_finite) for table in self.tables),
            "unreadable_rows": sum(table.unreadable for table in self.tables),
            "half_rows": sum(table.half_rows for table in self.tables),
            "tables": [table.as_dict() for table in self.tables],
        }
