# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that faults are made of, as data: what takes a fault back is on record before the fault is there."""

from __future__ import annotations

import dataclasses
import typing as t

from lab.switch import Rule


@dataclasses.dataclass(frozen=True)
class OnNode:
    """A shell command, run as root on the node of the fault, or on other nodes.

    One that takes a fault back also succeeds where there is nothing to take back.
    """

    command: str
    nodes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OnSwitch:
    """A rule put in force (or taken back) at a network's switch."""

    network: str
    rule: Rule
    present: bool = True


@dataclasses.dataclass(frozen=True)
class OnMonitor:
    """A command to the node's QEMU."""

    command: str
    arguments: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class OnPower:
    """The node's power: off as if the cable were pulled, on until SSH answers."""

    running: bool


Action = OnNode | OnSwitch | OnMonitor | OnPower

_KINDS: dict[str, type[Action]] = {"node": OnNode, "switch": OnSwitch, "monitor": OnMonitor, "power": OnPower}


def action_to_json(action: Action) -> dict[str, t.Any]:
    """Action as JSON values."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(action, cls))
    return {"on": kind, **dataclasses.asdict(action)}


def action_from_json(value: t.Mapping[str, t.Any]) -> Action:
    """The action that action_to_json made value from. Raises KeyError or TypeError on anything else."""
    fields = dict(value)
    cls = _KINDS[fields.pop("on")]
    if cls is OnSwitch:
        fields["rule"] = Rule.from_json(fields["rule"])
    if cls is OnNode:
        fields["nodes"] = tuple(fields.get("nodes", ()))
    return cls(**fields)


@dataclasses.dataclass(frozen=True)
class ActiveFault:
    """An injected fault: what it is called, where it is, and the steps that take it back."""

    kind: str
    node: str
    rail: int | None
    detail: str
    undo: tuple[Action, ...]

    @property
    def where(self) -> str:
        """`n2` or `n2 rail 1`."""
        return self.node if self.rail is None else f"{self.node} rail {self.rail}"

    def to_json(self) -> dict[str, t.Any]:
        """The fault as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("kind", "node", "rail", "detail")},
            "undo": [action_to_json(action) for action in self.undo],
        }

    @classmethod
    def from_json(cls, value: t.Mapping[str, t.Any]) -> ActiveFault:
        """The fault that to_json made value from."""
        fields = dict(value)
        fields["undo"] = tuple(action_from_json(action) for action in fields["undo"])
        return cls(**fields)
