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
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_directory import (
    LatestStaysError,
    write_run,
    write_whole,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_files import run_files

Record = dict[str, t.Any]


def keep_run(results: pathlib.Path, record: Record) -> tuple[pathlib.Path, Record]:
    """(the run's directory, the record as it was written). record: what assemble() returned.

    Where *results* cannot be written the run goes to a directory of its own among the temporary files, with a finding that says so,
    which fails it. Where only ``latest`` could not be moved the record that is returned warns of that. OSError only where that cannot be written either.
    """
    run_id = record["run_id"]
    try:
        return write_run(results, run_id, run_files(record)), record
    except LatestStaysError as error:
        return results / run_id, _with_finding(record, _latest_stays(results, error))
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
        fix=f"mv {instead} DESTINATION; and set fabric_report_results_dir to a directory that can be written",
    )


def _latest_stays(results: pathlib.Path, error: OSError) -> Finding:
    return Finding(
        id="latest_not_moved",
        severity="warning",
        node="",
        subject="fabric_report_results_dir",
        evidence=f"{results / 'latest'} could not be made a link to this run ({error.strerror}), and may lead to an earlier one",
        expected="a name that nobody else has taken, in a file system with symbolic links",
        cause="a copy of the results made a directory of the link, or the file system knows no links",
        fix=f"mv {results / 'latest'} {results / 'latest.old'}",
    )


def _with_finding(record: Record, finding: Finding) -> Record:
    fails = finding.severity == "error" and record["verdict"]["status"] != "fail"
    verdict = decide([finding], True).as_dict() if fails else record["verdict"]
    return {**record, "findings": [{**finding.as_dict(), "part": "report"}, *record["findings"]], "verdict": verdict}
