# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501  # lines of logs are quoted whole
"""Every table that nccl-tests has printed since 2017, and what launchers and other processes do to it."""

from __future__ import annotations

import json
import math
import pathlib
import re
import time

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_json import mend, version_of_code
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures" / "nccl_tests"

HEADER = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
OPTIONS = (
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n#\n# Using devices\n"
)
FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 31.25 \n#\n"
HEAD = "     2097152        524288     float     sum      -1"
FIRST = "    88.10   23.80   41.65      0"
SECOND = "    90.55   23.16   40.53      0"
ROW = [2097152, "float", "sum", -1, 88.1, 23.8, 41.65, 0, 90.55, 23.16, 40.53, 0]


def devices(*hosts: str) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group  0 Pid {7000 + rank:6d} on {host:>10s} device {rank:2d} [0000:1b:00] NVIDIA H100\n"
        for rank, host in enumerate(hosts)
    )


def only_row(text: str) -> list:
    rows = parse_nccl_tests(text)["rows"]
    assert len(rows) == 1, rows
    return rows[0]


def test_a_whole_run_gives_rows_devices_options_and_a_footer():
    text = (FIXTURES / "all_reduce_2_18_two_nodes.txt").read_text(encoding="utf-8")
    answer = parse_nccl_tests(text)
    assert (answer["format"], answer["collective"], answer["ranks"]) == ("text", "allreduce", 4)
    assert answer["rows"][0] == [1048576, "float", "sum", -1, 61.27, 17.11, 25.67, 0, 60.02, 17.47, 26.21, 0]
    assert [row[0] for row in answer["rows"]] == [1048576, 2097152, 4194304]
    assert answer["avg_busbw_printed"] == [38.7733]
    assert answer["out_of_bounds"] == [[0, "OK"]]
    assert (answer["completed"], answer["validated"], answer["failure"]) == (True, True, None)
    table = answer["tables"][0]
    assert table["version"] == {"nccl_tests": "2.18.3", "nccl_headers": 22809, "nccl_library": 22807}
    assert table["options"] == {
        "threads": 1,
        "gpus": 2,
        "min_bytes": 1048576,
        "max_bytes": 4194304,
        "step": 2,
        "step_kind": "factor",
        "warmup_iterations": 1,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "unalign": 0,
    }
    assert table["devices"][2] == {
        "rank": 2,
        "group": 0,
        "pid": 51277,
        "host": "rack4-n2",
        "device": 0,
        "bus": "0000:1b:00",
        "name": "NVIDIA H100 80GB HBM3",
    }


def test_version_1_printed_milliseconds_and_a_broadcast_without_in_place():
    text = (FIXTURES / "broadcast_1_0.txt").read_text(encoding="utf-8")
    answer = parse_nccl_tests(text)
    assert answer["rows"] == [
        [33554432, "float", None, 0, 3412.0, 9.83, 9.83, 0.0, None, None, None, None],
        [67108864, "float", None, 0, 6790.0, 9.88, 9.88, 0.0, None, None, None, None],
    ]
    assert (answer["ranks"], answer["completed"], answer["validated"]) == (2, True, True)


