# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that gives no answer is named with what kept it from answering."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_nodes import judge_nodes


@pytest.mark.parametrize(
    ("result", "finding"),
    [
        ({"unreachable": True, "msg": "Connection timed out"}, "node_unreachable"),
        ({"msg": "Task failed: Timed out after 60 second(s).", "timedout": {"period": 60}}, "node_hangs"),
        ({"msg": "MODULE FAILURE", "module_stderr": "sh: 1: python3: not found"}, "node_unusable"),
    ],
)
def test_why_a_node_is_silent(result: dict[str, t.Any], finding: str) -> None:
    well = {"observed": {"busy": False}}
    [found] = judge_nodes({"well": well, "ill": result}, {})
    assert (found.id, found.severity, found.node) == (finding, "error", "ill")
