# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/awx.yml with the real modules of awx.awx, against a stand-in for AWX's API.

Needs the collection awx.awx, which the PyPI package ansible brings: `make test-awx` runs this where it is.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_awx import FakeAwx

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("GPUFABRIC_AWX_PYTHON", "")
PREFIX = "GPU fabric: "

pytestmark = pytest.mark.skipif(not PYTHON, reason="GPUFABRIC_AWX_PYTHON names no Python with awx.awx: make test-awx")


def play(awx: FakeAwx, home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"{pathlib.Path(PYTHON).parent}/ansible-playbook", "playbooks/awx.yml", *arguments],
        cwd=ROOT,
        env={**os.environ, "CONTROLLER_HOST": awx.url, "CONTROLLER_OAUTH_TOKEN": "any", "ANSIBLE_HOME": str(home), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        timeout=1800,
    )  # fmt: skip


def changed(done: subprocess.CompletedProcess[str]) -> int:
    counted = re.search(r"localhost +: ok=\d+ +changed=(\d+)", done.stdout)
    assert counted and done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return int(counted[1])


@pytest.fixture(scope="module")
def awx(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[FakeAwx]:
    with FakeAwx(ROOT) as server:
        server.first = play(server, tmp_path_factory.mktemp("home"))  # type: ignore[attr-defined]
        yield server


def test_everything_is_made_at_the_first_run(awx: FakeAwx) -> None:
    assert changed(awx.first) > 0  # type: ignore[attr-defined]
    made = {o["name"] for o in awx.objects["job_templates"].values()}
    assert made >= {
        f"{PREFIX}{name}" for name in ("verify", "tune", "site", "kernel", "nccl_tests", "diagnose", "isolate")
    }
    (secret,) = awx.objects["credential_types"].values()
    assert secret["injectors"]["extra_vars"] == {"fabric_report_collect_token": "{{ token }}"}


def test_a_second_run_writes_nothing_but_the_projects_sync(awx: FakeAwx, tmp_path: pathlib.Path) -> None:
    awx.writes.clear()
    assert changed(play(awx, tmp_path)) == 0
    (project,) = awx.objects["projects"].values()
    assert awx.writes == [f"POST {project['related']['update']}"]


def test_a_survey_that_somebody_changed_is_set_right_again(awx: FakeAwx, tmp_path: pathlib.Path) -> None:
    path, before = next(iter(awx.surveys.items()))
    awx.surveys[path] = {**before, "spec": before["spec"][:1]}
    assert changed(play(awx, tmp_path)) == 1
    assert awx.surveys[path] == before


def test_a_launch_with_each_surveys_own_answers_ignores_none(awx: FakeAwx) -> None:
    for template in awx.objects["job_templates"].values():
        spec = awx.surveys[template["related"]["survey_spec"]]["spec"]
        answers = {
            q["variable"]: q["default"].splitlines() if q["type"] == "multiselect" else q["default"]
            for q in spec
            if "default" in q
        }
        assert awx.launch({**template, "ask_variables_on_launch": False}, answers) == {
            "ignored_fields": {},
            "errors": [],
        }


def test_the_workflow_leads_from_verify_to_isolate(awx: FakeAwx) -> None:
    names = {number: node["identifier"] for number, node in awx.objects["workflow_job_template_nodes"].items()}
    edges = {
        (names[int(path.split("/")[-3])], path.split("/")[-2], names[target])
        for path, targets in awx.links.items()
        if "workflow_job_template_nodes" in path
        for target in targets
    }
    assert edges == {
        ("verify", "always_nodes", "tune"),
        ("tune", "success_nodes", "benchmark"),
        ("tune", "failure_nodes", "diagnose"),
        ("benchmark", "failure_nodes", "diagnose"),
        ("diagnose", "always_nodes", "isolate"),
    }


def test_what_cannot_be_is_said_in_one_sentence(tmp_path: pathlib.Path) -> None:
    with FakeAwx(ROOT) as empty:
        done = play(empty, tmp_path, "-e", "awx_objects_scm_type=svn")
    assert done.returncode != 0 and "value of awx_objects_scm_type must be one of: git, archive, manual" in done.stdout