@pytest.mark.parametrize(
    ("columns", "line", "expected"),
    [
        (  # 2.0 to 2.12, all_gather: neither redop nor root has a column
            "size         count    type     time   algbw   busbw  error     time   algbw   busbw  error",
            "     1048576         65536   float    41.20   25.45   23.86  0e+00    40.88   25.65   24.05  1e-07",
            [1048576, "float", None, None, 41.2, 25.45, 23.86, 0, 40.88, 25.65, 24.05, 1e-07],
        ),
        (  # 2.0 to 2.12, broadcast: a root, no redop
            "size         count      type    root     time   algbw   busbw  error     time   algbw   busbw  error",
            "     1048576        262144      half       3    41.20   25.45   25.45  0e+00    40.88   25.65   25.65    N/A",
            [1048576, "half", None, 3, 41.2, 25.45, 25.45, 0, 40.88, 25.65, 25.65, None],
        ),
        (  # 2.0 to 2.12, reduce
            "size         count      type   redop    root     time   algbw   busbw  error     time   algbw   busbw  error",
            "     1048576        262144  bfloat16    prod       0    41.20   25.45   25.45  0e+00    40.88   25.65   25.65  0e+00",
            [1048576, "bfloat16", "prod", 0, 41.2, 25.45, 25.45, 0, 40.88, 25.65, 25.65, 0],
        ),
        (  # -C
            "size count type redop root cputime algbw busbw #wrong cputime algbw busbw #wrong",
            "1048576 262144 f8e4m3 avg -1 4.12 254.5 254.5 0 4.08 256.5 256.5 N/A",
            [1048576, "f8e4m3", "avg", -1, 4.12, 254.5, 254.5, 0, 4.08, 256.5, 256.5, None],
        ),
        (  # hypercube leaves redop blank although it has a column
            "size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
            "     1048576        262144     float              -1    41.20   25.45   25.45       0    40.88   25.65   25.65       0",
            [1048576, "float", None, -1, 41.2, 25.45, 25.45, 0, 40.88, 25.65, 25.65, 0],
        ),
        (  # the side-work branch: one column more in each half
            "size count type redop root time algbw busbw copybw #wrong time algbw busbw copybw #wrong",
            "1048576 262144 float sum -1 41.20 25.45 44.53 12.5 0 40.88 25.65 44.88 12.6 3",
            [1048576, "float", "sum", -1, 41.2, 25.45, 44.53, 0, 40.88, 25.65, 44.88, 3],
        ),
    ],
)
def test_columns_are_taken_by_their_names(columns, line, expected):
    assert only_row(f"# {columns}\n{line}\n") == expected


def test_iteration_statistics_and_a_time_stamp_are_read_by_name():
    columns = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    text = (
        f"# size count type redop root {columns} {columns} timestamp\n"
        "4194304 1048576 float sum -1 95.10 44.10 77.18 0 90.02 120.55 119.01 7.75 "
        "97.20 43.15 75.51 0 91.10 131.40 130.00 9.02  2026-05-04 11:59:58\n"
    )
    answer = parse_nccl_tests(text)
    assert answer["rows"] == [[4194304, "float", "sum", -1, 95.1, 44.1, 77.18, 0, 97.2, 43.15, 75.51, 0]]
    row = answer["tables"][0]["rows"][0]
    assert row["out_of_place"]["per_iteration"] == {"min_us": 90.02, "max_us": 120.55, "p99_us": 119.01, "cv_pct": 7.75}
    assert row["in_place"]["per_iteration"]["cv_pct"] == 9.02
    assert row["timestamp"] == "2026-05-04 11:59:58"


