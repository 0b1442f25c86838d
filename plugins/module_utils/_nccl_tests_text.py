# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the text that nccl-tests prints, every version since 1.0. PRIVATE to the collection.

Formats: src/common.cu and src/util.cu of nccl-tests, every change of the table's print statements from 2017 to 2.19.6.
Columns are taken by the names of the header that precedes them; an excerpt without header is read by the number of its fields.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._captured_text import unpacked
from ansible_collections.gpufabric.cluster.plugins.module_utils._launcher_text import LABEL, lines_of
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_table import (
    Half,
    Number,
    Output,
    Row,
    Table,
    collective_of,
    collective_run_by,
)

_TYPE = r"(?:u?int(?:8|16|32|64)?(?:_t)?|u?char|half|double|b?float(?:16|32|64)?|bf16|f(?:16|32|64)|(?:fp|f|float)8_?e\dm\d\w{0,6})"
# People who copy a table by hand shorten its counts (2.68e+8) and group the digits of its sizes (1,048,576).
_COUNT = r"\d{1,20}(?:,\d{3}){0,6}"
_ROW = re.compile(rf"(?<![\w.,])({_COUNT})\s{{1,80}}({_COUNT}|\d\.\d{{1,6}}e\+?\d{{1,2}})\s{{1,80}}({_TYPE})(?=\s|$)")
_REDOP = re.compile(r"\s{1,80}(?!(?:nan|inf)\b)([a-z][a-z0-9_]{1,15})(?=\s|$)")
_ROOT = re.compile(r"\s{1,80}(-?\d{1,6})(?![\d.eE])")
# A value may be glued to whatever another process wrote: "0node7: Test NCCL failure".
_VALUE = re.compile(r"\s{0,200}((?:N/A|[-+]?(?:nan|inf)|[-+]?\d{1,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|[X.]{2,20}))")
_GLUED_HOST = re.compile(r"(\S{1,256}?):\d{1,10}:\d{1,10} \[|(\S{1,256}): Test (?:CUDA|NCCL|timeout)")
_STAMP = re.compile(r"\s{1,80}(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_HALF_NAME = re.compile(r"(?:out-of|in)-place")
_HALVES = re.compile(r"\bout-of-place\b|(?:^|[\s#|>:])in-place\s{0,80}$")
_HEADER = re.compile(r"\b(?:size|bytes)\s+(?:count|N)\s+type\b(.*)")
# What a web page or a JSON line has glued behind the last name is none of it.
_HEADER_NAME = re.compile(r"(?<!\S)[#\w]+%?")
_INSIDE_A_NUMBER = frozenset("0123456789.")
_LONGEST_LABEL = 300
_SHAPE_PARTS = re.compile(r"([0-9]+|\s+)")
_LONGEST_ROW = 4000  # characters, what may be glued behind it included
_COLUMNS_OF_A_TABLE = 9
_BLANK_HALF = 24  # writeBenchMarkLineNullBody() leaves 32 blanks where the out-of-place half would stand

_OPTIONS = re.compile(r"\bnThreads?\b:?\s*\d+\s+nGpus\b")
_OPTION = re.compile(
    r"\b(nThreads?|nGpus|nRanks|minBytes|maxBytes|step|warmup ?[Ii]ters|agg ?[Ii]ters|iters|validation|graph|unalign|"
    r"side_work|work_sms)\s*:?\s*(\d{1,20})(?:\((factor|bytes)\))?"
)
_OPTION_NAMES = {
    "nthread": "threads",
    "nthreads": "threads",
    "ngpus": "gpus",
    "nranks": "ranks",
    "minbytes": "min_bytes",
    "maxbytes": "max_bytes",
    "warmupiters": "warmup_iterations",
    "aggiters": "aggregated_iterations",
    "iters": "iterations",
}
_VERSION = re.compile(r"nccl-tests version (\S+)(?: nccl-headers=(\d+))?(?: nccl-library=(\d+))?")
_COMPILED = re.compile(r"NCCL Tests compiled with NCCL (\S+)")
_NCCL_VERSION = re.compile(r"\bR?NCCL version\s*:?\s*(\d{1,4}\.\d[\w.+\-]*)")
_LOG_PREFIX = re.compile(r"\s{0,8}([^\s:]{1,256}):\d{1,10}:\d{1,10} \[")
_STARTING = re.compile(r"Collective test starting: (\S+)")
_DEVICE = re.compile(
    r"\bRank\s+(\d{1,7})(?:\s+Group\s+(\d{1,7}))?(?:\s+Pid\s+(\d{1,10}))?\s+(?:on\s+(\S{1,256})|uses)\s+device\s+(\d{1,5})"
    r"\s+\[([^\]]{0,32})\]\s*(.*)"
)
_REDUCING = re.compile(r"Reducing maxBytes to (\d{1,20})")
# `column -t` widens every gap.
_OUT_OF_BOUNDS = re.compile(r"Out\s{1,80}of\s{1,80}bounds\s{1,80}values\s*:\s*(\d{1,18})\s+(OK|FAILED)\b")
_AVERAGE = re.compile(
    r"Avg\s{1,80}bus\s{1,80}bandwidth\s*:\s*([-+]?(?:nan|inf|[0-9.]+(?:[eE][-+]?\d{1,3})?))?(?:\s+(OK|FAILED))?"
)
_JSON_AT = re.compile(r"# Writing JSON output to (\S.*?)\s*$")
# The host is optional (posters cut it, version 1 had none), the closing quote too.
_TEST_FAILURE = re.compile(
    r"(?:([A-Za-z0-9][\w.\-]{0,255}):\s)?Test (CUDA|NCCL) failure (\S{1,200}?):(\d{1,7})\s*'?([^'\n]{0,2000})"
)
_OLD_FAILURE = re.compile(r"\b(Cuda|NCCL) failure (\S{1,200}\.(?:cu|h|cc)):(\d{1,7}) '([^'\n]{0,2000})")
_TEST_TRACE = re.compile(r"\.\. ?(\S{1,256}) pid (\d{1,10}): Test failure (\S{1,200}):(\d{1,7})")
_TEST_TIMEOUT = re.compile(r"(?:([A-Za-z0-9][\w.\-]{0,255}):\s)?Test timeout \(-?\d{1,9}s?\)")
_TIME_LIMIT = re.compile(
    r"DUE TO TIME LIMIT|[Ee]xceeded (?:job )?time ?limit|time limit (?:for job execution )?(?:has been |was )?"
    r"(?:reached|exceeded|exhausted)|walltime \d+ exceeded limit|TERM_RUNLIMIT|exceeded hard wallclock time|"
    r"timeout: sending signal|APPLICATION TIMED OUT|DeadlineExceeded|active longer than specified deadline|"
    r"async task did not complete within the requested time"
)
_COMMAND = re.compile(r"(?:^|[$#>] ?)(?:\w+=\S* )*(?:mpirun|mpiexec|srun|\S*/\w+_perf) .*_perf\b|[$>] .*_perf\b")
_ERRORS = re.compile(
    r"^(?:.{0,200}?)(# error: .*|invalid (?:option|type|op|size|sizes) .*|Invalid number of GPUs: .*|"
    r"Incompatible NCCL versions.*|# skipping json output; .*|Option -\w .*(?:not supported|requires).*|"
    r"[Dd]evice implementation .*(?:not supported|requires).*)$"
)


class _Layout(t.NamedTuple):
    """Where the values of a row belong: the names of each half's columns, and whether redop and root have one."""

    redop: bool | None
    root: bool | None
    halves: tuple[tuple[str, ...], ...]
    milliseconds: bool

    @property
    def widths(self) -> list[int]:
        return [len(half) for half in self.halves]


_HALF_COLUMNS = ("time", "algbw", "busbw", "#wrong")
_ITERATION_COLUMNS = (*_HALF_COLUMNS, "i_min", "i_max", "i_p99", "i_cv%")
_UNKNOWN_LAYOUT = _Layout(None, None, (_HALF_COLUMNS, _HALF_COLUMNS), False)
_PER_ITERATION = {"i_min": "min_us", "i_max": "max_us", "i_p99": "p99_us", "i_cv%": "cv_pct"}
_FIELDS = {
    "time": "time_us",
    "cputime": "time_us",
    "algbw": "algbw",
    "busbw": "busbw",
    "#wrong": "wrong",
    "error": "wrong",
    "res": "wrong",
}


def _layout_of(names: list[str], announced: frozenset[str]) -> _Layout | None:
    """Turn the header's names behind ``type`` into a layout; None where the header is cut off before its halves.

    ``announced``: the halves that the line above the header names.
    """
    starts = [i for i, name in enumerate(names) if name in ("time", "cputime")]
    if not starts:
        return None
    halves = []
    for start, end in zip(starts, [*starts[1:], len(names)]):
        halves.append(tuple(name for name in names[start:end] if name != "timestamp"))
    if len(halves) == 1 and len(announced) > 1:
        return None
    if len(halves) > 1 and len(halves[1]) != len(halves[0]):
        halves[1] = halves[0]  # a header cut off in its second half: both halves always have the same columns
    if "busbw" not in halves[0]:
        return None
    before = names[: starts[0]]
    # Version 1 printed milliseconds ("%7.3f" of seconds times 1e3) and called the last column of a half "res".
    milliseconds = "res" in halves[0]
    if announced == {"in-place"}:  # rccl-tests can leave the other half out
        halves.insert(0, ())
    return _Layout("redop" in before or "op" in before, "root" in before, tuple(halves), milliseconds)


def _number(token: str) -> Number | None:
    """The value of one field; None for N/A. Raises ValueError for a placeholder such as XXX.XX."""
    if token == "N/A":
        return None
    try:
        return int(token)
    except ValueError:
        return float(token)


class _Pending:
    """A row whose values have not all arrived: nccl-tests flushes the start of a line before it measures."""

    def __init__(self, size: int, count: int, type_: str, redop: str | None, root: int | None, layout: _Layout) -> None:
        self.size, self.count, self.type, self.redop, self.root = size, count, type_, redop, root
        self.layout = layout
        self.tokens: list[str] = []
        self.leading_blank = False
        self.timestamp: str | None = None
        self.cut_line = ""  # the whole line, where it ends with a value that may go on in the next one
        self.before = ""  # what stood before the row on its line

    def ends_a_half(self, more: int) -> bool:
        """Whether that many values more would complete one half or the row."""
        widths = self.layout.widths
        return len(self.tokens) + more in (widths[0], sum(widths))

    def widths(self) -> list[int] | None:
        """The number of values in each half once they are complete, else None."""
        have = len(self.tokens)
        known = self.layout.widths
        if have == sum(known):
            return known
        if self.leading_blank and len(known) == 2 and have == known[1]:
            return [0, known[1]]
        if self.layout is _UNKNOWN_LAYOUT and have == 2 * len(_ITERATION_COLUMNS):
            return [len(_ITERATION_COLUMNS)] * 2
        return None

    def row(self, widths: list[int]) -> Row:
        halves = self.layout.halves
        if widths[0] == len(_ITERATION_COLUMNS) and self.layout is _UNKNOWN_LAYOUT:
            halves = (_ITERATION_COLUMNS, _ITERATION_COLUMNS)
        filled = [Half(), Half()]
        taken = 0
        for half, names, width in zip(filled, halves, widths):
            for name, token in zip(names, self.tokens[taken : taken + width]):
                self._fill(half, name, _number(token))
            taken += width
        return Row(
            self.size, self.count, self.type, self.redop, self.root, filled[0], filled[1], timestamp=self.timestamp
        )

    def _fill(self, half: Half, name: str, value: Number | None) -> None:
        if name in _PER_ITERATION:
            half.per_iteration[_PER_ITERATION[name]] = value
        elif name not in _FIELDS:
            half.extra[name] = value
        else:
            if _FIELDS[name] == "time_us" and self.layout.milliseconds and value is not None:
                value = value * 1000.0
            setattr(half, _FIELDS[name], value)


def _end_of_shape(before: str, line: str) -> int:
    """Where the same ends that stood before a row, its digits aside: a label, a clock, a number of the line, a quotation mark.

    0 for a line that does not begin so.
    """
    shape = before.rstrip()
    if not shape or len(shape) > _LONGEST_LABEL:
        return 0
    pattern = "".join(
        r"\d+" if part.isdigit() else r"\s+" if part.isspace() else re.escape(part)
        for part in _SHAPE_PARTS.split(shape)
    )
    found = re.match(pattern + r"(?=\s)", line)
    return found.end() if found else 0


class _TextReader:
    def __init__(self) -> None:
        self.output = Output("text")
        self.layout = _UNKNOWN_LAYOUT
        self.halves_announced: frozenset[str] = frozenset()
        self.announcing = False  # whether the line before was about the halves: a terminal may have broken it
        self.pending: _Pending | None = None
        self.ranks_in_run: set[int] = set()
        self.hosts: set[str] = set()
        self.old_failures: list[dict[str, t.Any]] = []
        self.run_by_name: str | None = None

    # -- tables ------------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        if not self.output.tables:
            self.output.tables.append(Table())
        return self.output.tables[-1]

    def table_about_to_begin(self) -> Table:
        """The table that a line of the preamble belongs to: a new one if the last has already got to its rows."""
        if not self.table().empty():
            self.output.tables.append(Table())
        return self.table()

    def table_awaiting(self, missing: t.Callable[[Table], bool]) -> Table:
        """The table that a footer line belongs to: the last that lacks it (interleaved copies end one after the other)."""
        for table in reversed(self.output.tables):
            if missing(table) and not table.empty():
                return table
        return self.table_about_to_begin()

    # -- rows --------------------------------------------------------------------------------------------------------

    def drop_pending(self) -> None:
        if self.pending:
            self.table().half_rows += 1
            self.pending = None

    def row(self, match: re.Match[str], line: str) -> str:
        """Read a row; what is glued behind it is returned for the other readers."""
        self.drop_pending()
        position = match.end()
        redop, root = None, None
        found = _REDOP.match(line, position)
        if found and self.layout.redop is not False:
            redop, position = found.group(1), found.end()
        tokens, end, stamp = self._values(line, position)
        rooted = self.layout.root
        if rooted is None:  # no header: an odd field more than the halves need is the root
            rooted = len(tokens) % 4 == 1 or (len(tokens) < 8 and bool(tokens) and tokens[0] == "-1")
        found = _ROOT.match(line, position)
        if rooted and found:
            end = self._unglued(line, found.start(1), found.end())
            root, position = int(line[found.start(1) : end]), end
            tokens, end, stamp = self._values(line, position)
        size, count = (
            int(float(word.replace(",", ""))) if "e" in word else int(word.replace(",", ""))
            for word in match.group(1, 2)
        )
        self.pending = _Pending(size, count, match.group(3), redop, root, self.layout)
        self.pending.before = line[: match.start()]
        gap = len(line[position:]) - len(line[position:].lstrip())
        self.pending.leading_blank = gap >= _BLANK_HALF
        if not line[end:].strip():
            self.pending.cut_line = line
        self.extend(tokens, stamp)
        return line[end:]

    def _values(self, line: str, position: int) -> tuple[list[str], int, str | None]:
        """The values from a position on, where they end, and the time stamp behind them."""
        tokens: list[str] = []
        stamp = None
        while len(tokens) < 64:
            found = _STAMP.match(line, position)
            if found:
                return tokens, found.end(), found.group(1)
            found = _VALUE.match(line, position)
            if not found or (found.start(1) == position > 0 and not line[position - 1].isspace()):
                break  # a value never follows another one, or a name, without a blank
            position = self._unglued(line, found.start(1), found.end())
            tokens.append(line[found.start(1) : position])
            if line.startswith("*", position):
                position += 1  # rccl-tests marks an error beyond its threshold: 2e+00*
            if position < len(line) and not line[position].isspace():
                break  # glued to foreign text: nothing behind it is ours
        return tokens, position, stamp

    def _unglued(self, line: str, start: int, end: int) -> int:
        """Where a value really ends that a host name beginning with a digit may be glued to ("-1" and "10-2-0-7:311:311 [0]")."""
        if end == len(line) or line[end].isspace():
            return end
        found = _GLUED_HOST.match(line, start)
        glued = found.group(1) or found.group(2) if found else ""
        for host in self.hosts:
            at = start + len(glued) - len(host)
            if glued.endswith(host) and start < at < end and _VALUE.fullmatch(line, start, at):
                return at
        return end

    def extend(self, tokens: list[str], stamp: str | None) -> None:
        pending = self.pending
        if pending is None:
            return
        pending.tokens += tokens
        pending.timestamp = stamp or pending.timestamp
        widths = pending.widths()
        if widths is None:
            return
        self.pending = None
        try:
            self.table().add(pending.row(widths))
        except ValueError:
            self.table().unreadable += 1

    def continuation(self, line: str) -> bool:
        """Whether the line holds the values that a flushed half row was waiting for."""
        if self.pending is None:
            return False
        if self.pending.cut_line and line[:1] in _INSIDE_A_NUMBER and self._unwrapped(self.pending, line):
            return True
        label = LABEL.match(line).end()  # type: ignore[union-attr]  # every part of LABEL is optional
        shape = _end_of_shape(self.pending.before, line)
        for start in (shape,) if shape else (0, label):
            tokens, end, stamp = self._values(line, start)
            if not tokens:
                continue
            rest = line[end:]
            if rest[:1].isspace() and rest.strip():
                continue  # values of another line, not the rest of this one
            if not (line[:1].isspace() or start or self.pending.ends_a_half(len(tokens))):
                continue  # where the indentation got lost, only as many values as are missing
            if len(self.pending.tokens) + len(tokens) <= sum(self.pending.layout.widths):
                self.extend(tokens, stamp)
                self.rest(rest)
                return True
        return False

    def _unwrapped(self, cut: _Pending, line: str) -> bool:
        """Whether a terminal broke the row within a number, and the line is what follows: only both together are a row."""
        joined = cut.cut_line + line
        match = _ROW.search(joined) if len(joined) < _LONGEST_ROW else None
        if match is None:
            return False
        self.pending = None
        glued = self.row(match, joined)
        if self.pending is not None:
            self.pending = cut
            return False
        self.rest(glued)
        return True

    def rest(self, glued: str) -> None:
        """Read what another process wrote right behind a value, or the row of another table beside this one."""
        match = _ROW.search(glued)
        while match:
            glued = self.row(match, glued)
            match = _ROW.search(glued)
        if glued.strip():
            self.failures(glued)
            self.other(glued)

    # -- lines -------------------------------------------------------------------------------------------------------

    def header(self, names: list[str]) -> None:
        self.drop_pending()
        table = self.table()
        if table.has_header or not table.empty():
            self.output.tables.append(Table())
            table = self.table()
        table.has_header = True
        self.output.headers += 1
        self.layout = _layout_of(names, self.halves_announced) or _UNKNOWN_LAYOUT

    def device(self, match: re.Match[str]) -> None:
        rank, group, pid, host, device, bus, name = match.groups()
        table = self.table_about_to_begin()
        table.devices.append(
            {
                "rank": int(rank),
                "group": int(group) if group else None,
                "pid": int(pid) if pid else None,
                "host": host,
                "device": int(device),
                "bus": bus,
                "name": name.strip().rstrip("\"',"),
            }
        )
        if host:
            self.hosts.add(host)
        if int(rank) in self.ranks_in_run:
            self.output.rank_twice = True
        self.ranks_in_run.add(int(rank))
        self.output.ranks = max(self.output.ranks or 0, int(rank) + 1)

    def preamble(self, line: str) -> bool:
        if "Rank" in line and "device" in line:
            match = _DEVICE.search(line)
            if match:
                self.device(match)
                return True
        if "nThread" in line and _OPTIONS.search(line):
            table = self.table_about_to_begin()
            if table.devices:  # the attempt before this one got no further than its device list
                self.output.tables.append(Table())
                table = self.table()
            for name, value, kind in _OPTION.findall(line):
                name = name.replace(" ", "").lower()
                table.options[_OPTION_NAMES.get(name, name)] = int(value)
                if kind:
                    table.options["step_kind"] = kind
            return True
        if "nccl-tests version" in line:
            match = _VERSION.search(line)
            if match:
                table = self.table_about_to_begin()
                table.version = {"nccl_tests": match.group(1)}
                for key, value in zip(("nccl_headers", "nccl_library"), match.groups()[1:]):
                    if value:
                        table.version[key] = int(value)
                return True
        if "Collective test starting" in line:
            match = _STARTING.search(line)
            if match:
                table = self.table_about_to_begin()
                table.program, table.collective = match.group(1), collective_of(match.group(1))
                return True
        if "compiled with NCCL" in line:
            match = _COMPILED.search(line)
            if match:
                self.table_about_to_begin().version = {"compiled_with_nccl": match.group(1)}
                return True
        if "Reducing maxBytes" in line:
            match = _REDUCING.search(line)
            if match:
                self.table_about_to_begin().max_bytes_reduced_to = int(match.group(1))
                return True
        return False

    def footer(self, line: str) -> bool:
        if "bounds" in line:
            match = _OUT_OF_BOUNDS.search(line)
            if match:
                self.drop_pending()
                table = self.table_awaiting(lambda each: each.out_of_bounds is None)
                table.out_of_bounds = (int(match.group(1)), match.group(2))
                return True
        if "bandwidth" in line:
            match = _AVERAGE.search(line)
            if match:
                self.drop_pending()
                self.output.footers += 1
                self.ranks_in_run.clear()
                table = self.table_awaiting(lambda each: each.avg_busbw is None)
                try:
                    table.avg_busbw = float(match.group(1)) if match.group(1) else None
                except ValueError:
                    table.avg_busbw = None
                table.avg_verdict = match.group(2)
                return True
        return False

    def failures(self, line: str) -> None:
        if "failure" in line:
            for match in _TEST_FAILURE.finditer(line):
                self._test_failure(match.group(1), match.group(2), match.group(3, 4), match.group(5))
            old = _OLD_FAILURE.search(line)
            if old:
                failure = {"kind": old.group(1).lower(), "host": None, "site": f"{old.group(2)}:{old.group(3)}"}
                self.old_failures.append({**failure, "text": old.group(4).strip()})
            for match in _TEST_TRACE.finditer(line):
                self.output.fail_on(match.group(1))
        if "Test timeout" in line:
            timeout = _TEST_TIMEOUT.search(line)
            if timeout:
                self.output.time_limits.append(timeout.group(0).split(": ")[-1])
                self.output.fail_on(timeout.group(1))
        if _TIME_LIMIT.search(line) and len(self.output.time_limits) < 100:
            self.output.time_limits.append(line.strip()[:300])

    def _test_failure(self, host: str | None, kind: str, site: tuple[str, ...], text: str) -> None:
        if host and host.isdigit():
            host = None  # a task's label of srun, not a name
        words, _unused, last = text.strip().partition(" / ")
        failure = {"kind": kind.lower(), "host": host, "site": ":".join(site), "text": words.strip()}
        if last.strip():
            failure["last_error"] = last.strip()
        if len(self.output.test_failures) < 10_000:
            self.output.test_failures.append(failure)
        self.output.fail_on(host)

    def other(self, line: str) -> None:
        if "NCCL" in line:
            prefix = _LOG_PREFIX.match(line)
            if prefix and len(self.hosts) < 10_000:
                self.hosts.add(prefix.group(1))
            version = _NCCL_VERSION.search(line) if self.output.nccl_version is None else None
            if version:
                self.output.nccl_version = version.group(1)
        if "JSON output" in line:
            written = _JSON_AT.search(line)
            if written:
                self.output.json_path = written.group(1)
        match = _ERRORS.match(line)
        if match and len(self.output.errors) < 1000:
            self.output.errors.append(match.group(1).strip()[:500])

    def line(self, line: str) -> None:
        if line.count("|") >= _COLUMNS_OF_A_TABLE:
            line = line.replace("|", " ")  # a table that was pasted into Markdown
        if self.run_by_name is None and "_perf" in line:
            self.run_by_name = collective_run_by(line)
        if "-place" in line and _HALVES.search(line):
            before = self.halves_announced if self.announcing else frozenset()
            self.halves_announced = before.union(_HALF_NAME.findall(line))
            self.announcing = True
            return
        self.announcing = False
        header = _HEADER.search(line) if "type" in line else None
        if header and ("algbw" in line or "time" in line or line.lstrip().startswith("#")):
            names = _HEADER_NAME.findall(header.group(1))
            beside = next((i for i, name in enumerate(names) if name in ("size", "bytes")), None)
            self.header(names[:beside])  # behind it stands the header of another table, pasted beside this one
            return
        row = _ROW.search(line) if len(line) < _LONGEST_ROW else None
        if row:
            self.rest(self.row(row, line))
            return
        if self.continuation(line) or self.preamble(line) or self.footer(line):
            return
        self.failures(line)
        self.other(line)
        if _COMMAND.search(line[:2000]):
            self.ranks_in_run.clear()

    def finish(self, text: str) -> Output:
        self.drop_pending()
        output = self.output
        if not output.test_failures:
            output.test_failures = self.old_failures
        output.collective = next((table.collective for table in output.tables if table.collective), None)
        output.collective = output.collective or self.run_by_name or collective_of(text)
        for table in output.tables:
            table.collective = table.collective or output.collective
        return output


def read_text(text: str) -> Output:
    """Read nccl-tests' stdout, alone or amid a launcher's, NCCL's and a shell's lines; no text raises."""
    reader = _TextReader()
    for line in lines_of(unpacked(text)):
        reader.line(line)
    return reader.finish(text)
