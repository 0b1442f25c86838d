# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a benchmark has measured until now, on the controller's disk: it is still there, whatever ends Ansible in the middle of it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_directory import DIRECTORY_MODE, FILE_MODE

WHY = "Ansible ended before this run was judged; each further line is what one benchmark measured"


class UnfinishedRun:
    """<results>/<run id>.unfinished.jsonl: a line about the run, then one for each benchmark that is over. OSError where it cannot be."""

    def __init__(self, results: pathlib.Path, run_id: str) -> None:
        self.path = results / f"{run_id}.unfinished.jsonl"

    def begin(self, run_id: str, launcher: str, planned: int) -> None:
        """Start the file anew. planned: benchmarks that are to come."""
        self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.path.touch(FILE_MODE)
        self.add({"run_id": run_id, "launcher": launcher, "planned": planned, "why": WHY})

    def add(self, line: t.Mapping[str, t.Any]) -> None:
        """Keep a run in the record's form, without what is withheld of it."""
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(line) + "\n")

    def remove(self) -> None:
        """The run is over and kept whole, if need be elsewhere: a place that cannot be written holds no such file."""
        with contextlib.suppress(OSError):
            self.path.unlink()