@pytest.mark.parametrize(
    "text",
    [
        HEADER + HEAD + FIRST + SECOND,
        # the start of a row is flushed before it is measured: another process may write behind it,
        HEADER + HEAD + "n7:311:311 [0] NCCL INFO Launch mode Parallel\n" + FIRST + SECOND,
        # behind the first half,
        HEADER + HEAD + FIRST + "n7:311:311 [0] NCCL INFO comm 0x1 rank 0 nranks 2\n" + SECOND,
        # behind both, in any number of lines,
        HEADER
        + HEAD
        + "n7:311:311 [0] NCCL INFO a\nn7:311:311 [0] NCCL INFO b\n"
        + FIRST
        + "n7:311:315 [0] NCCL INFO c\n"
        + SECOND,
        # and its name may begin with a digit.
        devices("10-2-0-7") + HEADER + HEAD + FIRST + "10-2-0-7:311:311 [0] NCCL INFO x\n" + SECOND,
        devices("10-2-0-7") + HEADER + HEAD + "10-2-0-7:311:311 [0] NCCL INFO x\n" + FIRST + SECOND,
        # launchers tag each piece
        "".join(f"[1,0]<stdout>:{line}\n" for line in (HEADER + HEAD + FIRST + SECOND).split("\n")),
        HEADER + f"[1,0]<stdout>:{HEAD}[1,0]<stdout>:{FIRST}{SECOND}\n",
        HEADER + f"[prterun-n1-4711@1,0]<stdout>: {HEAD}{FIRST}{SECOND}\n",
        HEADER + f"Tue Mar  3 09:10:11 2026[1,0]<stdout>:{HEAD}{FIRST}{SECOND}\n",
        HEADER + f"0: {HEAD}n7:311:311 [0] NCCL INFO x\n0: {FIRST}{SECOND}\n",
        HEADER + f"rack4-n1: {HEAD}{FIRST}{SECOND}\n",
        HEADER + f"2026-03-03T09:10:11.123456789Z {HEAD}{FIRST}{SECOND}\n",
        HEADER + f"[pod/nccl-launcher-x2x/nccl] {HEAD}{FIRST}{SECOND}\n",
        HEADER + f"launcher-1  | {HEAD}{FIRST}{SECOND}\n",
        # colours, with and without their ESC byte, and line ends of any system
        HEADER + f"\x1b[37m{HEAD}{FIRST}{SECOND}\x1b[0m\r\n",
        HEADER + f"[37m{HEAD}{FIRST}{SECOND}[0m\n",
        # a JSON document's or Ansible's stdout
        json.dumps({"stdout": HEADER + HEAD + FIRST + SECOND + "\n" + FOOTER}),
        HEADER + f'        "{HEAD}{FIRST}{SECOND}",\n',
        # blanks collapsed and the header's "#" lost, as web forms do
        " ".join(HEADER.replace("#", "").split()).replace("(B)", "\n(B)")
        + "\n2097152 524288 float sum -1 88.10 23.80 41.65 0 90.55 23.16 40.53 0",
        # a table in Markdown
        "| size | count | type | redop | root | time | algbw | busbw | #wrong | time | algbw | busbw | #wrong |\n|---|---|\n"
        "| 2097152 | 524288 | float | sum | -1 | 88.10 | 23.80 | 41.65 | 0 | 90.55 | 23.16 | 40.53 | 0 |\n",
        # no header
        HEAD + FIRST + SECOND,
        # UTF-16 read as bytes
        (HEADER + HEAD + FIRST + SECOND).encode("utf-16-le").decode("latin-1"),
    ],
)
def test_a_row_is_found_whatever_stands_around_it(text):
    assert only_row(text) == ROW


@pytest.mark.parametrize(
    "labelled",
    [
        lambda n, line: f"> {line}",
        lambda n, line: f"# {line}",
        lambda n, line: f" * {line}",
        lambda n, line: f"+ {line}",
        lambda n, line: f"node-1  | {line}",
        lambda n, line: f"{n + 7:6}\t{line}",
        lambda n, line: f"{n + 7}:{line}",
        lambda n, line: f"Nov  2 10:00:{n + 8:02} gpu-7 check[4711]: {line}",
        lambda n, line: f"[2026-11-02T10:00:{n:02}.5+01:00 check:{n} probe.cc:16{n} INFO] {line}",
        lambda n, line: f'        "{line}",',
        lambda n, line: f"  - '{line}'",
        lambda n, line: f"^[[1m{line}^[[0m",
        lambda n, line: line.strip(),
        lambda n, line: line.replace("  ", "\u00c2\u00a0\u00c2 "),
        lambda n, line: json.dumps({"log": line + "\n", "stream": "stdout"}),
        lambda n, line: f"| {line:<150} |",
        lambda n, line: f"\u2502{line:<150}\u2502",
        lambda n, line: re.sub(r"([_*#\[\]])", r"\\\1", line) + "  ",
        lambda n, line: f"{line}<br>",
        lambda n, line: f"nccl-0 main {line}",
        lambda n, line: f"task 3: {line}",
        lambda n, line: f"2026-11-02 10:00:{n:02},123 - probe - INFO - {line}",
        lambda n, line: f"(probe pid=771, ip=10.0.0.7) {line}",
    ],
)
def test_a_row_in_pieces_behind_any_label_is_one_row(labelled):
    text = (
        HEADER
        + HEAD
        + "n7:311:311 [0] NCCL INFO a\nn7:311:311 [0] NCCL INFO b\n"
        + FIRST
        + "n7:311:315 [0] NCCL INFO c\n"
        + SECOND
    )
    assert only_row("".join(labelled(n, line) + "\n" for n, line in enumerate(text.splitlines()))) == ROW


