# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role isolate does with the guilty when it is asked to, and what it says where that cannot be done."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_isolate import judge_isolate

ROOT = pathlib.Path(__file__).resolve().parents[3]
NODES = ("n1", "n2", "n3", "n4")
VERDICT = {"accused": [{"node": "n2"}], "vanished": ["n3"]}


def done_with_the_guilty(tmp_path: pathlib.Path, **variables: t.Any) -> dict[str, t.Any]:
    """What the launching node n1 hands to the report, of a run in which n2 was found slow, n3 went away and n4 never answered."""
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles/isolate/vars/main.yml")],
        "vars": {
            "__isolate_plan": {"here": "n1"},
            "__launch_trust_plan": {"run_id": "r1"},
            "nccl_tests_become": False,
            "isolate_inventory_group": "healthy",
            # As a survey answers them.
            **{"isolate_slurm_drain": "false", "isolate_inventory_file": "", **variables},
        },
        "tasks": [
            {"ansible.builtin.meta": "end_host", "when": "inventory_hostname == 'n4'"},
            {"ansible.builtin.set_fact": {"__isolate_observed": {"verdict": VERDICT, "problem": "", "left_out": []}}},
            {"ansible.builtin.include_tasks": str(ROOT / "roles/isolate/tasks/guilty.yml")},
            {
                "ansible.builtin.copy": {
                    "content": "{{ __isolate_observed | to_json }}",
                    "dest": str(tmp_path / "handed.json"),
                    "mode": "0600",
                },
                "run_once": True,
            },
        ],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    hosts = {name: {"ansible_connection": "local", "ansible_python_interpreter": sys.executable} for name in NODES}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    answer = subprocess.run(
        [
            pathlib.Path(sys.executable).with_name("ansible-playbook"),
            "-i",
            tmp_path / "hosts.yml",
            tmp_path / "play.yml",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
    )
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-2000:]
    handed: dict[str, t.Any] = json.loads((tmp_path / "handed.json").read_text())
    return {**handed, "printed": answer.stdout}


def test_the_inventory_leaves_out_who_is_guilty_and_who_is_not_there(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "good.yml"
    handed = done_with_the_guilty(tmp_path, isolate_inventory_file=str(path))
    assert yaml.safe_load(path.read_text()) == {"all": {"children": {"healthy": {"hosts": {"n1": None}}}}}
    assert (handed["not_written"], handed["not_drained"]) == ("", "")
    assert "Guilty: n2" in handed["printed"] and "drained in Slurm" not in handed["printed"]


def slurm(tmp_path: pathlib.Path, answer: str) -> None:
    """A scontrol that writes down what it was told."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/told\n{answer}\n')
    program.chmod(0o755)


def test_what_could_not_be_done_is_said_and_costs_no_report(tmp_path: pathlib.Path) -> None:
    slurm(tmp_path, "exit 3")
    path = tmp_path / "nowhere" / "good.yml"
    handed = done_with_the_guilty(tmp_path, isolate_inventory_file=str(path), isolate_slurm_drain="true")
    assert "drained in Slurm" in handed["printed"] and not path.exists()
    result = {**handed, "verdict": {}, "problem": ""}
    found = {finding.id: finding for finding in judge_isolate({"n1": result}, {"isolate_inventory_file": str(path)})}
    assert set(found) == {"isolate_not_drained", "isolate_inventory_not_written"}
    assert {finding.severity for finding in found.values()} == {"error"}
    assert f"{path} was not written: Destination directory" in found["isolate_inventory_not_written"].evidence


@pytest.mark.parametrize(("answer", "problem"), [("", ""), ("echo Invalid node name >&2; exit 1", "Invalid node name")])
def test_slurm_is_told_or_its_refusal_is(tmp_path: pathlib.Path, answer: str, problem: str) -> None:
    slurm(tmp_path, answer)
    handed = done_with_the_guilty(tmp_path, isolate_slurm_drain="true")
    told = (tmp_path / "told").read_text().strip()
    assert told == "update nodename=n2 state=drain reason=gpufabric.cluster.isolate r1"
    assert handed["not_drained"] == problem
