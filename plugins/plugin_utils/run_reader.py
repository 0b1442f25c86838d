# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run records as they lie on the controller: found by name, read whatever version wrote them."""

from __future__ import annotations

import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import SCHEMA, SCHEMA_VERSION
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.requirements import lazy
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

if t.TYPE_CHECKING:
    import jsonschema
else:
    jsonschema = lazy("jsonschema")

#: names that stand for a run of the results directory
LATEST, PREVIOUS = "latest", "previous"

RECORD = "run.json"


class RunUnreadable(ValueError):
    """What was given is no run; the sentence says what was found and what was expected."""


def read_run(path: pathlib.Path) -> dict[str, t.Any]:
    """The record in *path*, in the shape of this version. RunUnreadable where it is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunUnreadable(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict) or "run_id" not in record or "findings" not in record:
        raise RunUnreadable(f"{path} is not a run of this collection: a run.json with run_id and findings is expected")
    version = record.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise RunUnreadable(f"{path} has schema_version {version!r}; 1 to {SCHEMA_VERSION} can be read here")
    for number in range(version, SCHEMA_VERSION):
        record = _UPGRADES[number](record)
    return {**record, "schema_version": SCHEMA_VERSION}


def read_whole_run(path: pathlib.Path) -> dict[str, t.Any]:
    """The same, and RunUnreadable for what begins like a record and lacks parts of one, as a run cut down by hand does."""
    record = read_run(path)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    flaw = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(record)), None)
    if flaw is not None:
        raise RunUnreadable(f"{path} is no whole run: {flaw.json_path}: {flaw.message[:200]}")
    return record


def find_run(given: str, results: pathlib.Path, before: pathlib.Path | None = None) -> pathlib.Path:
    """The run.json that *given* means: a file, a run's directory, a run's identifier or its beginning, latest, previous.

    previous: the last run of *results* that is older than the one in *before*. RunUnreadable where there is none.
    """
    runs = sorted(entry for entry in results.glob(f"*/{RECORD}") if not entry.parent.is_symlink())
    if given == PREVIOUS:
        newest = before.resolve().parent.name if before else ""
        older = [run for run in runs if not newest or run.parent.name < newest]
        if older:
            return older[-1]
        raise RunUnreadable(f"{results} holds no run before {newest or 'the latest'}")
    if given == LATEST and runs:
        link = results / LATEST / RECORD
        return link if link.exists() else runs[-1]
    path = user_path(given)
    for candidate in (path, path / RECORD, results / given / RECORD):
        if candidate.is_file():
            return candidate
    fitting = [run for run in runs if run.parent.name.startswith(given)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(run.parent.name for run in fitting[:4])
        raise RunUnreadable(f"{given} stands for {len(fitting)} runs of {results} ({names}): give one of them whole")
    known = ", ".join(run.parent.name for run in runs[-4:]) or "none"
    raise RunUnreadable(f"{given} is neither a file nor a run of {results} (the last ones there: {known})")


def _name_nodes_of_verdicts(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Version 1 did not say which nodes a verdict is about. It stands in the order of runs and rows, which tells them."""
    owners = [run["nodes"] for run in record.get("benchmark", {}).get("runs", []) for _row in run["rows"]]
    verdicts = record.get("verdicts", [])
    known = owners if len(owners) == len(verdicts) else [[]] * len(verdicts)
    return {
        **record,
        "verdicts": [{**verdict, "nodes": nodes} for verdict, nodes in zip(verdicts, known, strict=True)],
    }


_UPGRADES: dict[int, t.Callable[[t.Mapping[str, t.Any]], dict[str, t.Any]]] = {1: _name_nodes_of_verdicts}
