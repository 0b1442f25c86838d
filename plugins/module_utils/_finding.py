# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one shape in which every role, judge and test of this collection says what is wrong. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

SEVERITIES = ("error", "warning", "notice")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that somebody should know, with what to type about it.

    id: stable, lower case with underscores, e.g. ``hca_port_down``; tests and users filter by it.
    severity: ``error`` fails the gate, ``warning`` costs performance or is a risk, ``notice`` is worth knowing.
    node: inventory name, or "" where the finding is about the whole run.
    subject: the thing on that node in the field's terms, e.g. ``mlx5_0 port 1`` or ``net.core.rmem_max``.
    evidence: what was seen, with its source; expected: what should have been seen; cause: why it is so, as far as known.
    fix: the command or setting to type.
    """

    id: str
    severity: str
    node: str
    subject: str
    evidence: str
    expected: str = ""
    cause: str = ""
    fix: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"a finding's severity is one of {', '.join(SEVERITIES)}, not {self.severity!r}")

    def as_dict(self) -> dict[str, str]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Finding:
        """Read back what as_dict() wrote; keys of later versions are left aside."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: str(data[name]) for name in names if name in data})


def worst_first(findings: t.Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notices; by node and subject within each, so that two runs read alike.

    What no single node is to blame for comes after what one is: it is most often the consequence.
    """
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), not f.node, f.node, f.subject, f.id))