def test_an_asterisk_behind_an_error_is_no_part_of_it():
    """rccl-tests up to 2.13 marks what is beyond its threshold."""
    old = HEADER.replace("   redop    root", "   redop").replace("#wrong", " error")
    answer = parse_nccl_tests(
        old
        + "          16             4     float     sum    14.41    0.00    0.00  3e+00*    14.02    0.00    0.00  2e+00*\n"
        + "          32             8     float     sum    14.80    0.00    0.00  0e+00    14.13    0.00    0.00  1e+00*\n"
    )
    assert [row[7::4] for row in answer["rows"]] == [[3.0, 2.0], [0.0, 1.0]]


def test_a_single_half_is_the_one_that_the_header_names():
    row = "     1048576        262144     float     sum      -1    31.07   33.75   33.75      0\n"
    names = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    values = [31.07, 33.75, 33.75, 0]
    assert only_row("#                                  in-place          \n" + names + row)[4:] == [None] * 4 + values
    assert (
        only_row("#                                  out-of-place          \n" + names + row)[4:] == values + [None] * 4
    )
    # a terminal of 80 columns breaks the line above the header between its two names, and the header too
    broken = "".join(
        line if len(line) < 80 else f"{line[:80]}\n{line[80:]}" for line in HEADER.splitlines(keepends=True)
    )
    assert only_row(broken + HEAD + FIRST + SECOND) == ROW


def test_two_tables_side_by_side_are_both_read():
    text = "".join(f"{line}  |  {line}\n" for line in (HEADER + HEAD + FIRST + SECOND).splitlines())
    assert parse_nccl_tests(text)["rows"] == [ROW, ROW]


def test_what_column_made_of_a_footer():
    text = (
        HEADER
        + HEAD
        + FIRST
        + SECOND
        + "\n#   Out   of   bounds  values  :  0  OK\n#   Avg   bus  bandwidth  :  41.09\n"
    )
    answer = parse_nccl_tests(text)
    assert (answer["out_of_bounds"], answer["avg_busbw_printed"], answer["completed"]) == ([[0, "OK"]], [41.09], True)


@pytest.mark.parametrize(
    "before",
    [
        "Compiling  all_gather.cu > ../build/all_gather.o\nLinking  ../build/all_gather.o > ../build/all_gather_perf\n",
        "$ ls build\nall_gather_perf  all_reduce_perf  sendrecv_perf\n",
        "$ ls -1 build\nall_gather_perf\nall_reduce_perf\nsendrecv_perf*\n",
        "nvcc -o build/all_gather_perf all_gather.o\n",
    ],
)
def test_what_was_built_is_not_what_was_run(before):
    run = "$ mpirun -np 2 build/sendrecv_perf -b 2M -o sum\n" + HEADER + HEAD + FIRST + SECOND + "\n" + FOOTER
    assert parse_nccl_tests(before + run)["collective"] == "sendrecv"
    assert parse_nccl_tests(before)["collective"] == "allgather"


def test_a_half_row_is_not_a_row():
    answer = parse_nccl_tests(OPTIONS + HEADER + HEAD + FIRST + SECOND + "\n" + HEAD + FIRST)
    assert (len(answer["rows"]), answer["half_rows"], answer["completed"]) == (1, 1, False)


def test_a_blank_out_of_place_half_is_not_confused_with_a_cut_off_row():
    assert only_row(HEADER + HEAD + " " * 32 + SECOND)[4:8] == [None, None, None, None]
    assert parse_nccl_tests(HEADER + HEAD + SECOND)["rows"] == []


@pytest.mark.parametrize("at", range(len(HEAD + FIRST) - 6, len(HEAD + FIRST + SECOND) - 1))
def test_a_row_that_a_terminal_broke_within_a_number_is_one_row(at):
    whole = HEAD + FIRST + SECOND
    assert only_row(HEADER + whole[:at] + "\n" + whole[at:] + "\n" + FOOTER) == ROW


def test_a_cut_off_row_takes_nothing_from_the_line_behind_it():
    answer = parse_nccl_tests(HEADER + HEAD + "    88.10   23\n2024 was a good year\n" + HEAD + FIRST + SECOND + "\n")
    assert (answer["rows"], answer["half_rows"]) == ([ROW], 1)


