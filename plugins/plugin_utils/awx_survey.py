# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Surveys and workflows as AWX takes them, and what AWX takes although it cannot be meant (tried on AWX 24.6.1)."""

from __future__ import annotations

import keyword
import math
import re
import typing as t

Question = t.Mapping[str, t.Any]

TEXTS = ("text", "textarea", "password")
CHOICES = ("multiplechoice", "multiselect")
TYPES = (*TEXTS, *CHOICES, "integer", "float")

#: a yes or no: AWX has no boolean
YES_NO = ("true", "false")

#: what a question may say; AWX keeps any other field and never looks at it
FIELDS = ("question_name", "question_description", "variable", "type", "required", "default", "min", "max", "choices")

#: how the variables begin by which AWX tells a job about itself
RESERVED = ("awx_", "tower_")

#: what AWX shows in place of a password
HIDDEN = "$encrypted$"

#: question types that answer an option of an argument spec, by the option's type
ANSWERS = {
    "int": ("integer",),
    "float": ("float", "integer"),
    "str": ("text", "textarea", "password", "multiplechoice"),
    "path": ("text",),
    "bool": ("multiplechoice",),
    "list": ("multiselect",),
}


def survey(variables: t.Sequence[str], questions: t.Mapping[str, Question]) -> dict[str, t.Any]:
    """The survey spec that asks for *variables* in this order.

    No question is required: AWX wants an answer to a required one at launch, even where it has a default.
    Raises ValueError, one sentence, for a variable without a question, with one that cannot be meant, or asked for twice.
    """
    if not variables:
        raise ValueError("A survey without a question cannot be: AWX refuses it.")
    twice = [variable for variable in variables if list(variables).count(variable) > 1]
    if twice:
        raise ValueError(f"The survey asks for {twice[0]} twice.")
    spec: list[dict[str, t.Any]] = []
    for variable in variables:
        if variable not in questions:
            raise ValueError(f"There is no question for the variable {variable} in awx/questions.yml.")
        question = {"question_description": "", "required": False, **questions[variable], "variable": variable}
        wrong = problems(question)
        if wrong:
            raise ValueError(f"The question for {variable} in awx/questions.yml cannot be meant: {wrong[0]}.")
        if isinstance(question.get("default"), list):
            question["default"] = "\n".join(question["default"])
        like = [other["variable"] for other in spec if other["question_name"] == question["question_name"]]
        if like:
            raise ValueError(f"The survey asks for {variable} in the words in which it asks for {like[0]}.")
        spec.append(question)
    return {"name": "", "description": "", "spec": spec}


def workflow_nodes(workflow: t.Mapping[str, t.Any], organization: str, prefix: str) -> list[dict[str, t.Any]]:
    """workflow_nodes of M(awx.awx.workflow_job_template). Raises ValueError where a node leads to one that is not there."""
    known = [node["identifier"] for node in workflow["nodes"]]
    nodes = []
    for node in workflow["nodes"]:
        related = {}
        for outcome in ("success", "failure", "always"):
            following = node.get(outcome, [])
            for name in following:
                if name not in known:
                    raise ValueError(f"The workflow's node {node['identifier']} leads to {name}, which it has not.")
            related[f"{outcome}_nodes"] = [{"identifier": name} for name in following]
        template = {
            "name": f"{prefix}{node['job_template']}",
            "type": "job_template",
            "organization": {"name": organization},
        }
        nodes.append({"identifier": node["identifier"], "unified_job_template": template, "related": related})
    return nodes


def problems(question: Question) -> list[str]:
    """What cannot be meant about a question, with or without its ``variable``; AWX itself takes most of it."""
    kind = question.get("type")
    if kind not in TYPES:
        return [f"its type is {kind!r}, and AWX knows {', '.join(TYPES)}"]
    found = []
    if not question.get("question_name"):
        found.append("it asks nothing: question_name is missing")
    found += [f"{field} must be text" for field in FIELDS[:2] if not isinstance(question.get(field, ""), str)]
    found += [f"AWX knows nothing of {field!r}" for field in question if field not in FIELDS]
    variable = str(question.get("variable", "_"))
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", variable) or keyword.iskeyword(variable):
        found.append(f"{variable!r} is no name of a variable")
    if variable.startswith(RESERVED):
        found.append(f"{variable} begins as what AWX itself tells a job")
    if not isinstance(question.get("required", False), bool):
        found.append("required is neither true nor false")
    return found + (_choice_problems(question) if kind in CHOICES else _bound_problems(question))


