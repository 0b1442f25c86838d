# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""awx/: every question can be answered, and every answer is what a role of the template's playbook takes."""

from __future__ import annotations

import copy
import functools
import pathlib
import re
import typing as t

import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import awx_survey, role_specs
from ansible_collections.gpufabric.cluster.tests.fixtures.awx_data import data
from ansible_collections.gpufabric.cluster.tests.fixtures.fake_awx import check_survey, playbooks
from ansible_collections.gpufabric.cluster.tests.fixtures.playbook_roles import roles_of

ROOT = pathlib.Path(__file__).resolve().parents[3]


TEMPLATES = {template["name"]: template for template in data()["job_templates"]}
SPECS = role_specs.load_specs()


class Default(t.NamedTuple):
    """A role's default: the value, and the collection-wide variable that it is read from, if any."""

    value: t.Any
    shared: str = ""


@functools.cache
def defaults(role: str) -> dict[str, Default]:
    path = ROOT / "roles" / role / "defaults/main.yml"
    found = {}
    for name, value in ((yaml.safe_load(path.read_text()) if path.exists() else None) or {}).items():
        read = re.fullmatch(r"\{\{ (\w+) \| default\((.+)\) \}\}", str(value))
        found[name] = Default(yaml.safe_load(read[2]), read[1]) if read else Default(value)
    return found


def option_of(variable: str, roles: t.Iterable[str]) -> dict[str, t.Any] | None:
    """The option that *variable* sets in one of *roles*: its own, or one whose default reads it."""
    for role in roles:
        for name, default in defaults(role).items():
            if variable in (name, default.shared):
                return {**SPECS.options[role][name], "default": default.value}
    return None


