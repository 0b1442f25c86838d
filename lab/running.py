# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab that has been recorded: starts its switches and machines, reaches its nodes, and ends all of it."""

from __future__ import annotations

import pathlib
import shutil
import sys
import time
import typing as t

from lab import image as images
from lab import inventory, machine, process, qmp, remote, state, variants
from lab.errors import LabError
from lab.paths import REPOSITORY, cache_directory, inventory_directory
from lab.plan import Node, Plan, make_plan
from lab.progress import Progress
from lab.state import Settings, State

OPERATOR_KEY = "id_ed25519"
KNOWN_HOSTS = "known_hosts"

_SWITCH_S = 15.0
_POLL_S = 0.05
# One that boots alone needs 12 s under software emulation; nodes share the processors.
_BOOT_S = 240.0
_BOOT_S_A_NODE = 30.0


def plan_of(settings: Settings) -> Plan:
    """The plan of a lab with these settings. Raises LabError where they cannot be."""
    soft_roce = variants.find(settings.variant).soft_roce
    return make_plan(settings.nodes, settings.hcas, settings.releases, soft_roce)


class RunningLab:
    """The processes and files of the lab that state records in directory. Its caller holds the lab (state.locked)."""

    def __init__(self, directory: pathlib.Path, lab: State, progress: Progress) -> None:
        self.directory = directory
        self.lab = lab
        self.plan: Plan = plan_of(lab.settings)
        self._progress = progress

    def record(self) -> None:
        """Write the state."""
        state.save(self.directory, self.lab)

    def endpoint(self, node: Node) -> remote.Endpoint:
        """How node is reached over SSH."""
        return remote.Endpoint(
            node.name, self.lab.ports[node.name], self.lab.host_keys[node.name], self.directory / OPERATOR_KEY
        )

    def run(self, node: str, command: str, timeout_s: float = 60.0) -> remote.Completed:
        """Run a shell command as root on a node."""
        return remote.run(self.endpoint(self.plan.node(node)), command, timeout_s)

    def start_switches(self) -> None:
        """Start one switch a network and wait until each listens."""
        directory = self.directory / "switch"
        directory.mkdir()
        logs = {network.name: directory / f"{network.name}.log" for network in self.plan.networks}
        for name, log in logs.items():
            command = [sys.executable, "-m", "lab.switch_daemon", str(directory), name, str(len(self.plan.nodes))]
            self._spawn(_switch_process(name), command, REPOSITORY, log)
        deadline = time.monotonic() + _SWITCH_S
        for name, log in logs.items():
            while not (self.directory / machine.switch_control(name)).exists():
                if time.monotonic() > deadline or not self.lab.processes[_switch_process(name)].alive():
                    raise LabError(f"the switch of {name} does not start: {log.read_text('utf-8', 'replace')[-500:]}")
                time.sleep(_POLL_S)

    def boot(self, nodes: t.Sequence[Node]) -> None:
        """Start the machines of nodes and wait until all of them let the operator in."""
        lab = self.lab
        how = "KVM" if lab.accelerator == "kvm" else "software emulation"
        with self._progress.step(f"booting {', '.join(node.name for node in nodes)} under {how}"):
            begun = time.monotonic()
            for node in nodes:
                files = machine.MachineFiles(node.name)
                (self.directory / files.console).unlink(missing_ok=True)
                command = machine.command(
                    node,
                    images.cached(cache_directory(), lab.images[node.release]),
                    machine.Hardware(lab.settings.memory, lab.settings.cpus, lab.accelerator),
                    lab.ports[node.name],
                )
                self._spawn(node.name, command, self.directory, self.directory / files.log)
            remote.wait_for_all(
                [self.endpoint(node) for node in nodes],
                self._has_booted,
                _BOOT_S + _BOOT_S_A_NODE * len(nodes),
                lambda name: self._progress.say(f"{name} answers after {time.monotonic() - begun:.1f} s"),
            )

    def set_power(self, node: str, running: bool) -> None:
        """Switch a node on, until SSH answers, or off as if its cable were pulled. It keeps its disk."""
        planned = self.plan.node(node)
        present = self.lab.processes.get(node)
        if running and not (present and present.alive()):
            self.boot([planned])
        elif not running and present:
            # Asked to end, QEMU writes out what its disk image needs; the guest notices as little as it does of a power cut.
            process.end([present])
            del self.lab.processes[node]
            self.record()

    def condition(self, node: Node) -> str:
        """`running`, `paused` or another of QEMU's words; `off` without a machine, `silent` when QEMU does not answer."""
        present = self.lab.processes.get(node.name)
        if not (present and present.alive()):
            return "off"
        try:
            return str(qmp.execute(self.directory / machine.MachineFiles(node.name).monitor, "query-status")["status"])
        except LabError:
            return "silent"

    def resident_mib(self, node: Node) -> int:
        """Memory of this machine that the node takes, in MiB."""
        present = self.lab.processes.get(node.name)
        return process.resident_mib(present) if present else 0

    def end(self) -> None:
        """End the lab's processes, recorded or left between start and record, and remove its files."""
        process.end({*self.lab.processes.values(), *process.marked(self.lab.lab_id)})
        inventory.remove(inventory_directory(self.directory))
        for node in self.plan.nodes:
            shutil.rmtree(self.directory / node.name, ignore_errors=True)
        shutil.rmtree(self.directory / "switch", ignore_errors=True)
        for name in (OPERATOR_KEY, f"{OPERATOR_KEY}.pub", KNOWN_HOSTS):
            (self.directory / name).unlink(missing_ok=True)
        state.remove(self.directory)

    def _spawn(self, name: str, command: t.Sequence[str], directory: pathlib.Path, log: pathlib.Path) -> None:
        self.lab.processes[name] = process.spawn(command, directory, log, self.lab.lab_id)
        self.record()

    def _has_booted(self, name: str) -> bool:
        if not self.lab.processes[name].alive():
            raise LabError(f"QEMU has ended for {name}: {machine.console_tail(self.directory, name)}")
        return machine.console_says(self.directory, name)


def _switch_process(network: str) -> str:
    return f"switch {network}"
