# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known of NCCL's environment variables: data/nccl_catalogue.json with its questions answered."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import typing as t

DATA = pathlib.Path(__file__).parent / "data"
CATALOGUE = DATA / "nccl_catalogue.json"

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """'2.28.9' or '2.28.9+cuda12.9' as numbers to compare; ValueError names what is no version."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.].*)?$", text.strip())
    if match is None:
        raise ValueError(f"an NCCL version looks like 2.28.9, not {text!r}")
    return tuple(int(part or 0) for part in match.groups())


@dataclasses.dataclass(frozen=True)
class Variable:
    """One NCCL variable; *entry* is its object in the catalogue, whose schema describes the keys."""

    name: str
    entry: t.Mapping[str, t.Any]

    @property
    def type(self) -> str:
        return str(self.entry["type"])

    @property
    def risk(self) -> str:
        return str(self.entry["risk"])

    @property
    def reach(self) -> str:
        return str(self.entry["reach"])

    @property
    def transport(self) -> str:
        return str(self.entry.get("transport", ""))

    @property
    def meaning(self) -> str:
        return str(self.entry["meaning"])

    @property
    def advice(self) -> str:
        return str(self.entry.get("advice", ""))

    @property
    def replaced_by(self) -> str:
        return str(self.entry.get("replaced_by", ""))

    @property
    def environment_only(self) -> bool:
        return bool(self.entry.get("environment_only", False))

    @property
    def is_number(self) -> bool:
        """Whether NCCL reads it as a number, and so takes any text for one."""
        if self.type == "enum":
            return all(re.fullmatch(r"-?\d+", choice) for choice in self.entry["choices"])
        return self.type in ("int", "bool")

    def is_in(self, version: Version) -> bool:
        return not self.is_after(version) and not self.is_gone(version)

    def is_after(self, version: Version) -> bool:
        """Whether it came only after *version*."""
        return version < parse_version(self.entry["first"])

    def is_gone(self, version: Version) -> bool:
        return "last" in self.entry and version > parse_version(self.entry["last"])

    def default(self, version: Version) -> tuple[str | None, str]:
        """The default in *version*, None where NCCL decides, and how to say it."""
        known = [entry for entry in self.entry["defaults"] if parse_version(entry["since"]) <= version]
        entry = known[-1] if known else self.entry["defaults"][0]
        return entry["value"], entry.get("text", entry["value"])

    def maximum(self, version: Version) -> int | None:
        limits = [limit for limit in self.entry.get("limits", []) if parse_version(limit["since"]) <= version]
        known = limits[-1:] or self.entry.get("limits", [])[:1]
        bound = known[0]["max"] if known else self.entry.get("max")
        return None if bound is None else int(bound)

    def choices(self, version: Version) -> list[str]:
        since = self.entry.get("choices_since", {})
        return [c for c in self.entry.get("choices", []) if c not in since or parse_version(since[c]) <= version]


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """variables: by name. never_existed, legacy, read_by_others: names that are no NCCL variable, with what is meant."""

    newest: str
    oldest: str
    releases: tuple[str, ...]
    variables: t.Mapping[str, Variable]
    never_existed: t.Mapping[str, t.Mapping[str, t.Any]]
    legacy: t.Mapping[str, t.Mapping[str, t.Any]]
    read_by_others: t.Mapping[str, t.Mapping[str, t.Any]]
    prefixes_of_others: t.Mapping[str, str]

    def names(self, version: Version) -> list[str]:
        return [name for name, variable in self.variables.items() if variable.is_in(version)]

    def reader_of(self, name: str) -> tuple[str, list[str]] | None:
        """Who else reads *name*, and what its present names are; None if nobody is known to."""
        if name in self.read_by_others:
            entry = self.read_by_others[name]
            return entry["reader"], list(entry["instead"])
        for prefix, reader in self.prefixes_of_others.items():
            if name.startswith(prefix):
                return reader, []
        return None


def catalogue_from(data: t.Mapping[str, t.Any]) -> Catalogue:
    return Catalogue(
        newest=data["newest"],
        oldest=data["oldest"],
        releases=tuple(data["releases"]),
        variables={name: Variable(name, entry) for name, entry in data["variables"].items()},
        never_existed=data["never_existed"],
        legacy=data["legacy"],
        read_by_others=data["read_by_others"],
        prefixes_of_others=data["prefixes_of_others"],
    )


@functools.lru_cache(maxsize=1)
def load_catalogue() -> Catalogue:
    return catalogue_from(json.loads(CATALOGUE.read_text(encoding="utf-8")))