def faults(template: t.Mapping[str, t.Any], questions: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong with a job template's survey."""
    found = []
    for variable in template["survey"]:
        question = {**questions[variable], "variable": variable}
        option = option_of(variable, roles_of(ROOT / template["playbook"]))
        found += awx_survey.problems(question)
        if option is None:
            found.append(f"no role of {template['playbook']} reads {variable}")
        elif not found:
            found += awx_survey.spec_problems(question, option)
            if "default" in question and as_role_takes(question["default"], option) != option["default"]:
                found.append(f"the default {question['default']!r} is not the role's {option['default']!r}")
    return found


def as_role_takes(answer: t.Any, option: t.Mapping[str, t.Any]) -> t.Any:
    return {"true": True, "false": False}.get(answer, answer) if option.get("type") == "bool" else answer


@pytest.mark.parametrize("kind", ["job_templates", "credential_types"])
def test_no_two_are_called_alike(kind: str) -> None:
    """AWX knows a template by its name: of two alike, each would undo the other at every run."""
    names = [one["name"] for one in data()[kind]]
    assert sorted(set(names)) == sorted(names)


def test_the_workflows_steps_are_job_templates_with_names_of_their_own() -> None:
    steps = [step["identifier"] for step in data()["workflow"]["nodes"]]
    assert sorted(set(steps)) == sorted(steps)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_survey_fits_the_roles_that_its_playbook_runs(name: str) -> None:
    assert faults(TEMPLATES[name], data()["questions"]) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_awx_takes_a_templates_survey_and_finds_its_playbook(name: str) -> None:
    check_survey(awx_survey.survey(TEMPLATES[name]["survey"], data()["questions"]))
    assert TEMPLATES[name]["playbook"] in playbooks(ROOT)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_own_variables_are_not_asked_for(name: str) -> None:
    own = set(TEMPLATES[name].get("variables", {}))
    assert not own & set(TEMPLATES[name]["survey"])
    assert all(option_of(variable, roles_of(ROOT / TEMPLATES[name]["playbook"])) for variable in own)


def test_every_playbook_has_a_template() -> None:
    """But for the part that all of them end with, and the one that makes the templates."""
    have = {template["playbook"] for template in TEMPLATES.values()}
    wanted = {f"playbooks/{p.name}" for p in (ROOT / "playbooks").glob("*.yml")} - {
        "playbooks/report.yml",
        "playbooks/awx.yml",
    }
    assert wanted - {"playbooks/site.yml"} | {"site.yml"} == have


def test_every_question_is_asked() -> None:
    asked = {variable for template in TEMPLATES.values() for variable in template["survey"]}
    assert set(data()["questions"]) == asked


def test_the_workflow_asks_only_what_one_of_its_templates_takes() -> None:
    workflow = data()["workflow"]
    check_survey(awx_survey.survey(workflow["survey"], data()["questions"]))
    used = [TEMPLATES[node["job_template"]] for node in workflow["nodes"]]
    assert {v for v in workflow["survey"] if not any(v in template["survey"] for template in used)} == set()


def test_the_workflow_leads_nowhere_else() -> None:
    workflow = copy.deepcopy(data()["workflow"])
    nodes = awx_survey.workflow_nodes(workflow, "Default", "x ")
    assert nodes[0]["unified_job_template"] == {
        "name": "x verify",
        "type": "job_template",
        "organization": {"name": "Default"},
    }
    workflow["nodes"][0]["always"] = ["tuna"]
    with pytest.raises(ValueError, match="verify leads to tuna"):
        awx_survey.workflow_nodes(workflow, "Default", "")


@pytest.mark.parametrize(
    ("variable", "change", "said"),
    [
        ("roce_qos_priority", {"default": 8}, "outside 0 to 7"),
        ("roce_qos_priority", {"default": "3"}, "is no integer"),
        ("roce_qos_priority", {"max": 9, "default": 3}, "the role does not take 8"),
        ("roce_qos_priority", {"min": "0"}, "whole numbers"),
        ("roce_qos_priority", {"max": 7.5}, "whole numbers"),
        ("roce_qos_priority", {"min": 9}, "min 9 is above max 7"),
        ("roce_qos_priority", {"type": "boolean"}, "AWX knows"),
        ("roce_qos_priority", {"type": "float"}, "takes a int"),
        ("roce_qos_priority", {"default": 4}, "not the role's 3"),
        ("roce_qos_apply", {"choices": ["yes", "no"], "default": "no"}, 'multiplechoice of "true" and "false"'),
        ("roce_qos_apply", {"default": False}, "that of a multiplechoice a text"),
        ("roce_qos_apply", {"type": "text", "min": 0, "max": 5, "choices": None}, "has no choices"),
        ("roce_qos_tool", {"choices": ["auto", "lldptool"]}, "does not take lldptool"),
        ("roce_qos_tool", {"choices": ["auto", " "]}, "blank"),
        ("roce_qos_tool", {"choices": ["auto", "auto"]}, "stands twice"),
        ("roce_qos_tool", {"default": "any"}, "none of the choices"),
        ("roce_qos_tool", {"choices": []}, "no list of choices"),
        ("gpufabric_nodes", {"question_name": ""}, "asks nothing"),
        ("gpufabric_nodes", {"required": "yes"}, "neither true nor false"),
        ("gpufabric_nodes", {"type": "password"}, "set again by every run"),
        ("gpufabric_nodes", {"max": 3}, "outside 1 to 3"),
        ("gpufabric_nodes", {"min": -1}, "no text is -1 to 1000 characters"),
        ("gpufabric_nodes", {"min": 0, "max": 0, "default": ""}, "no text is 0 to 0 characters"),
        ("gpufabric_nodes", {"min": 0, "required": True}, "an empty text answers it"),
        ("gpufabric_nodes", {"default": "a\nb"}, "on several lines"),
        ("gpufabric_nodes", {"default": "$encrypted$"}, "keeps for passwords"),
        ("gpufabric_nodes", {"question_description": ["a"]}, "question_description must be text"),
        ("gpufabric_nodes", {"defualt": "all"}, "knows nothing of 'defualt'"),
        ("isolate_smallest_fault", {"default": float("nan")}, "is no float"),
        ("isolate_smallest_fault", {"default": True}, "is no float"),
    ],
)
def test_a_question_that_awx_would_take_is_refused(variable: str, change: dict[str, t.Any], said: str) -> None:
    questions = copy.deepcopy(data()["questions"])
    questions[variable].update(change)
    assert said in " ".join(faults({**TEMPLATES["roce_qos"], "survey": [variable]}, questions))


@pytest.mark.parametrize("variable", ["roce qos apply", "roce-qos-apply", "1st", "", "lambda"])
def test_a_name_that_is_none_is_refused(variable: str) -> None:
    questions = {variable: data()["questions"]["roce_qos_apply"]}
    with pytest.raises(ValueError, match="no name of a variable"):
        awx_survey.survey([variable], questions)


@pytest.mark.parametrize("variable", ["awx_job_id", "tower_user_name"])
def test_a_name_of_awxs_own_is_refused(variable: str) -> None:
    with pytest.raises(ValueError, match="begins as what AWX itself tells"):
        awx_survey.survey([variable], {variable: data()["questions"]["roce_qos_apply"]})


def test_a_survey_asks_for_something_and_once() -> None:
    questions = {**data()["questions"], "roce_qos_other": data()["questions"]["roce_qos_apply"]}
    with pytest.raises(ValueError, match="without a question"):
        awx_survey.survey([], questions)
    with pytest.raises(ValueError, match="asks for roce_qos_apply twice"):
        awx_survey.survey(["roce_qos_apply", "roce_qos_apply"], questions)
    with pytest.raises(ValueError, match="asks for roce_qos_other in the words in which it asks for roce_qos_apply"):
        awx_survey.survey(["roce_qos_apply", "roce_qos_other"], questions)


@pytest.mark.parametrize("name", data()["questions"])
def test_what_no_answer_means_is_said_where_it_is_not_what_is_shown(name: str) -> None:
    """AWX's forms send neither an empty text nor an empty selection: the default stands in, so a question must not say otherwise."""
    question = data()["questions"][name]
    if question.get("default") and question["type"] in ("text", "multiselect"):
        said = question.get("question_description", "")
        assert "Empty " not in said and "No answer" not in said
        if question["type"] == "multiselect":
            means = "all" if question["default"] == question["choices"] else ", ".join(question["default"])
            assert f"None means {means}." in said


def test_a_variable_that_no_role_reads_is_refused() -> None:
    template = {**TEMPLATES["kernel"], "survey": ["nccl_tests_preset"]}
    assert faults(template, data()["questions"]) == ["no role of playbooks/kernel.yml reads nccl_tests_preset"]


def test_a_variable_without_a_question_is_refused() -> None:
    with pytest.raises(ValueError, match="no question for the variable rdma_modules"):
        awx_survey.survey(["rdma_modules"], data()["questions"])


def test_no_secret_and_no_organisation_is_in_the_data() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "awx").glob("*.yml"))
    assert "Default" not in text and not re.search(r"(?i)password: |BEGIN .*KEY|https?://", text)
