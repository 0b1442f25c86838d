# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""nccl.conf as NCCL reads it, and what a rank ends up with."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_conf import effective, files, parse, variables
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

OLD, NOW, NEW = (2, 22, 3), (2, 28, 9), (2, 30, 3)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("NCCL_A=1\nNCCL_B=two words\n", {"NCCL_A": "1", "NCCL_B": "two words"}),
        ("NCCL_A=1", {"NCCL_A": "1"}),
        ("# NCCL_A=1\n\nno assignment\nNCCL_B=2\n", {"NCCL_B": "2"}),
        ("NCCL_A=first\nNCCL_A=second\n", {"NCCL_A": "first"}),
        ("NCCL_SOCKET_IFNAME==eth0\n", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("NCCL_A = 1\n", {"NCCL_A ": " 1"}),
        ('NCCL_A="1"\n', {"NCCL_A": '"1"'}),
        ("NCCL_A=1 # c\n", {"NCCL_A": "1 # c"}),
        ("export NCCL_A=1\n", {"export NCCL_A": "1"}),
        ("NCCL_A=\n", {"NCCL_A": ""}),
        ("", {}),
    ],
)
def test_grammar(text: str, given: dict[str, str]) -> None:
    assert variables(text, NOW) == given


def test_a_carriage_return_stays_up_to_2_29() -> None:
    assert variables("NCCL_A=1\r\n", NOW) == {"NCCL_A": "1\r"}
    assert variables("NCCL_A=1\r\n", NEW) == {"NCCL_A": "1"}


def test_long_values_are_cut() -> None:
    assert len(variables(f"NCCL_A={'x' * 5000}")["NCCL_A"]) == 1023


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("NCCL_A = 1", "blank before ="),
        (" # NCCL_A=1", "column 1"),
        ("export NCCL_A=1", "no shell"),
        ("NCCL_A= 1", "blanks around"),
        ("NCCL_A='1'", "quotes"),
        ("NCCL_A=1 # why", "comment behind"),
        ("NCCL_A=$HOME/x", "not expanded"),
        ("NCCL_A=1\r", "carriage return"),
    ],
)
def test_lines_that_do_not_do_what_they_look_like(line: str, says: str) -> None:
    (parsed,) = parse(line, NOW)
    assert says in parsed.oddity


def test_a_repeated_line_names_the_first() -> None:
    first, second = parse("NCCL_A=1\n\nNCCL_A=2\n", NOW)
    assert (first.oddity, second.number) == ("", 3) and "line 1" in second.oddity


@pytest.mark.parametrize(
    "line", ["NCCL_A=1", "NCCL_DEBUG_TIMESTAMP_FORMAT=[%F %T]", "NCCL_ALGO=allreduce:tree;broadcast:ring"]
)
def test_lines_that_are_in_order(line: str) -> None:
    assert [parsed.oddity for parsed in parse(line, NOW)] == [""]


@pytest.mark.parametrize(
    ("environment", "version", "expected"),
    [
        ({}, NOW, ["/home/ops/.nccl.conf", "/etc/nccl.conf"]),
        ({"NCCL_CONF_FILE": "/job/x.conf"}, NOW, ["/job/x.conf", "/etc/nccl.conf"]),
        ({"NCCL_CONF_FILE": "/job/x.conf"}, OLD, ["/home/ops/.nccl.conf", "/etc/nccl.conf"]),
        ({"NCCL_CONF_FILE": ""}, NOW, ["/home/ops/.nccl.conf", "/etc/nccl.conf"]),
        ({"HOME": "/scratch"}, NOW, ["/home/ops/.nccl.conf", "/etc/nccl.conf"]),
        ({"HOME": "/scratch"}, NEW, ["/scratch/.nccl.conf", "/etc/nccl.conf"]),
    ],
)
def test_which_files_count(environment: dict[str, str], version: tuple[int, ...], expected: list[str]) -> None:
    assert files(environment, "/home/ops", version) == expected


def test_the_first_source_wins(tmp_path: pathlib.Path) -> None:
    for path, text in (
        ("home/ops/.nccl.conf", "NCCL_B=user\nNCCL_C=user\n"),
        ("etc/nccl.conf", "NCCL_A=system\nNCCL_B=system\nNCCL_C=system\nNCCL_D=system\n"),
        ("job.conf", "NCCL_B=job\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    fs = RootedFs(str(tmp_path))
    seen = effective(fs.read_text, {"NCCL_A": "env", "PATH": "/bin"}, "/home/ops", NOW)
    assert {name: (e.value, e.source) for name, e in seen.items()} == {
        "NCCL_A": ("env", "environment"),
        "NCCL_B": ("user", "/home/ops/.nccl.conf"),
        "NCCL_C": ("user", "/home/ops/.nccl.conf"),
        "NCCL_D": ("system", "/etc/nccl.conf"),
    }
    job = effective(fs.read_text, {"NCCL_CONF_FILE": "/job.conf"}, "/home/ops", NOW)
    assert job["NCCL_B"].value == "job" and job["NCCL_C"].source == "/etc/nccl.conf"
    absent = effective(fs.read_text, {"NCCL_CONF_FILE": "/absent"}, "/home/ops", NOW)
    assert absent["NCCL_B"].source == "/etc/nccl.conf"