def test_numbers_as_people_copy_them():
    shortened = HEAD.replace("524288", "5.24e+5") + FIRST + SECOND
    grouped = HEAD.replace("2097152", "2,097,152").replace("524288", "524,288") + FIRST + SECOND
    assert only_row(HEADER + shortened) == only_row(HEADER + grouped) == ROW


@pytest.mark.parametrize(
    ("before", "behind"), [('<span class="line"><span>', "</span></span>"), ('{"log":"', '\\n","stream":"stdout"}')]
)
def test_what_is_glued_behind_a_header_is_not_its_last_name(before, behind):
    text = "".join(f"{before}{line}{behind}\n" for line in (HEADER + HEAD + FIRST + SECOND).splitlines())
    assert only_row(text) == ROW


def test_several_benchmarks_in_one_text_are_several_tables():
    one = (
        "# Collective test starting: all_gather_perf\n"
        + OPTIONS
        + devices("a", "b")
        + HEADER
        + HEAD
        + FIRST
        + SECOND
        + "\n"
        + FOOTER
    )
    two = one.replace("all_gather", "sendrecv").replace("31.25", "1e-05")
    answer = parse_nccl_tests(one + two)
    assert [table["collective"] for table in answer["tables"]] == ["allgather", "sendrecv"]
    assert [len(table["rows"]) for table in answer["tables"]] == [1, 1]
    assert [len(table["devices"]) for table in answer["tables"]] == [2, 2]
    assert answer["avg_busbw_printed"] == [31.25, 1e-05]
    assert (answer["failure"], answer["completed"], answer["ranks"]) == (None, True, 2)
    cut_off = parse_nccl_tests(one + two.split("# Out of bounds")[0])
    assert (cut_off["completed"], cut_off["tables"][0]["completed"], cut_off["tables"][1]["completed"]) == (
        False,
        True,
        False,
    )


def test_cycles_and_types_and_operations_keep_their_rows_apart():
    rows = [(8, "float", "sum"), (16, "float", "sum"), (8, "float", "sum"), (8, "double", "min")]
    text = HEADER + "".join(f"  {size}  {size // 4}  {kind}  {op}  -1{FIRST}{SECOND}\n" for size, kind, op in rows)
    answer = parse_nccl_tests(text)
    assert [(row[0], row[1], row[2]) for row in answer["rows"]] == rows
    assert len(answer["tables"]) == 1


def test_wide_and_wrong_numbers():
    row = only_row(HEADER + HEAD + "  1.2e+07  43046.10  1715.44  2.09715e+06  1234567    0.01    0.01      7")
    assert row[4:] == [1.2e7, 43046.1, 1715.44, 2097150.0, 1234567, 0.01, 0.01, 7]


@pytest.mark.parametrize(
    ("tail", "failure", "hosts"),
    [
        ("n3: Test CUDA failure common.cu:422 'uncorrectable ECC error encountered'\n .. n3 pid 4 : x", "cuda", ["n3"]),
        ("n3: Test NCCL failure common.cu:958 'remote process exited / socketProgress: x'\n .. n3 pid 41: Test failure common.cu:12\n .. n9 pid 7: Test failure common.cu:12", "nccl", ["n3", "n9"]),
        (HEAD + "n4: Test NCCL failure common.cu:958 'internal error'", "nccl", ["n4"]),
        (HEAD + FIRST + "n4: Test CUDA failure common.cu:958 'internal error'n5: Test CUDA failure common.cu:9 'x'", "cuda", ["n4", "n5"]),
        ("Test CUDA failure common.cu:730 'unknown error'", "cuda", []),
        ("3: Test NCCL failure common.cu:730 'unhandled cuda error'", "nccl", []),
        ("NCCL failure all_reduce.cu:95 'unhandled cuda error'", "nccl", []),
        ("1: Cuda failure common.cu:198 'invalid device ordinal'", "cuda", []),
        ("n4: Test timeout (60s) common.cu:520\n .. n4 pid 9: Test failure common.cu:520", "timeout", ["n4"]),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:00:00 DUE TO TIME LIMIT ***", "timeout", []),
        ("=>> PBS: job killed: walltime 613 exceeded limit 600", "timeout", []),
        ("The user-provided time limit for job execution has been reached:", "timeout", []),
        ("[mpiexec@n1] APPLICATION TIMED OUT, TIMEOUT = 60s", "timeout", []),
        ("# Out of bounds values : 17 FAILED\n# Avg bus bandwidth    : 3.5", "wrong_results", []),
        ("n1:1:1 [0] NCCL WARN Call to connect failed : Connection timed out", None, []),
    ],
)  # fmt: skip
def test_the_failure_is_the_first_that_holds(tail, failure, hosts):
    answer = parse_nccl_tests(OPTIONS + devices("n3", "n4") + HEADER + HEAD + FIRST + SECOND + "\n" + tail + "\n")
    assert (answer["failure"], answer["failing_hosts"], len(answer["rows"])) == (failure, hosts, 1)


