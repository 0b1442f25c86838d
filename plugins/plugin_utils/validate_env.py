# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Holds a user's NCCL variables against what one release of NCCL reads: names, values, and what they cost."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_algorithms, nccl_value
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import (
    Catalogue,
    Variable,
    Version,
    load_catalogue,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nearest_name import nearest_names

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")

#: the variable of the role that a user's values come from
SOURCE = "nccl_env_variables"

MODES = ("strict", "warn")


@dataclasses.dataclass(frozen=True)
class Rules:
    """How strictly to judge.

    mode: strict makes a wrong name or value an error, warn a warning. production: whether debug-only settings are out of
    place. keep_debug: write NCCL_ALGO and NCCL_PROTO all the same. library_names: names read from the library itself, for
    one that is newer than the catalogue; None where that was not done.
    """

    mode: str = "strict"
    production: bool = True
    keep_debug: bool = False
    library_names: frozenset[str] | None = None

    @property
    def wrong(self) -> str:
        """Severity of what cannot be written."""
        return "error" if self.mode == "strict" else "warning"


@dataclasses.dataclass
class Validated:
    """kept: {name: text} in the given order; removed: names that the user wants unset; dropped: (name, value, reason)."""

    kept: dict[str, str] = dataclasses.field(default_factory=dict)
    removed: list[str] = dataclasses.field(default_factory=list)
    dropped: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def drop(self, name: str, value: t.Any, finding: Finding) -> None:
        self.dropped.append((name, shown(value), finding.evidence))
        self.findings.append(finding)


def validate(
    values: t.Mapping[str, t.Any], version: Version, rules: Rules, catalogue: Catalogue | None = None
) -> Validated:
    """Every name and value of *values* held against NCCL *version*. A value of null unsets what a profile sets."""
    known = catalogue or load_catalogue()
    judge = _Judge(known, version, rules, {str(name): value for name, value in values.items()})
    result = Validated()
    for name, value in judge.values.items():
        judge.judge(name, value, result)
    return result


def shown(value: t.Any) -> str:
    """A value for a sentence: printable, and not longer than is useful."""
    text = nccl_value.as_text(value)
    text = repr(value) if text is None else text
    text = text if text.isascii() and text.isprintable() else ascii(text)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Judge:
    def __init__(self, catalogue: Catalogue, version: Version, rules: Rules, values: dict[str, t.Any]) -> None:
        self.catalogue = catalogue
        self.version = version
        self.rules = rules
        self.values = values
        self.nccl = f"NCCL {'.'.join(map(str, version))}"

    def judge(self, name: str, value: t.Any, result: Validated) -> None:
        if self._only_library_knows(name):
            self._judge_newer(name, value, result)
            return
        strange = self._name(name, value)
        if strange is not None:
            result.drop(name, value, strange)
            return
        if value is None:
            result.removed.append(name)
            return
        variable = self.catalogue.variables[name]
        wrong = self._value(variable, value)
        if wrong is not None:
            result.drop(name, value, wrong)
            return
        text = str(nccl_value.as_text(value))
        useless = self._no_op(variable, text) or self._tuner(variable, text)
        if useless is not None:
            result.drop(name, text, useless)
            return
        result.kept[name] = text
        result.findings += [f for f in (self._risk(variable, text), self._logging(variable, text)) if f]

    def _only_library_knows(self, name: str) -> bool:
        return name not in self.catalogue.variables and name in (self.rules.library_names or ())

    def _judge_newer(self, name: str, value: t.Any, result: Validated) -> None:
        """A variable newer than the catalogue: its value is held to what every file demands, and to no more."""
        text = nccl_value.as_text(value)
        flaw = (
            nccl_value.unsafe(text) if text is not None else nccl_value.Flaw("type", "no value", "one text or number")
        )
        if flaw is not None:
            result.drop(name, value, self._flawed(name, value, flaw, ""))
            return
        result.kept[name] = str(text)
        result.findings.append(
            self._finding(
                "nccl_variable_newer",
                "warning",
                name,
                f"{name} is in the library ({self.nccl}) and newer than the catalogue ({self.catalogue.newest}): unchecked",
                fix="update the collection",
            )
        )

    def _finding(self, kind: str, severity: str, name: str, evidence: str, **more: str) -> Finding:
        return Finding(id=kind, severity=severity, node="", subject=name, evidence=evidence, **more)

    def _name(self, name: str, value: t.Any) -> Finding | None:
        """What is wrong with the name itself, in this release; None for a variable that it has."""
        if name in self.catalogue.variables:
            return self._release(self.catalogue.variables[name], value)
        if name in self.catalogue.never_existed:
            return self._never(name, value)
        if name in self.catalogue.legacy:
            return self._legacy(name)
        reader = self.catalogue.reader_of(name)
        if reader is not None:
            return self._others(name, *reader)
        return self._unknown(name)

    def _release(self, variable: Variable, value: t.Any) -> Finding | None:
        first, last = variable.entry["first"], variable.entry.get("last")
        if self.rules.library_names is not None and variable.name in self.rules.library_names:
            return None
        if variable.is_after(self.version):
            return self._finding(
                "nccl_variable_not_yet",
                self.rules.wrong,
                variable.name,
                f"{variable.name} came with NCCL {first}; the ranks load {self.nccl}",
                expected=f"NCCL {first} or later",
                cause="an older NCCL ignores the name silently",
                fix=f"update NCCL, or remove {variable.name} from {SOURCE}",
            )
        if variable.is_gone(self.version):
            instead = variable.replaced_by
            return self._finding(
                "nccl_variable_removed",
                self.rules.wrong,
                variable.name,
                f"{variable.name} was last in NCCL {last}; the ranks load {self.nccl}",
                expected=f"{instead} instead" if instead else "no such variable",
                cause="a newer NCCL ignores the name silently",
                fix=f"{SOURCE}: {instead}: {shown(value)}" if instead else f"remove {variable.name} from {SOURCE}",
            )
        return None

    def _never(self, name: str, value: t.Any) -> Finding:
        entry = self.catalogue.never_existed[name]
        instead = list(entry["instead"])
        return self._finding(
            "nccl_variable_never_existed",
            self.rules.wrong,
            name,
            f"{name} does not exist in any NCCL from 2.12 to {self.catalogue.newest}, and NCCL does not say so",
            expected=f"for {entry['wanted']}: {' and '.join(instead) if instead else 'nothing does this'}",
            cause=entry["why"],
            fix=f"remove {name} from {SOURCE}"
            + (f", and if {entry['wanted']} are measured to help, set {instead[0]}" if instead else ""),
        )

    def _legacy(self, name: str) -> Finding:
        entry = self.catalogue.legacy[name]
        instead = " and ".join(entry["instead"])
        return self._finding(
            "nccl_variable_removed",
            self.rules.wrong,
            name,
            f"{self.nccl} does not read {name}: {entry['why']}",
            expected=f"{instead} instead" if instead else "no such variable",
            fix=f"remove {name} from {SOURCE}" + (f", or use {instead}" if instead else ""),
        )

    def _others(self, name: str, reader: str, instead: list[str]) -> Finding:
        return self._finding(
            "nccl_variable_of_others",
            "warning",
            name,
            f"{name} is read by {reader}, not by NCCL",
            expected=f"{instead[0]} in the job's environment" if instead else f"it in the environment of {reader}",
            cause="nccl.conf is read by NCCL alone, and too late for its plug-ins' and the framework's own start",
            fix=f"remove {name} from {SOURCE}, and set {instead[0] if instead else 'it'} where the job is started",
        )

    def _unknown(self, name: str) -> Finding:
        if not NAME.match(name):
            return self._bad_name(name)
        newer = self._newer_library()
        near = nearest_names(name, self.catalogue.variables)
        here = [n for n in near if self.catalogue.variables[n].is_in(self.version)] or near
        foreign = not name.upper().startswith("NCCL") and not here
        return self._finding(
            "nccl_variable_unknown",
            "warning" if newer and self.rules.library_names is None else self.rules.wrong,
            name,
            f"{name} is no variable of NCCL's"
            if foreign
            else f"{self.nccl} has no variable {name}, and does not say so",
            expected=f"{here[0]}, probably"
            + (f" (or {', '.join(here[1:])})" if here[1:] else "")
            + f": {self.catalogue.variables[here[0]].meaning}"
            if here
            else "a name out of docs/nccl_variables.md",
            cause=f"the library is newer than the catalogue ({self.catalogue.newest})" if newer else "",
            fix=f"rename it to {here[0]}" if here else f"remove {name} from {SOURCE}",
        )

    def _bad_name(self, name: str) -> Finding:
        near = nearest_names(name, self.catalogue.variables)
        return self._finding(
            "nccl_name_invalid",
            self.rules.wrong,
            shown(name),
            f"{shown(name)!r} is no name of an environment variable",
            expected=f"{near[0]}, probably" if near else "letters, digits and underscores",
            fix=f"rename it to {near[0]}" if near else f"remove it from {SOURCE}",
        )

    def _newer_library(self) -> bool:
        return self.version > tuple(map(int, self.catalogue.newest.split(".")))

    def _value(self, variable: Variable, value: t.Any) -> Finding | None:
        text = nccl_value.as_text(value)
        if text is None:
            flaw: nccl_value.Flaw | None = nccl_value.Flaw(
                "type", f"a {type(value).__name__} is no value", "one text or number"
            )
        elif text == "":
            flaw = None
        else:
            flaw = nccl_value.unsafe(text) or nccl_value.check(variable, text, self.version)
        if flaw is None:
            return None
        if isinstance(value, bool):
            flaw = dataclasses.replace(
                flaw, evidence=f"{flaw.evidence}; in YAML, {text} is a truth value and no number"
            )
        return self._flawed(variable.name, value, flaw, variable.meaning)

    def _flawed(self, name: str, value: t.Any, flaw: nccl_value.Flaw, meaning: str) -> Finding:
        return self._finding(
            f"nccl_value_{flaw.kind}",
            self.rules.wrong,
            name,
            f"{name}={shown(value)}: {flaw.evidence}",
            expected=flaw.expected,
            cause=meaning,
            fix=f"{SOURCE}: {name}: '{flaw.fix}'" if flaw.fix else f"correct {name} in {SOURCE}",
        )

    def _no_op(self, variable: Variable, text: str) -> Finding | None:
        default, said = variable.default(self.version)
        same = default is not None and (
            text.lower() == default.lower()
            or (variable.is_number and nccl_value.nccl_integer(text) == nccl_value.nccl_integer(default))
        )
        if not same and text:
            return None
        return self._finding(
            "nccl_no_op",
            "notice",
            variable.name,
            f"{variable.name}={text} changes nothing: {'an empty value means' if not text else 'it is'} the default"
            + (f" of {self.nccl}" if text else f", {said}"),
            fix=f"remove {variable.name} from {SOURCE}",
        )

    def _tuner(self, variable: Variable, text: str) -> Finding | None:
        """NCCL_ALGO and NCCL_PROTO: debug variables that take choices away from NCCL's tuner."""
        if variable.risk != "tuner" or self.rules.keep_debug:
            return None
        proto = str(self.values.get("NCCL_PROTO") or "")
        lost = nccl_algorithms.left_without(text, self.version, proto) if variable.name == "NCCL_ALGO" else []
        if not lost and not self.rules.production:
            return None
        form = nccl_algorithms.right_form(text, self.version, proto) if variable.name == "NCCL_ALGO" else text
        evidence = f"{variable.name}={text} is a debug variable, and no setting for production"
        if lost:
            evidence = (
                f"with {variable.name}={text}, {self.nccl} has no algorithm for {', '.join(lost)}, and the job stops"
            )
        return self._finding(
            "nccl_breaks_collectives" if lost else "nccl_tuner_restricted",
            "warning",
            variable.name,
            f"{evidence}; it is left out",
            expected=f"nothing, so that NCCL's tuner chooses by size; for a test, this NCCL's form is {variable.name}={form}",
            cause=variable.advice,
            fix=f"remove {variable.name} from {SOURCE}"
            + (f", or for a test set it to '{form}' with nccl_env_keep_debug: true" if form else ""),
        )

    def _risk(self, variable: Variable, text: str) -> Finding | None:
        texts = {
            "debug": ("nccl_debug_only", "warning", "belongs to NCCL's debugging section: not meant for production"),
            "tuner": (
                "nccl_debug_only",
                "warning",
                "takes choices away from NCCL's tuner, and is written as you asked",
            ),
            "internal": ("nccl_undocumented", "warning", "is an internal knob, which may change or go without notice"),
            "undocumented": ("nccl_undocumented", "warning", "is undocumented, and may change or go without notice"),
            "experimental": ("nccl_experimental", "notice", "is experimental"),
            "dangerous": ("nccl_dangerous", "warning", "can corrupt data"),
            "deprecated": ("nccl_deprecated", "warning", "is an old name"),
        }
        if variable.risk not in texts or (variable.risk == "debug" and not self.rules.production):
            return None
        kind, severity, says = texts[variable.risk]
        instead = variable.replaced_by
        return self._finding(
            kind,
            severity,
            variable.name,
            f"{variable.name}={text} {says}",
            expected=instead or f"the default, {variable.default(self.version)[1]}",
            cause=variable.advice or variable.meaning,
            fix=f"{SOURCE}: {instead}: '{text}'"
            if instead
            else f"remove {variable.name} from {SOURCE} unless a measurement on this fabric speaks for it",
        )

    def _logging(self, variable: Variable, text: str) -> Finding | None:
        loud = {
            "NCCL_DEBUG": text.upper() in ("INFO", "TRACE", "ABORT"),
            "NCCL_DEBUG_SUBSYS": True,
            "NCCL_DEBUG_FILE": "%p" not in text,
        }
        if not self.rules.production or not loud.get(variable.name):
            return None
        one_file = variable.name == "NCCL_DEBUG_FILE"
        return self._finding(
            "nccl_logging_in_production",
            "warning",
            variable.name,
            f"{variable.name}={text}"
            + (": all ranks of a node write over one file" if one_file else " logs every job in detail"),
            expected=f"{text}.%h.%p" if one_file else "NCCL_DEBUG=WARN, and the profile debug for a test",
            cause="" if one_file else variable.advice,
            fix=f"{SOURCE}: {variable.name}: '{text}.%h.%p'" if one_file else f"remove {variable.name} from {SOURCE}",
        )
