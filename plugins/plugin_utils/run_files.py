# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of a run directory from its record."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render import RENDERERS


def run_files(record: t.Mapping[str, t.Any]) -> dict[str, str]:
    """{name: text}, from what assemble() returned: raw logs leave the record for files of their own."""
    told = {key: value for key, value in record.items() if key != "logs"}
    files = {name: render(told) for name, render in RENDERERS.items()}
    files["run.json"] = record_text(told)
    files.update({f"logs/{name}": text for name, text in record["logs"].items()})
    return files


def record_text(record: t.Mapping[str, t.Any]) -> str:
    """run.json, one line for each node, run, verdict and finding: as easy to grep and to diff as an indented one.

    Python's encoder is some ten times slower when it indents, which a thousand nodes would wait for.
    """
    return _block("{}", [f"{_line(key)}: {_part(key, record[key])}" for key in sorted(record)]) + "\n"


def _part(key: str, value: t.Any) -> str:
    if key == "benchmark":
        return _block("{}", [f"{_line(name)}: {_entries(value[name])}" for name in sorted(value)])
    return _entries(value)


def _entries(value: t.Any) -> str:
    if isinstance(value, dict):
        return _block("{}", [f"{_line(str(name))}: {_line(value[name])}" for name in sorted(value)])
    if isinstance(value, list):
        return _block("[]", [_line(entry) for entry in value])
    return _line(value)


def _line(value: t.Any) -> str:
    return json.dumps(value, sort_keys=True)


def _block(brackets: str, lines: t.Sequence[str]) -> str:
    return brackets if not lines else f"{brackets[0]}\n" + ",\n".join(lines) + f"\n{brackets[1]}"
