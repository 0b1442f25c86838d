# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run is kept whatever becomes of the results directory: hours of measuring must not end in a full disk."""

from __future__ import annotations

import pathlib
import tempfile
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.record import decide
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_directory import write_run, write_whole
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_files import run_files

Record = dict[str, t.Any]


def keep_run(results: pathlib.Path, record: Record) -> tuple[pathlib.Path, Record]:
    """(the run's directory, the record as it was written). record: what assemble() returned.

    Where *results* cannot be written the run goes to a directory of its own among the temporary files, with a finding that says so,
    which fails it. OSError only where that cannot be written either.
    """
    run_id = record["run_id"]
    try:
        return write_run(results, run_id, run_files(record)), record
    except OSError as error:
        elsewhere = pathlib.Path(tempfile.mkdtemp(prefix="gpufabric-"))
        record = _with_finding(record, _not_written(results, error, elsewhere / run_id))
        return write_whole(elsewhere, run_id, run_files(record)), record


def _not_written(results: pathlib.Path, error: OSError, instead: pathlib.Path) -> Finding:
    return Finding(
        id="results_not_written",
        severity="error",
        node="",
        subject="fabric_report_results_dir",
        evidence=f"{results} cannot be written ({error.strerror}); this run is in {instead} instead",
        expected="a directory that whoever runs ansible-playbook can write, with room in it",
        cause="the disk is full, or the directory belongs to another user",
        fix=f"mv {instead} to where it shall stay, and set fabric_report_results_dir to a directory that can be written",
    )


def _with_finding(record: Record, finding: Finding) -> Record:
    verdict = record["verdict"] if record["verdict"]["status"] == "fail" else decide([finding], True).as_dict()
    return {**record, "findings": [{**finding.as_dict(), "part": "report"}, *record["findings"]], "verdict": verdict}