def test_the_words_of_a_failure_are_kept():
    text = "n3: Test NCCL failure common.cu:1126 'unhandled system error (run with NCCL_DEBUG=INFO for details) / Call to x failed'\n"
    assert parse_nccl_tests(text)["test_failures"] == [
        {
            "kind": "nccl",
            "host": "n3",
            "site": "common.cu:1126",
            "text": "unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "last_error": "Call to x failed",
        }
    ]


def test_unrelated_copies_are_told_from_runs_one_after_the_other():
    copies = OPTIONS + OPTIONS + devices("a") + devices("b") + HEADER + HEADER
    assert parse_nccl_tests(copies)["failure"] == "not_one_communicator"
    one = OPTIONS + devices("a", "b") + HEADER + HEAD + FIRST + SECOND + "\n" + FOOTER
    assert parse_nccl_tests(one + one)["failure"] is None
    both_end = copies + (HEAD + FIRST + SECOND + "\n") * 2 + FOOTER + FOOTER
    answer = parse_nccl_tests(both_end)
    assert (answer["failure"], answer["avg_busbw_printed"], answer["completed"]) == (
        "not_one_communicator",
        [31.25, 31.25],
        True,
    )


def test_one_rank_placeholders_and_values_that_are_not_finite():
    assert parse_nccl_tests(OPTIONS + devices("a") + HEADER)["failure"] == "single_rank"
    placeholders = (
        HEADER
        + HEAD
        + "    XXXXX  XXX.XX  XXX.XX    N/A    XXXXX  XXX.XX  XXX.XX    N/A\n# Avg bus bandwidth    : XXX.XX\n"
    )
    answer = parse_nccl_tests(placeholders)
    assert (answer["failure"], answer["completed"], answer["unreadable_rows"]) == ("unparseable", False, 1)
    endless = (
        HEADER
        + HEAD
        + "     0.00     inf     inf      0     0.00    -nan    -nan      0\n"
        + HEAD
        + FIRST
        + SECOND
        + "\n"
    )
    answer = parse_nccl_tests(endless + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : -nan \n")
    assert (answer["failure"], len(answer["rows"]), answer["non_finite_rows"]) == ("non_finite_values", 1, 1)
    assert math.isnan(answer["avg_busbw_printed"][0])


def test_the_device_list_of_nccl_1_names_no_host():
    text = "# Using devices\n#   Rank  0 uses device  0 [0x02] Tesla P100-PCIE-16GB\n#   Rank  1 uses device  1 [0x03] Tesla P100-PCIE-16GB\n"
    answer = parse_nccl_tests(text)
    assert (answer["ranks"], answer["tables"][0]["devices"][1]["host"]) == (2, None)


def test_an_unchecked_run_is_not_validated():
    unchecked = HEADER + HEAD + (FIRST + SECOND).replace("      0", "    N/A") + "\n" + FOOTER
    answer = parse_nccl_tests(unchecked)
    assert (answer["validated"], answer["out_of_bounds"]) == (False, [[0, "OK"]])
    assert only_row(unchecked)[7] is None


def test_an_option_that_nobody_knows_is_kept_as_an_error():
    answer = parse_nccl_tests("invalid option '?'\nUSAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n")
    assert answer["errors"] == ["invalid option '?'"]
    assert answer["rows"] == []


# -- JSON --------------------------------------------------------------------------------------------------------------


def report(version: int = 3, average: str = "average_bus_bandwidth", bandwidth: str = "bandwidth") -> dict:
    statistics = {
        "min_us": 80.5,
        "max_us": 99.0,
        "p50_us": 88.0,
        "times_us": [80.5, 99.0],
        "per_process_max_times_us": [[80.5, 98.0], [80.1, 99.0]],
    }
    result = {
        "size": 2097152,
        "count": 524288,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": {"time": 88.1, "alg_bw": 23.8, "bus_bw": 41.65, "nwrong": 0.0},
        "in_place": {"time": 90.55, "alg_bw": 23.16, "bus_bw": 40.53, "nwrong": 0.0},
        "actual_iterations": 20,
        "experiment_name": "",
    }
    if version > 1:
        result["out_of_place_per_iter"] = statistics
    return {
        "version": version,
        "start_time": "2026-05-04 10:00:00",
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-g", "2"],
        "env": ["NCCL_PSK=planted-secret", "PATH=/usr/bin"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1,
            "ngpus": 2,
            "minimum_bytes": 2097152,
            "maximum_bytes": 4194304,
            "step_factor": 2,
            "iterations": 20,
            "validation": 1,
            "blocking_collectives": "false",
            "devices": [
                {"rank": 0, "group": 0, "pid": 7, "hostname": "n1", "device": 0, "device_hex": "0000:1b:00", "device_info": "NVIDIA H100"},
                {"rank": 2, "group": 0, "pid": 9, "hostname": "n2", "device": 0, "device_hex": "0000:1b:00", "device_info": "NVIDIA H100"},
            ],
        },
        "results": [result, {**result, "size": 4194304, "count": 1048576}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        average: {bandwidth: 41.09, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-05-04 10:00:02",
    }  # fmt: skip


@pytest.mark.parametrize("version", [1, 2, 3])
def test_json_gives_the_shape_of_text(version):
    answer = parse_nccl_tests(json.dumps(report(version)))
    from_text = parse_nccl_tests(HEADER + HEAD + FIRST + SECOND + "\n" + FOOTER)
    assert answer["rows"][0] == ROW
    assert answer.keys() == from_text.keys()
    assert answer["tables"][0].keys() == from_text["tables"][0].keys()
    assert (answer["collective"], answer["ranks"], answer["completed"], answer["validated"]) == (
        "allreduce",
        4,
        True,
        True,
    )
    assert (answer["failure"], answer["avg_busbw_printed"], answer["nccl_version"]) == (None, [41.09], "2.28.9")
    statistics = answer["tables"][0]["rows"][0]["out_of_place"].get("per_iteration", {})
    assert statistics.get("per_process_max_times_us") == ([[80.5, 98.0], [80.1, 99.0]] if version > 1 else None)


def test_json_of_the_versions_that_misspell_the_average():
    answer = parse_nccl_tests(json.dumps(report(1, "average_bus_bandwidith", "bandwidith")))
    assert (answer["avg_busbw_printed"], answer["completed"]) == ([41.09], True)


def test_json_never_hands_on_the_environment():
    assert "planted-secret" not in json.dumps(parse_nccl_tests(json.dumps(report())))
    assert "planted-secret" not in json.dumps(parse_nccl_tests(json.dumps(report())[:-300]))


def test_json_with_what_json_does_not_know():
    text = json.dumps(report()).replace("23.8,", '"nan",').replace("41.65", "inf")
    answer = parse_nccl_tests(text)
    assert (answer["failure"], answer["non_finite_rows"], answer["rows"]) == ("non_finite_values", 2, [])
    blank = report()
    blank["results"][0]["out_of_place"] = None
    blank["results"][0]["in_place"]["nwrong"] = None
    assert parse_nccl_tests(json.dumps(blank))["rows"][0][4:8] == [None] * 4
    wrong = report()
    wrong["out_of_bounds"] = {"count": 3, "okay": "false"}
    assert parse_nccl_tests(json.dumps(wrong))["failure"] == "wrong_results"


def test_json_of_a_killed_run_keeps_every_row_that_is_whole():
    whole = json.dumps(report())
    counts = []
    for end in range(len(whole)):
        answer = parse_nccl_tests(whole[:end])
        counts.append(len(answer["rows"]))
        assert all(row[4:] == ROW[4:] for row in answer["rows"])
        assert not answer["completed"] or '"average_bus_bandwidth": {"bandwidth": 41.09' in whole[:end]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_a_document_without_its_footer_is_not_complete():
    document = report()
    del document["average_bus_bandwidth"], document["out_of_bounds"]
    answer = parse_nccl_tests(json.dumps(document))
    assert (len(answer["rows"]), answer["completed"]) == (2, False)


def test_mending_keeps_what_is_complete():
    assert json.loads(mend('{"a":[{"b":1},{"b":2')) == {"a": [{"b": 1}]}
    assert json.loads(mend('{"a":[1,2],"b":"x')) == {"a": [1, 2]}
    assert json.loads(mend('{"a":nan,"b":-inf,"c":"inf"}')) == {"a": "nan", "b": "-inf", "c": "inf"}


def test_version_codes():
    assert [version_of_code(code) for code in (2708, 22105, 22809, 23203)] == ["2.7.8", "2.21.5", "2.28.9", "2.32.3"]


# -- whatever else comes -------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [HEAD, FIRST, SECOND, HEADER, OPTIONS, FOOTER, devices("a", "b"), "\n", "\r", "0: ", "[1,0]<stdout>:", "\x1b[1m", "{", "}",
     "n1:2:3 [0] NCCL INFO x", "n1: Test NCCL failure common.cu:1 'x", "# size count type", "nan", '{"results":[', "-1", "\x00"]
)  # fmt: skip


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES | st.text(max_size=30), max_size=30).map("".join))
def test_no_text_raises_and_every_row_is_whole(text):
    answer = parse_nccl_tests(text)
    json.dumps(answer)
    for row in answer["rows"]:
        assert len(row) == 12
        assert all(value is None or math.isfinite(value) for value in row[4:])
        assert isinstance(row[0], int)


