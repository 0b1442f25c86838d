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


def surveys(awx: FakeAwx) -> t.Iterator[tuple[dict[str, t.Any], list[dict[str, t.Any]]]]:
    """Every job template with the questions of its survey."""
    for template in awx.objects["job_templates"].values():
        yield template, awx.surveys[template["related"]["survey_spec"]]["spec"]


def default_answers(spec: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    return {
        q["variable"]: q["default"].splitlines() if q["type"] == "multiselect" else q["default"]
        for q in spec
        if "default" in q
    }


def bad_answers(question: dict[str, t.Any]) -> list[t.Any]:
    """Answers of a wrong type and out of the question's bounds or choices."""
    if "choices" in question:
        return ["nonsense", ["nonsense"], True, None, 0] + (
            [question["choices"][0]] if question["type"] == "multiselect" else [""]
        )
    if question["type"] == "text":
        return [5, None, ["all"], "x" * (question["max"] + 1)]
    return [question["min"] - 1, question["max"] + 1, str(question["min"]), True, None, ""]


def test_a_launch_with_each_surveys_own_answers_ignores_none(awx: FakeAwx) -> None:
    for template, spec in surveys(awx):
        answers = default_answers(spec)
        launched = awx.launch({**template, "ask_variables_on_launch": False}, answers)
        assert (launched["ignored_fields"], launched["errors"]) == ({}, [])
        assert answers.items() <= launched["extra_vars"].items()


def test_a_launch_needs_no_answer(awx: FakeAwx) -> None:
    for template, spec in surveys(awx):
        launched = awx.launch(template, {})
        # AWX keeps a multiselect's default as text, which is no answer to it: the role's own default holds
        shown = {q["variable"]: q["default"] for q in spec if "default" in q and q["type"] != "multiselect"}
        assert launched == {"ignored_fields": {}, "errors": [], "extra_vars": shown}


def test_each_question_refuses_bad_answers_in_one_sentence(awx: FakeAwx) -> None:
    for template, spec in surveys(awx):
        for question in spec:
            for answer in bad_answers(question):
                (error,) = awx.launch(template, {**default_answers(spec), question["variable"]: answer})["errors"]
                assert question["variable"] in error and error.endswith(".")


def test_a_variable_that_nobody_asks_for_is_not_dropped(awx: FakeAwx) -> None:
    """The run itself refuses a misspelt one; AWX would drop it silently."""
    for template, _spec in surveys(awx):
        launched = awx.launch(template, {"kernel_tuning_profil": "roce"})
        assert launched["ignored_fields"] == {} and launched["extra_vars"]["kernel_tuning_profil"] == "roce"


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


def test_a_manual_project_makes_an_inventory_without_a_source(tmp_path: pathlib.Path) -> None:
    with FakeAwx(ROOT) as other:
        options = ("-e", "awx_objects_scm_type=manual", "-e", "awx_objects_local_path=cluster")
        assert changed(play(other, tmp_path, *options)) > 0
        (project,) = other.objects["projects"].values()
        assert project["scm_type"] == "" and project["local_path"] == "cluster"
        assert not other.objects["inventory_sources"] and len(other.objects["inventories"]) == 1
        other.writes.clear()
        assert changed(play(other, tmp_path, *options)) == 0 and other.writes == []


def test_a_name_that_is_too_long_is_refused(tmp_path: pathlib.Path) -> None:
    with FakeAwx(ROOT) as empty:
        done = play(empty, tmp_path, "-e", f"awx_objects_prefix={'x' * 510}")
    assert done.returncode != 0 and "no more than 512 characters" in done.stdout
