# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every playbook has to keep to: who changes or loads nodes locks them first, and gives them back last."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAYBOOKS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "playbooks").glob("*.yml"))}
ROLE = "gpufabric.cluster."

#: entry points that only look
READING = {"verify", "explain", "once", "counters"}

#: roles that change or load nodes by their other entry points
CHANGING = {
    "kernel_tuning",
    "rdma",
    "roce_qos",
    "nccl_env",
    "nccl_tests",
    "isolate",
    "autotune",
    "lora_workload",
    "rollback",
}


def entries(play: t.Mapping[str, t.Any]) -> list[tuple[str, str]]:
    """(role, entry point) of a play in order."""
    found = [(str(entry["role"]).removeprefix(ROLE), "main") for entry in play.get("roles", [])]
    for task in play.get("tasks", []):
        for kind in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
            if kind in task:
                entry = re.sub(r"\.yml$", "", task[kind].get("tasks_from", "main"))
                found.append((str(task[kind]["name"]).removeprefix(ROLE), entry))
    return found


def changes(play: t.Mapping[str, t.Any]) -> bool:
    return play.get("hosts") != "localhost" and any(
        role in CHANGING and entry not in READING for role, entry in entries(play)
    )


PLAYS = [
    pytest.param(play, id=f"{name}-{number}")
    for name, plays in PLAYBOOKS.items()
    for number, play in enumerate(plays)
    if changes(play)
]


def test_those_that_change_nodes_are_found() -> None:
    names = {param.id.rsplit("-", 1)[0] for param in PLAYS if param.id}
    assert {"site", "kernel", "rdma", "nccl_env", "nccl_tests", "isolate", "rollback", "roce_qos"} <= names
    assert not names & {"verify", "diagnose", "report", "compare"}


@pytest.mark.parametrize("play", PLAYS)
def test_who_changes_or_loads_nodes_locks_them(play: t.Mapping[str, t.Any]) -> None:
    listed = entries(play)
    assert listed[0] == ("run_lock", "main"), "import the role run_lock before anything else"
    assert listed[-1] == ("run_lock", "release"), "and give the nodes back after everything else"
    assert "GPUFABRIC_RUN" in play["environment"], "without it the run shows no sign of life, and its lock dies"


@pytest.mark.parametrize("name", [name for name in PLAYBOOKS if name not in ("report", "awx", "compare")])
def test_no_node_that_cannot_be_reached_ends_a_playbook_without_a_report(name: str) -> None:
    plays = PLAYBOOKS[name]
    assert plays[-1].get("ansible.builtin.import_playbook") == "report.yml"
    of_nodes = [play for play in plays[:-1] if play["hosts"] != "localhost"]
    assert of_nodes and all(play["ignore_unreachable"] and not play["gather_facts"] for play in of_nodes)