NUMBER = st.floats(min_value=0, max_value=1e6, allow_nan=False).map(lambda value: float(f"{value:.2f}"))
WRONG = st.none() | st.integers(min_value=0, max_value=999999)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2**45), st.sampled_from(["float", "int8", "f8e5m2"]), NUMBER, NUMBER, NUMBER, WRONG, NUMBER, NUMBER, NUMBER, WRONG), min_size=1, max_size=8),
    st.sampled_from(["", "3: ", "node-7: ", "[1,0]<stdout>:"]),
)  # fmt: skip
def test_what_is_written_is_read_back(rows, label):
    def half(values):
        wrong = "   N/A" if values[3] is None else f"{values[3]:6d}"
        return f"  {values[0]:7.2f}  {values[1]:6.2f}  {values[2]:6.2f} {wrong}"

    lines = [
        f"{size:12d}  {size // 4:12d}  {kind:>8s}  {'sum':>6s}  {-1:6d}{half(rest[:4])}{half(rest[4:])}"
        for size, kind, *rest in rows
    ]
    text = "\n".join(label + line for line in HEADER.split("\n")[:-1] + lines) + "\n"
    assert parse_nccl_tests(text)["rows"] == [[row[0], row[1], "sum", -1, *row[2:]] for row in rows]


@pytest.mark.parametrize(
    "line",
    [
        HEAD + "\n",
        "8 " * 1500 + "\n",
        HEAD + "n1:1:1 [0] NCCL INFO x\n",
        "0" * 3000 + "\n",
        "[0m" * 500 + "\n",
        " " * 3000 + "x\n",
        '{"a":' * 300 + "\n",
        "\\n" * 500,
    ],
)
def test_time_is_linear(line):
    def seconds(times):
        started = time.process_time()
        parse_nccl_tests(line * times)
        return time.process_time() - started

    small = min(seconds(20) for _ in range(3))
    large = seconds(160)
    assert large < 8 * small * 3 + 0.1