def spec_problems(question: Question, option: t.Mapping[str, t.Any]) -> list[str]:
    """Why an answer to *question* could not be what the role's *option* (of its argument spec) takes."""
    kind, wanted = question["type"], option.get("type", "str")
    choices = [str(choice) for choice in option.get("choices", [])]
    if wanted == "bool":
        if kind != "multiplechoice" or sorted(question["choices"]) != sorted(YES_NO):
            return ['the role takes a boolean: ask with a multiplechoice of "true" and "false"']
        return []
    if kind not in ANSWERS.get(wanted, ()):
        return [f"the role takes a {wanted}, which a question of type {kind} does not give"]
    if kind in CHOICES:
        foreign = [choice for choice in question["choices"] if choices and choice not in choices]
        return [f"the role does not take {', '.join(foreign)}"] if foreign else []
    if choices and kind == "integer":
        return _outside(question, [int(choice) for choice in choices])
    return ["the role takes choices: ask with a multiplechoice"] if choices else []


def _outside(question: Question, choices: t.Sequence[int]) -> list[str]:
    foreign = set(range(question["min"], question["max"] + 1)) - set(choices)
    return [f"the role does not take {min(foreign)}"] if foreign else []


def _choice_problems(question: Question) -> list[str]:
    choices = question.get("choices")
    if not isinstance(choices, list) or not choices:
        return ["it has no list of choices"]
    found = [f"the choice {choice!r} is no text" for choice in choices if not isinstance(choice, str)]
    found += [
        f"the choice {c!r} is blank or on several lines"
        for c in choices
        if len(str(c).split("\n")) > 1 or not str(c).strip()
    ]
    if len(set(map(str, choices))) != len(choices):
        found.append("a choice stands twice")
    if "default" in question:
        default = question["default"]
        several = question["type"] == "multiselect"
        if not isinstance(default, list if several else str):
            found.append("the default of a multiselect is a list, that of a multiplechoice a text")
        else:
            found += [
                f"the default {d!r} is none of the choices"
                for d in (default if several else [default])
                if d not in choices
            ]
    return found


def _bound_problems(question: Question) -> list[str]:
    kind, least, most = question["type"], question.get("min"), question.get("max")
    if not (_whole(least) and _whole(most)):
        return [f"min and max must be whole numbers, and are {least!r} and {most!r}"]
    if least > most:
        return [f"min {least} is above max {most}"]
    if kind in TEXTS and (least < 0 or most == 0):
        return [f"no text is {least} to {most} characters long"]
    if kind in TEXTS and least == 0 and question.get("required"):
        return ["it is required, and an empty text answers it"]
    if "choices" in question:
        return [f"a question of type {kind} has no choices"]
    if "default" not in question:
        return []
    default: t.Any = question["default"]
    if kind == "password":
        return ["a password with a default is set again by every run"]
    if not (
        _number(default) if kind == "float" else _whole(default) if kind == "integer" else isinstance(default, str)
    ):
        return [f"its default {default!r} is no {kind}"]
    if kind == "text" and "\n" in default:
        return [f"its default {default!r} is on several lines, and a text has one"]
    if kind in TEXTS and default.startswith(HIDDEN):
        return [f"its default begins with {HIDDEN}, which AWX keeps for passwords"]
    size = len(default) if isinstance(default, str) else default
    if not least <= size <= most:
        return [f"its default {default!r} lies outside {least} to {most}"]
    return []


def _whole(number: t.Any) -> t.TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def _number(number: t.Any) -> t.TypeGuard[float]:
    return _whole(number) or isinstance(number, float) and math.isfinite(number)
