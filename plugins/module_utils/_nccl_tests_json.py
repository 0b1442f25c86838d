# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the JSON that nccl-tests writes with -J (versions 1 to 3). PRIVATE to the collection.

Its ``env`` list is the complete environment of rank 0, secrets included: it is never looked at, and no part of it is returned.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_table import (
    Half,
    Number,
    Output,
    Row,
    Table,
    collective_of,
)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|"')
_NOT_JSON_NUMBER = re.compile(r"[-+]?(?:nan|inf(?:inity)?)(?:\(.*\))?", re.IGNORECASE)
_CLOSER = {"{": "}", "[": "]"}


def mend(text: str) -> str:
    """Make a document of one that was cut off or that holds C's nan and inf, keeping every value that is complete.

    >>> mend('{"results":[{"size":8},{"size":1')
    '{"results":[{"size":8}]}'
    """
    pieces: list[str] = []
    closers: list[str] = []
    kept, depth = 0, 0  # how many pieces end with a complete value, and how many containers are open behind them
    for match in _TOKEN.finditer(text):
        token = match.group(0)
        if token in _CLOSER:
            closers.append(_CLOSER[token])
        elif token in ("}", "]"):
            if not closers or closers.pop() != token:
                break
            kept, depth = len(pieces) + 1, len(closers)
        elif token == '"':  # a string that never ends
            break
        elif token == ",":
            kept, depth = len(pieces), len(closers)
        elif _NOT_JSON_NUMBER.fullmatch(token):
            token = f'"{token}"'
        pieces.append(token)
        if kept == len(pieces) and depth == 0:
            break
    # No container was closed behind the last piece kept, or it would have been kept later: the outermost are still its own.
    return "".join(pieces[:kept]) + "".join(reversed(closers[:depth]))


