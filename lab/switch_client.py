# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands to a running switch."""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

from lab.errors import LabError
from lab.switch import Rule
from lab.unix_socket import JsonLines

_TIMEOUT_S = 10.0


def add_rule(control: pathlib.Path, rule: Rule) -> None:
    """Put rule in force at the switch that listens at control."""
    _ask(control, {"add": dataclasses.asdict(rule)})


def remove_rule(control: pathlib.Path, name: str) -> None:
    """Take a rule back; one that is not there is no error."""
    _ask(control, {"remove": name})


def show(control: pathlib.Path) -> dict[str, t.Any]:
    """The switch's rules, counters and connected ports."""
    return _ask(control, {"show": True})


def _ask(control: pathlib.Path, request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    with JsonLines(control, _TIMEOUT_S) as connection:
        connection.send(request)
        answer = connection.receive()
    if "error" in answer:
        raise LabError(f"the switch at {control} refuses: {answer['error']}")
    return answer
