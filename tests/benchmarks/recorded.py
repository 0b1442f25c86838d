# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded results: how a benchmark writes what it measured, and how its figures are derived from that again.

The benchmark `NAME.py` beside this file writes results/NAME.json with write(), and has a function ``figures(record)
-> dict`` that derives every figure from record["rows"] and record["settings"] alone. write() calls it, and so does
recompute.py: there is one derivation and no list to keep. What only the measuring needs (torch, the collection) is
imported inside the functions that measure, so that figures() runs anywhere.
"""

from __future__ import annotations

import datetime
import importlib
import json
import math
import pathlib
import platform
import shlex
import sys
import typing as t

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
KEYS = ("what", "date", "host", "versions", "settings", "command", "rows", "figures")


def derive(name: str, record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The figures of benchmark `name`, from the rows of its record. Raises LookupError where the benchmark has no figures()."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    try:
        return dict(importlib.import_module(name).figures(record))
    except (ModuleNotFoundError, AttributeError) as error:
        raise LookupError(
            f"{name}: tests/benchmarks/{name}.py with a function figures(record) is wanted: {error}"
        ) from error


def write(
    name: str,
    what: str,
    settings: t.Mapping[str, t.Any],
    rows: t.Sequence[t.Mapping[str, t.Any]],
    versions: t.Mapping[str, str] | None = None,
    host: str = "",
    folder: pathlib.Path = RESULTS,
) -> pathlib.Path:
    """Write results/`name`.json, a line a row, and return its path. host: a description of the machine, by default this one's."""
    record: dict[str, t.Any] = {
        "what": what,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": host or f"{platform.machine()}, {platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **(versions or {})},
        "settings": dict(settings),
        "command": shlex.join(["python", f"tests/benchmarks/{name}.py", *map(_without_folders, sys.argv[1:])]),
        "rows": list(rows),
    }
    record["figures"] = derive(name, json.loads(json.dumps(record)))
    path = folder / f"{name}.json"
    path.write_text(text_of(record))
    return path


def text_of(record: t.Mapping[str, t.Any]) -> str:
    """A record as it lies on disk: a line a row."""
    head = json.dumps({key: record[key] for key in KEYS if key != "rows"}, indent=2)
    lines = ",\n".join("    " + json.dumps(row) for row in record["rows"])
    return f'{head[:-2]},\n  "rows": [\n{lines}\n  ]\n}}\n'


def _without_folders(argument: str) -> str:
    """An argument that is an absolute path tells of one machine only: its name is kept."""
    return pathlib.PurePath(argument).name if argument.startswith("/") else argument


def differences(name: str, record: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong with a record, a sentence each: keys missing, and figures that its rows do not give (to nine digits)."""
    missing = [key for key in KEYS if key not in record]
    if missing:
        return [f"{name}: the key {missing[0]} is missing"]
    derived = derive(name, record)
    wrong = [f"{name}: {key} is recorded and not derived" for key in record["figures"] if key not in derived]
    for key, value in derived.items():
        if key not in record["figures"]:
            wrong.append(f"{name}: {key} is derived and not recorded")
        elif not _same(json.loads(json.dumps(value)), record["figures"][key]):
            wrong.append(f"{name}: {key} is recorded as {record['figures'][key]}, its rows give {value}")
    return wrong


def _same(one: t.Any, two: t.Any) -> bool:
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    numbers = isinstance(one, (int, float)) and isinstance(two, (int, float))
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12) if numbers else bool(one == two)
