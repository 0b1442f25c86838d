# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which settings a search may try: knobs with ordered values, and what must hold between them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils import catalogue

SPACE = pathlib.Path(__file__).parent / "data" / "search_space.json"

#: {variable: value}; a variable that is left unset is absent
Settings = t.Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Knob:
    """values: in the order in which neighbours behave alike; None leaves the variable unset, which *unset* says in words."""

    name: str
    values: tuple[str | None, ...]
    unset: str = ""


@dataclasses.dataclass(frozen=True)
class ProductLimit:
    """The product of the named variables (1 where unset) is at most so much."""

    names: tuple[str, ...]
    at_most: int

    def holds(self, settings: Settings) -> bool:
        return math.prod(int(settings.get(name, 1)) for name in self.names) <= self.at_most


@dataclasses.dataclass(frozen=True)
class Space:
    knobs: tuple[Knob, ...]
    limits: tuple[ProductLimit, ...] = ()

    def allows(self, settings: Settings) -> bool:
        return all(limit.holds(settings) for limit in self.limits)

    def points(self) -> list[dict[str, str]]:
        """Every allowed point: what an exhaustive grid would measure."""
        combinations = itertools.product(*(knob.values for knob in self.knobs))
        named = ({k.name: v for k, v in zip(self.knobs, c) if v is not None} for c in combinations)
        return [point for point in named if self.allows(point)]

    def indexes(self, settings: Settings) -> dict[str, int] | None:
        """{knob: position of its value}, or None where a value is not among the knob's or a variable is no knob."""
        names = {knob.name for knob in self.knobs}
        if not set(settings) <= names or not all(settings.get(k.name) in k.values for k in self.knobs):
            return None
        return {k.name: k.values.index(settings.get(k.name)) for k in self.knobs}


def guide_for(transport: str) -> dict[str, str]:
    """What guides recommend of this transport, as they print it: a starting point, whatever it is worth."""
    guides: dict[str, dict[str, str]] = json.loads(SPACE.read_text())["guides"]
    return guides.get(transport, {})


def space_for(transport: str, nccl_version: str, debug_too: bool = False, leave_out: t.Collection[str] = ()) -> Space:
    """The space of one transport (socket, roce, infiniband, nvlink, mpi_tcp) under one NCCL version.

    Variables that this NCCL does not know are left out, and those that the catalogue marks as debug unless *debug_too*.
    ValueError names a transport without knobs.
    """
    data = json.loads(SPACE.read_text())
    chosen = [k for k in data["knobs"] if transport in k["transports"] and k["name"] not in leave_out]
    if transport != "mpi_tcp":
        version = catalogue.parse_version(nccl_version)
        known = catalogue.load_catalogue()
        variables = {k["name"]: known.variables.get(k["name"]) for k in chosen}
        chosen = [
            k
            for k in chosen
            if (variable := variables[k["name"]])
            and variable.is_in(version)
            and (debug_too or variable.risk != "debug")
        ]
    if not chosen and not debug_too and any(transport in k["transports"] for k in data["knobs"]):
        raise ValueError(
            f"all that could be tuned for {transport} are debug variables: autotune_debug_variables allows them"
        )
    if not chosen:
        transports = sorted({name for k in data["knobs"] for name in k["transports"]})
        raise ValueError(f"there is nothing to tune for the transport {transport!r}; known are {', '.join(transports)}")
    names = {k["name"] for k in chosen}
    limits = [ProductLimit(tuple(c["product_of"]), c["at_most"]) for c in data["constraints"]]
    return Space(
        tuple(Knob(k["name"], tuple(k["values"]), k["unset"]) for k in chosen),
        tuple(limit for limit in limits if names.intersection(limit.names)),
    )
