# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab as its users see it: up, down, status, ssh, power, faults. Each call finds the lab by its run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import secrets
import types
import typing as t

from lab import accelerator, faults, inventory, keys, machine, node_files, state, tools, variants
from lab import image as images
from lab.errors import LabError
from lab.fault_actions import ActiveFault
from lab.fault_engine import FaultEngine
from lab.paths import DEFAULT_RUN_DIRECTORY, cache_directory, inventory_directory
from lab.plan import Plan
from lab.ports import LOOPBACK, free_ports
from lab.progress import Progress
from lab.remote import Completed
from lab.running import KNOWN_HOSTS, OPERATOR_KEY, RunningLab, plan_of
from lab.state import Settings, State


@dataclasses.dataclass(frozen=True)
class NodeStatus:
    """How a node is: `running`, `paused`, `off`, or what QEMU calls it. memory is resident MiB on this machine."""

    name: str
    release: str
    condition: str
    port: int
    memory: int
    control_address: str


class Cluster:
    """The lab whose files are in one run directory.

    As a context manager it takes the lab down at the end of the block, whatever happens in it.
    """

    def __init__(self, directory: pathlib.Path | None = None, progress: Progress | None = None) -> None:
        self.directory = (directory or DEFAULT_RUN_DIRECTORY).resolve()
        self._progress = progress or Progress()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.down()

    @property
    def inventory(self) -> pathlib.Path:
        """Where the lab's hosts.yml is written."""
        return inventory_directory(self.directory) / "hosts.yml"

    def up(self, settings: Settings = state.DEFAULTS, mirror: str | None = None) -> pathlib.Path:
        """Bring the lab up and return the inventory's path. A lab that is up as wanted is left as it is.

        Raises LabError when another lab is up here or a step fails; whatever ends it early, nothing of it is left.
        """
        plan = plan_of(settings)
        tools.require(tools.RUN_TOOLS)
        with state.locked(self.directory):
            try:
                if self._is_up_as(settings):
                    self._progress.say("the lab is up already")
                else:
                    self._start(settings, plan, mirror)
            except BaseException:
                self._remove_directory()
                raise
            return self.inventory

    def down(self) -> None:
        """End the lab and remove its files. Without a lab there is nothing to do."""
        if not self.directory.is_dir():
            return
        with state.locked(self.directory):
            lab = state.load(self.directory)
            if lab is not None:
                with self._progress.step("taking the lab down"):
                    RunningLab(self.directory, lab, self._progress).end()
            self._remove_directory()

    def status(self) -> list[NodeStatus]:
        """How every node is. Raises LabError when there is no lab."""
        running = self._recorded()
        return [
            NodeStatus(
                node.name,
                node.release,
                running.condition(node),
                running.lab.ports[node.name],
                running.resident_mib(node),
                str(node.control.address),
            )
            for node in running.plan.nodes
        ]

    def run(self, node: str, command: str, timeout_s: float = 60.0) -> Completed:
        """Run a shell command as root on a node."""
        return self._recorded().run(node, command, timeout_s)

    def ssh_command(self, node: str, command: t.Sequence[str] = ()) -> list[str]:
        """The argument list of an ssh that reaches the node with its key pinned."""
        running = self._recorded()
        endpoint = running.endpoint(running.plan.node(node))
        return [
            *("ssh", "-i", str(endpoint.identity), "-p", str(endpoint.port)),
            *inventory.ssh_options(self.directory / KNOWN_HOSTS),
            f"{endpoint.user}@{LOOPBACK}",
            *command,
        ]

    def power(self, node: str, running: bool) -> None:
        """Switch a node on, until SSH answers, or off as if its cable were pulled. It keeps its disk."""
        with self._held() as held:
            held.set_power(node, running)

    def inject(self, kind: str, node: str, parameters: faults.Parameters = faults.DEFAULTS) -> ActiveFault:
        """Inject a fault of one of faults.KINDS and return its record."""
        with self._held() as held:
            design = faults.design(held.plan, kind, node, parameters)
            self._engine(held).inject(design)
            return design.fault

    def clear(self, node: str | None = None) -> list[ActiveFault]:
        """Take back the faults of one node, or all of them, whoever injected them. Returns what was taken back."""
        with self._held() as held:
            if node is not None:
                held.plan.node(node)
            return self._engine(held).clear(node)

    def faults(self) -> list[ActiveFault]:
        """The active faults, in the order in which they were injected."""
        return self._recorded().lab.faults

    def _engine(self, held: RunningLab) -> FaultEngine:
        return FaultEngine(self.directory, held, held.lab.faults, held.record)

    def _recorded(self) -> RunningLab:
        lab = state.load(self.directory)
        if lab is None:
            raise LabError(f"no lab is up in {self.directory}: `python -m lab up` starts one")
        return RunningLab(self.directory, lab, self._progress)

    @contextlib.contextmanager
    def _held(self) -> t.Iterator[RunningLab]:
        """The lab, with the right to change it."""
        self._recorded()
        with state.locked(self.directory):
            yield self._recorded()

    def _is_up_as(self, settings: Settings) -> bool:
        """Whether the wanted lab is up. What a killed `up` or a restart of this machine has left is removed."""
        lab = state.load(self.directory)
        if lab is None:
            if any(self.directory.iterdir()):
                raise LabError(f"{self.directory} is not empty and holds no lab: give another directory with --dir")
            return False
        alive = {name for name, one in lab.processes.items() if one.alive()}
        if lab.phase == "up" and alive:
            if lab.settings != settings:
                raise LabError(f"another lab is up in {self.directory}: end it first with `python -m lab down`")
            off = [node.name for node in plan_of(settings).nodes if node.name not in alive]
            if off or lab.faults or len(alive) < len(lab.processes):
                raise LabError(
                    f"the lab in {self.directory} is up, but not whole ({_ailments(off, lab)}): bring it back with "
                    "`fault clear` and `power NODE on`, or end it with `down`"
                )
            return True
        with self._progress.step("removing what a lab that did not end well has left"):
            RunningLab(self.directory, lab, self._progress).end()
        return False

    def _start(self, settings: Settings, plan: Plan, mirror: str | None) -> None:
        cache = cache_directory()
        built = {
            release: images.ensure(cache, release, settings.variant, mirror, self._progress)
            for release in dict.fromkeys(node.release for node in plan.nodes)
        }
        lab = State(
            lab_id=secrets.token_hex(8),
            settings=settings,
            accelerator=accelerator.choose(cache, next(iter(built.values())).kernel, self._progress),
            images={release: image.key for release, image in built.items()},
            ports=dict(zip((node.name for node in plan.nodes), free_ports(len(plan.nodes)), strict=True)),
        )
        running = RunningLab(self.directory, lab, self._progress)
        running.record()
        try:
            self._bring_up(running, built)
        except BaseException:
            running.end()
            raise

    def _bring_up(self, running: RunningLab, built: t.Mapping[str, images.Image]) -> None:
        lab, plan = running.lab, running.plan
        operator = keys.load_or_generate(self.directory / OPERATOR_KEY, "gpufabric-lab-operator")
        running.start_switches()
        variant = variants.find(lab.settings.variant)
        own_files = variant.own_files(plan)
        for node in plan.nodes:
            host_key = keys.generate(f"root@{node.name}")
            lab.host_keys[node.name] = host_key.algorithm_and_key
            identity = node_files.node_archive(plan, node, lab.lab_id, host_key, operator, own_files)
            machine.make_files(self.directory, node, built[node.release], identity)
        running.boot(plan.nodes)
        inventory.write(
            self.inventory.parent,
            plan,
            {node.name: running.endpoint(node) for node in plan.nodes},
            self.directory / KNOWN_HOSTS,
            inventory.Group(f"lab_{lab.settings.variant}", variant.group_variables(plan)),
        )
        lab.phase = "up"
        running.record()

    def _remove_directory(self) -> None:
        """Remove the run directory unless something is in it."""
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def _ailments(off: t.Sequence[str], lab: State) -> str:
    words = [f"{name} is off" for name in off]
    words += [f"{fault.kind} on {fault.where}" for fault in lab.faults]
    return ", ".join(words) or "a switch has ended"
