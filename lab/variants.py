# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the nodes of a lab hold besides the common image, and what the collection is told of it."""

from __future__ import annotations

import dataclasses
import typing as t

from lab import ibsim, slurm
from lab.errors import LabError
from lab.image_build import COMMON
from lab.node_files import OwnFile
from lab.plan import Plan


def _nothing(plan: Plan) -> list[OwnFile]:
    return []


def _no_variables(plan: Plan) -> dict[str, t.Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of lab. lab/image/NAME holds what is in its image besides the common part.

    own_files: what every node gets at its first boot; group_variables: what the inventory says of all nodes;
    soft_roce: whether the rails carry Soft-RoCE devices.
    """

    own_files: t.Callable[[Plan], list[OwnFile]] = _nothing
    group_variables: t.Callable[[Plan], dict[str, t.Any]] = _no_variables
    soft_roce: bool = True


VARIANTS = {
    COMMON: Variant(),
    "slurm": Variant(slurm.own_files),
    "ibsim": Variant(ibsim.own_files, ibsim.group_variables, soft_roce=False),
}


def find(name: str) -> Variant:
    """The variant of that name. Raises LabError that lists the names there are."""
    if name not in VARIANTS:
        raise LabError(f"--variant is '{name}', expected one of {', '.join(VARIANTS)}")
    return VARIANTS[name]
