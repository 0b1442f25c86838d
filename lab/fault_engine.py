# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries faults out and takes them back. A fault is recorded before its first step, so that it survives its injector."""

from __future__ import annotations

import pathlib
import typing as t

from lab import machine, qmp, switch_client
from lab.errors import LabError
from lab.fault_actions import Action, ActiveFault, OnMonitor, OnNode, OnPower, OnSwitch
from lab.faults import Design
from lab.remote import Completed


class Nodes(t.Protocol):
    """What the engine needs of a lab besides its sockets."""

    def run(self, node: str, command: str) -> Completed:
        """Run a shell command on a node as root."""

    def set_power(self, node: str, running: bool) -> None:
        """Switch a node on, until SSH answers, or off."""


class FaultEngine:
    """Works on a list of active faults that its owner keeps; record is called after each change of the list."""

    def __init__(
        self, directory: pathlib.Path, nodes: Nodes, active: list[ActiveFault], record: t.Callable[[], None]
    ) -> None:
        self._directory = directory
        self._nodes = nodes
        self._active = active
        self._record = record

    def inject(self, design: Design) -> None:
        """Inject a fault. Raises LabError when it is there already, or when a step fails: what was done is then undone."""
        fault = design.fault
        if any((one.kind, one.node, one.rail) == (fault.kind, fault.node, fault.rail) for one in self._active):
            raise LabError(f"{fault.kind} on {fault.where} is active already")
        self._active.append(fault)
        self._record()
        try:
            for action in design.apply:
                self._perform(fault.node, action)
        except BaseException:
            self._take_back(fault)
            raise

    def clear(self, node: str | None = None) -> list[ActiveFault]:
        """Take back the faults of a node, or all; return them. Raises LabError naming those that stay."""
        chosen = [fault for fault in self._active if node in (None, fault.node)]
        failures = []
        # A node that hangs or is off first runs again: commands on it need that.
        for fault in sorted(chosen, key=lambda one: isinstance(one.undo[0], OnNode)):
            try:
                self._take_back(fault)
            except LabError as error:
                failures.append(f"{fault.kind} on {fault.where}: {error}")
        if failures:
            raise LabError(f"not taken back: {'; '.join(failures)}")
        return chosen

    def _take_back(self, fault: ActiveFault) -> None:
        for action in fault.undo:
            self._perform(fault.node, action)
        self._active.remove(fault)
        self._record()

    def _perform(self, node: str, action: Action) -> None:
        if isinstance(action, OnNode):
            for one in action.nodes or (node,):
                done = self._nodes.run(one, action.command)
                if done.status != 0:
                    said = (done.errors or done.output).strip()
                    raise LabError(f"{one} ends `{action.command}` with status {done.status}: {said}")
        elif isinstance(action, OnSwitch):
            control = self._directory / machine.switch_control(action.network)
            if action.present:
                switch_client.add_rule(control, action.rule)
            else:
                switch_client.remove_rule(control, action.rule.name)
        elif isinstance(action, OnMonitor):
            qmp.execute(self._directory / machine.MachineFiles(node).monitor, action.command, action.arguments)
        else:
            assert isinstance(action, OnPower)
            self._nodes.set_power(node, action.running)