def load(text: str) -> t.Any:
    """The document, mended where it must be; None where nothing of it can be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(mend(text))
    except (ValueError, RecursionError):
        return None


def _number(value: t.Any) -> Number | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return value
    try:
        return float(str(value))
    except ValueError:
        return None


def _whole(value: t.Any) -> int | None:
    number = _number(value)
    try:
        return None if number is None else int(number)
    except (ValueError, OverflowError):
        return None


def _mapping(value: t.Any) -> dict[str, t.Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: t.Any) -> list[t.Any]:
    return value if isinstance(value, list) else []


def _text(value: t.Any) -> str | None:
    return None if value in (None, "") else str(value)


def _half(result: dict[str, t.Any], name: str) -> Half | None:
    """One half of a result; None where it was cut off. A half that the writer left out (trace replay) is null, hence blank."""
    if name not in result:
        return None
    values = _mapping(result[name])
    if values and not {"bus_bw", "nwrong"} <= values.keys():
        return None
    half = Half(
        time_us=_number(values.get("time", values.get("cpu_time"))),
        algbw=_number(values.get("alg_bw")),
        busbw=_number(values.get("bus_bw")),
        wrong=_number(values.get("nwrong")),
    )
    statistics = _mapping(result.get(f"{name}_per_iter"))
    half.per_iteration = {
        key: value for key, value in statistics.items() if isinstance(value, (list, int, float)) and key.isidentifier()
    }
    return half


def _row(result: t.Any) -> Row | None:
    result = _mapping(result)
    size, count = _whole(result.get("size")), _whole(result.get("count"))
    out_of_place, in_place = _half(result, "out_of_place"), _half(result, "in_place")
    if size is None or count is None or out_of_place is None or in_place is None:
        return None
    return Row(
        size,
        count,
        str(result.get("type", "")),
        _text(str(result.get("redop") or "").strip()),
        _whole(result.get("root")),
        out_of_place,
        in_place,
        iterations=_whole(result.get("actual_iterations")),
    )


def _devices(config: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    devices = []
    for entry in map(_mapping, _listed(config.get("devices"))):
        devices.append(
            {
                "rank": _whole(entry.get("rank")),
                "group": _whole(entry.get("group")),
                "pid": _whole(entry.get("pid")),
                "host": _text(entry.get("hostname")),
                "device": _whole(entry.get("device")),
                "bus": _text(entry.get("device_hex")),
                "name": _text(entry.get("device_info")),
            }
        )
    return devices


def _options(config: dict[str, t.Any]) -> dict[str, t.Any]:
    names = {
        "nthreads": "threads",
        "ngpus": "gpus",
        "minimum_bytes": "min_bytes",
        "maximum_bytes": "max_bytes",
        "warmup_iters": "warmup_iterations",
        "iterations": "iterations",
        "aggregated_iterations": "aggregated_iterations",
        "validation": "validation",
        "graph": "graph",
        "per_iter_skip": "per_iteration_skip",
    }
    options: dict[str, t.Any] = {ours: _whole(config.get(theirs)) for theirs, ours in names.items() if theirs in config}
    for kind in ("factor", "bytes"):
        if f"step_{kind}" in config:
            options["step"], options["step_kind"] = _whole(config[f"step_{kind}"]), kind
    for name in ("blocking_collectives", "parallel_init", "per_iter_timing"):
        if name in config:
            options[name] = str(config[name]).lower() == "true"
    return options


def looks_like_report(document: t.Any) -> bool:
    return isinstance(document, dict) and bool(
        {"results", "config"} & document.keys() or {"nccl_version", "args"} <= document.keys()
    )


def read_json(document: dict[str, t.Any]) -> Output:
    """Read one report. Ranks: ``devices`` lists the first GPU of each process only, so the last one's threads and GPUs are added."""
    output = Output("json")
    table = Table(has_header="results" in document)
    output.tables.append(table)
    output.headers = int(table.has_header)
    config = _mapping(document.get("config"))
    arguments = _listed(document.get("args"))
    table.program = str(arguments[0]).rsplit("/", 1)[-1] if arguments else None
    table.collective = output.collective = collective_of(table.program or "")
    table.version = {"json": _whole(document.get("version"))}
    code = _whole(document.get("nccl_version"))
    if code:
        table.version["nccl_library"] = code
        output.nccl_version = version_of_code(code)
    table.options, table.devices = _options(config), _devices(config)
    known = [device["rank"] for device in table.devices if device["rank"] is not None]
    if known:
        threads, gpus = table.options.get("threads") or 1, table.options.get("gpus") or 1
        output.ranks = max(known) + max(1, threads * gpus)
        output.rank_twice = len(set(known)) < len(known)
    for result in _listed(document.get("results")):
        row = _row(result)
        if row is None:
            table.half_rows += 1
        else:
            table.add(row)
    _read_footer(document, table, output)
    output.errors = [str(error)[:500] for error in _listed(document.get("errors")) if error]
    return output


def _read_footer(document: dict[str, t.Any], table: Table, output: Output) -> None:
    bounds = _mapping(document.get("out_of_bounds"))
    wrong = _whole(bounds.get("count"))
    if wrong is not None:
        okay = str(bounds.get("okay", wrong == 0)).lower() == "true"
        table.out_of_bounds = (wrong, "OK" if okay else "FAILED")
    # nccl-tests 2.17.3 to 2.17.8 misspell both the key and the one below it, in documents that call themselves version 1.
    average = _mapping(document.get("average_bus_bandwidth", document.get("average_bus_bandwidith")))
    value = _number(average.get("bandwidth", average.get("bandwidith")))
    if value is not None:
        table.avg_busbw = float(value)
        okay_text = str(average.get("okay", "unchecked")).lower()
        table.avg_verdict = {"true": "OK", "false": "FAILED"}.get(okay_text)
        output.footers = 1


def version_of_code(code: int) -> str:
    """NCCL_VERSION_CODE as text: 22809 is 2.28.9; up to 2.8 the minor version had one digit (2708 is 2.7.8)."""
    if code < 10_000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"
