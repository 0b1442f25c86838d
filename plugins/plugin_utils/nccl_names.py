# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a name is one that this NCCL reads, and which one was meant if not."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import Catalogue, Variable, Version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_value import as_text
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nearest_name import nearest_names

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")

#: the variable of the role that a user's values come from
SOURCE = "nccl_env_variables"


def shown(value: t.Any) -> str:
    """A value for a sentence: printable, and not longer than is useful."""
    text = as_text(value)
    text = repr(value) if text is None else text
    text = text if text.isascii() and text.isprintable() else ascii(text)
    return text if len(text) <= 80 else f"{text[:77]}..."


class NameJudge:
    """Judges names against one release.

    wrong: severity of a name that cannot be written. library_names: names read from the library itself, for one that is
    newer than the catalogue; None where that was not done.
    """

    def __init__(
        self, catalogue: Catalogue, version: Version, wrong: str, library_names: frozenset[str] | None = None
    ) -> None:
        self.catalogue = catalogue
        self.version = version
        self.wrong = wrong
        self.library_names = library_names
        self.nccl = f"NCCL {'.'.join(map(str, version))}"

    def _finding(self, kind: str, severity: str, name: str, evidence: str, **more: str) -> Finding:
        return Finding(id=kind, severity=severity, node="", subject=name, evidence=evidence, **more)

    def judge(self, name: str, value: t.Any) -> Finding | None:
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
        if self.library_names is not None and variable.name in self.library_names:
            return None
        if variable.is_after(self.version):
            return self._finding(
                "nccl_variable_not_yet",
                self.wrong,
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
                self.wrong,
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
            self.wrong,
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
            self.wrong,
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
            "warning" if newer and self.library_names is None else self.wrong,
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
            self.wrong,
            shown(name),
            f"{shown(name)!r} is no name of an environment variable",
            expected=f"{near[0]}, probably" if near else "letters, digits and underscores",
            fix=f"rename it to {near[0]}" if near else f"remove it from {SOURCE}",
        )

    def _newer_library(self) -> bool:
        return self.version > tuple(map(int, self.catalogue.newest.split(".")))
