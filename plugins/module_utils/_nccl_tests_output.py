# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run of nccl-tests measured, from whatever it left behind: its text, or its JSON. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_json import (
    load,
    looks_like_report,
    read_json,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_text import read_text


def parse_nccl_tests(text: str) -> dict[str, t.Any]:
    """Read the output of any ``*_perf`` program, text of every version or a JSON report, whole or cut off; no text raises.

    Sizes in bytes, times in µs, algbw and busbw in GB/s (1e9 bytes/s). The answer holds

    format: ``text`` or ``json``; collective: ``allreduce`` and so on, None where the text does not name it;
    ranks: the highest rank listed + 1, None where none is listed;
    rows: complete rows of finite numbers, each [size, type, redop, root, out-of-place time, algbw, busbw, wrong, and the same
    four in-place], None for N/A or a blank column;
    avg_busbw_printed, out_of_bounds: one entry a footer ([count, OK or FAILED]);
    completed: at least one row, and every table has its footer; validated: #wrong was counted somewhere;
    failure: cuda, nccl, timeout, wrong_results, not_one_communicator, single_rank, non_finite_values, unparseable or None;
    failing_hosts; test_failures: [{kind, host, site, text, last_error}]; time_limits, errors: the lines that say so;
    nccl_version, json_path; non_finite_rows, unreadable_rows, half_rows: how many rows are not in ``rows``, and why;
    tables: one a benchmark run, [{program, collective, version, options, devices: [{rank, group, pid, host, device, bus, name}],
    max_bytes_reduced_to, rows: [{size, count, type, redop, root, out_of_place: {time_us, algbw, busbw, wrong, per_iteration},
    in_place, timestamp, iterations}], non_finite_rows, half_rows, out_of_bounds, avg_busbw, avg_verdict, completed}].

    Source: src/util.cu and src/common.cu of nccl-tests 1.0 to 2.19.6.
    """
    stripped = text.lstrip("\ufeff \t\r\n")
    if stripped.startswith("{"):
        document = load(stripped)
        if looks_like_report(document):
            return read_json(document).summary()
    return read_text(text).summary()
