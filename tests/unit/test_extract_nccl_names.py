# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tool that reads names out of released libraries: its table, without a download."""

from __future__ import annotations

import importlib.util
import pathlib
import types

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/extract_nccl_names.py"


@pytest.fixture(scope="module")
def tool() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("extract_nccl_names", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("have", "expected"),
    [
        ([True, True, True], [["1", "3"]]),
        ([False, True, True], [["2", "3"]]),
        ([True, False, True], [["1", "1"], ["3", "3"]]),
        ([False, False, False], []),
    ],
)
def test_stretches(tool: types.ModuleType, have: list[bool], expected: list[list[str]]) -> None:
    assert tool.stretches(have, ["1", "2", "3"]) == expected


def test_names_that_were_read_once_are_not_fetched_again(tool: types.ModuleType, tmp_path: pathlib.Path) -> None:
    (tmp_path / "names-2.28.9.json").write_text('["NCCL_A"]')
    assert tool.names_of("2.28.9", tmp_path, keep=False) == ["NCCL_A"]


def test_the_table(tool: types.ModuleType) -> None:
    made = tool.table({"1": ["NCCL_A"], "2": ["NCCL_A", "NCCL_B"]})
    assert made["names"] == {"NCCL_A": [["1", "2"]], "NCCL_B": [["2", "2"]]} and made["releases"] == ["1", "2"]
