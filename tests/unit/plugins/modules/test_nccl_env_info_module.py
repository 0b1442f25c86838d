# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module nccl_env_info as Ansible runs it: arguments in, one JSON result out."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.modules import nccl_env_info
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_node import FakeNode
from ansible_collections.gpufabric.cluster.tests.fixtures.module_call import call


def run(capsys: pytest.CaptureFixture[str], **arguments: t.Any) -> dict[str, t.Any]:
    return call(nccl_env_info, capsys, **arguments)


def test_it_changes_nothing_and_hands_through(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolved, written = {"variables": [{"name": "NCCL_DEBUG"}]}, {"changed": True}
    result = run(capsys, root=str(tmp_path), ways=[], resolved=resolved, written=written, _ansible_check_mode=True)
    assert result["changed"] is False
    assert result["observed"]["resolved"] == resolved and result["observed"]["written"] == written
    assert result["observed"]["check_mode"] is True and result["observed"]["rdma"] is None


def test_hcas_come_along_when_asked_for(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode(tmp_path / "node").add_hca("mlx5_0", netdev="eth1", ipv4="10.20.0.1/24")
    result = run(capsys, root=node.root, ways=[], hcas=True)
    assert [hca["name"] for hca in result["observed"]["rdma"]["hcas"]] == ["mlx5_0"]


def test_a_way_that_does_not_exist(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "telepathy" in run(capsys, root=str(tmp_path), ways=["telepathy"])["msg"]


def test_every_returned_key_is_documented(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    documented = yaml.safe_load(nccl_env_info.RETURN)["observed"]["contains"]
    assert set(run(capsys, root=str(tmp_path), ways=[])["observed"]) == set(documented)
