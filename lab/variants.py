# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the nodes of a lab hold besides the common image."""

from __future__ import annotations

import typing as t

from lab import slurm
from lab.image_build import COMMON
from lab.node_files import OwnFile
from lab.plan import Plan


def _none(plan: Plan) -> list[OwnFile]:
    return []


OWN_FILES: dict[str, t.Callable[[Plan], list[OwnFile]]] = {COMMON: _none, "slurm": slurm.own_files}
"""Variant → the files that every node of such a lab gets. image/ holds what is in its image."""
