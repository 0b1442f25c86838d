# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Holds a user's NCCL variables against what one release of NCCL reads: names, values, and what they cost."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_algorithms, nccl_value
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import (
    Catalogue,
    Variable,
    Version,
    load_catalogue,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_flaw import Flaw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import SOURCE, NameJudge, shown

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


class _Judge:
    def __init__(self, catalogue: Catalogue, version: Version, rules: Rules, values: dict[str, t.Any]) -> None:
        self.catalogue = catalogue
        self.version = version
        self.rules = rules
        self.values = values
        self.names = NameJudge(catalogue, version, rules.wrong, rules.library_names)
        self.nccl = self.names.nccl

    def judge(self, name: str, value: t.Any, result: Validated) -> None:
        if self._only_library_knows(name):
            self._judge_newer(name, value, result)
            return
        strange = self.names.judge(name, value)
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
        default = self._no_op(variable, text)
        if default is not None:
            # No line is needed for it, and none of a profile may stand in its place.
            result.removed.append(name)
            result.drop(name, text, default)
            return
        tuner = self._tuner(variable, text)
        if tuner is not None:
            result.drop(name, text, tuner)
            return
        result.kept[name] = text
        result.findings += [f for f in (self._risk(variable, text), self._logging(variable, text)) if f]

    def _only_library_knows(self, name: str) -> bool:
        return name not in self.catalogue.variables and name in (self.rules.library_names or ())

    def _judge_newer(self, name: str, value: t.Any, result: Validated) -> None:
        """A variable newer than the catalogue: its value is held to what every file demands, and to no more."""
        text = nccl_value.as_text(value)
        flaw = nccl_value.unsafe(text) if text is not None else Flaw("type", "no value", "one text or number")
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

    def _value(self, variable: Variable, value: t.Any) -> Finding | None:
        text = nccl_value.as_text(value)
        if text is None:
            flaw: Flaw | None = Flaw("type", f"a {type(value).__name__} is no value", "one text or number")
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

    def _flawed(self, name: str, value: t.Any, flaw: Flaw, meaning: str) -> Finding:
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
