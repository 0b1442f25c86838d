# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters over NCCL's environment: shapes in and out, and sentences for what they cannot take."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.filter import nccl_env
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE, roce_node

FILTERS = nccl_env.FilterModule().filters()


def test_every_filter_is_documented() -> None:
    for name in FILTERS:
        text = (pathlib.Path(nccl_env.__file__).parent / f"{name}.yml").read_text()
        assert yaml.safe_load(text)["DOCUMENTATION"]["name"] == name


def test_resolve_and_explain() -> None:
    result = FILTERS["nccl_env_resolve"]({"n1": roce_node()}, "guide", {"NCCL_IB_TIMEOUT": 23})
    lines = FILTERS["nccl_env_explain"](result["nodes"]["n1"], "n1")
    assert lines[0] == "n1: NCCL 2.28.9, roce, guide"
    assert any(line.startswith("  NCCL_IB_TIMEOUT=23  [nccl_env_variables; every node]") for line in lines)
    assert any(line.startswith("  NCCL_IB_HCA==mlx5_0:1,mlx5_1:1  [profile guide; this node]") for line in lines)
    left_out = lines[lines.index("left out:") :]
    assert any("NCCL_ALGO=Tree" in line for line in left_out)


def test_explain_nothing() -> None:
    result = FILTERS["nccl_env_resolve"]({"n1": {}}, [])
    assert FILTERS["nccl_env_explain"](result["nodes"]["n1"]).count("  nothing") == 2


def test_validate() -> None:
    result = FILTERS["nccl_env_validate"](GUIDE, "2.28.9", "warn")
    assert set(result) == {"kept", "dropped", "findings"}
    assert {"NCCL_ALGO", "NCCL_NCHANNELS"} <= {entry["name"] for entry in result["dropped"]}
    assert all(finding["severity"] != "error" for finding in result["findings"])


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("nccl_env_resolve", ([],), "the nodes must be a mapping, not list"),
        ("nccl_env_resolve", ({"n1": 3},), "node n1 must be a mapping"),
        ("nccl_env_resolve", ({}, [], "NCCL_DEBUG=INFO"), "the variables must be a mapping, not str"),
        ("nccl_env_validate", ({}, "newest"), "newest"),
        ("nccl_env_validate", ({}, "2.28.9", "lax"), "strict, warn"),
        ("nccl_env_explain", (None,), "NoneType"),
        ("nccl_env_findings", ([],), "the results must be a mapping"),
        ("csh_quote", ("a'b",), "csh takes no value"),
    ],
)
def test_what_they_cannot_take(name: str, arguments: tuple[t.Any, ...], says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=says):
        FILTERS[name](*arguments)


def test_csh_quote() -> None:
    assert FILTERS["csh_quote"]("a b!c") == "'a b\\!c'"


def test_findings_of_a_failed_result() -> None:
    (finding,) = FILTERS["nccl_env_findings"]({"n1": {"failed": True, "msg": "boom"}})
    assert finding["id"] == "nccl_env_not_observed" and "boom" in finding["evidence"]


def test_compare_ranks() -> None:
    ranks = [{"rank": 0, "host": "n1", "environ": {"NCCL_ALGO": "Tree"}}]
    assert [f["id"] for f in FILTERS["nccl_env_compare_ranks"](ranks, {"n1": {}})] == ["nccl_rank_extra"]
