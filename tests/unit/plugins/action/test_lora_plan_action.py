# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A training that nobody can start still has a node that says why."""

from __future__ import annotations

import typing as t
from unittest import mock

import pytest
from ansible_collections.gpufabric.cluster.plugins.action.lora_plan import ActionModule

BUSY = {"run_id": "r1", "launcher": "", "nodes": [], "needed": False, "left_out": [{"node": "n1", "why": "it is busy"}]}


def planned(launch: dict[str, t.Any]) -> dict[str, t.Any]:
    task = mock.MagicMock(
        args={"launch": launch, "settings": {"trust": "run", "model": "auto"}}, check_mode=False, async_val=0
    )
    action = ActionModule(
        task, mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock()
    )
    return action.run(task_vars={"hostvars": {}, "ansible_play_hosts": ["n1", "n2"]})


@pytest.mark.parametrize(
    ("launch", "sentence"),
    [
        (
            {"failed": False, "msg": "launch_trust_launcher is 'n9', which cannot launch: it is no node of this play"},
            "launch_trust_launcher is 'n9', which cannot launch: it is no node of this play",
        ),
        (BUSY, "no node can take part (n1: it is busy)"),
    ],
)
def test_what_keeps_all_from_training_is_said_by_the_first(launch: dict[str, t.Any], sentence: str) -> None:
    plan = planned(launch)
    assert (plan["here"], plan["problem"], plan["nodes"], plan["runs"]) == ("n1", sentence, [], [])
