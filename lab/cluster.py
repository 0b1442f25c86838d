# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab from start to end: brings its switches and machines up, says how it is, and ends everything that it started."""

from __future__ import annotations

import dataclasses
import pathlib
import secrets
import shutil
import sys
import time
import types
import typing as t

from lab import accelerator, inventory, keys, machine, node_files, process, qmp, remote, state, tools
from lab import image as images
from lab.errors import LabError
from lab.paths import DEFAULT_RUN_DIRECTORY, REPOSITORY, cache_directory, inventory_directory
from lab.plan import Node, Plan, make_plan
from lab.ports import LOOPBACK, free_ports
from lab.progress import Progress
from lab.state import Settings, State

_SWITCH_S = 15.0
_POLL_S = 0.05
_BOOT_S = 120.0
_BOOT_S_A_NODE = 20.0
_OPERATOR_KEY = "id_ed25519"
_KNOWN_HOSTS = "known_hosts"


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

    # -- the whole lab ------------------------------------------------------------------------------------------------

    def up(self, settings: Settings = Settings(), mirror: str | None = None) -> pathlib.Path:
        """Bring the lab up and return the inventory's path. A lab that is up as wanted is left as it is.

        Raises LabError when another lab is up here or a step fails; whatever ends it early, nothing of it is left.
        """
        plan = make_plan(settings.nodes, settings.hcas, settings.releases)
        tools.require(tools.RUN_TOOLS)
        with state.locked(self.directory):
            if self._is_up_as(settings):
                self._progress.say("the lab is up already")
                return self._inventory_file()
            built = {
                release: images.ensure(cache_directory(), release, settings.variant, mirror, self._progress)
                for release in dict.fromkeys(node.release for node in plan.nodes)
            }
            lab = State(secrets.token_hex(8), settings, images={name: image.key for name, image in built.items()})
            state.save(self.directory, lab)
            try:
                self._start(lab, plan, built)
            except BaseException:
                self._end(lab)
                raise
            return self._inventory_file()

    def down(self) -> None:
        """End the lab and remove its files. Without a lab there is nothing to do."""
        if not self.directory.is_dir():
            return
        with state.locked(self.directory):
            lab = state.load(self.directory)
            if lab is not None:
                with self._progress.step("taking the lab down"):
                    self._end(lab)

    def status(self) -> list[NodeStatus]:
        """How every node is. Raises LabError when there is no lab."""
        lab, plan = self._recorded()
        return [
            NodeStatus(
                node.name,
                node.release,
                self._condition(lab, node),
                lab.ports[node.name],
                process.resident_mib(lab.processes[node.name]) if node.name in lab.processes else 0,
                str(node.control.address),
            )
            for node in plan.nodes
        ]

    # -- one node -----------------------------------------------------------------------------------------------------

    def run(self, node: str, command: str, timeout_s: float = 60.0) -> remote.Completed:
        """Run a shell command as root on a node."""
        lab, plan = self._recorded()
        return remote.run(self._endpoint(lab, plan.node(node)), command, timeout_s)

    def ssh_command(self, node: str, command: t.Sequence[str] = ()) -> list[str]:
        """The argument list of an ssh that reaches the node with its key pinned."""
        lab, plan = self._recorded()
        endpoint = self._endpoint(lab, plan.node(node))
        return [
            *("ssh", "-i", str(endpoint.identity), "-p", str(endpoint.port)),
            *inventory.ssh_options(self.directory / _KNOWN_HOSTS),
            f"{endpoint.user}@{LOOPBACK}",
            *command,
        ]

    def power(self, node: str, running: bool) -> None:
        """Switch a node on (and wait for it) or off (as if its cable were pulled). It keeps its disk."""
        with state.locked(self.directory):
            lab, plan = self._recorded()
            self.set_power(lab, plan, plan.node(node), running)

    def set_power(self, lab: State, plan: Plan, node: Node, running: bool) -> None:
        """power() for a caller that holds the lab."""
        process_now = lab.processes.get(node.name)
        alive = process_now is not None and process_now.alive()
        if running and not alive:
            with self._progress.step(f"switching {node.name} on"):
                self._boot(lab, node, images.cached(cache_directory(), lab.images[node.release]))
                self._wait(lab, [node], lambda _: None)
        elif not running and process_now is not None:
            process.end([process_now], grace_s=1.0)
            del lab.processes[node.name]
            state.save(self.directory, lab)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _recorded(self) -> tuple[State, Plan]:
        lab = state.load(self.directory)
        if lab is None:
            raise LabError(f"no lab is up in {self.directory}: `python -m lab up` starts one")
        return lab, make_plan(lab.settings.nodes, lab.settings.hcas, lab.settings.releases)

    def _inventory_file(self) -> pathlib.Path:
        return inventory_directory(self.directory) / "hosts.yml"

    def _is_up_as(self, settings: Settings) -> bool:
        """Whether the wanted lab is up. What an `up` that was killed, or a machine that was restarted, has left is removed."""
        lab = state.load(self.directory)
        if lab is None:
            if any(self.directory.iterdir()):
                raise LabError(f"{self.directory} is not empty and holds no lab: give another directory with --dir")
            return False
        alive = [name for name, one in lab.processes.items() if one.alive()]
        if lab.phase == "up" and alive:
            if lab.settings == settings and len(alive) == len(lab.processes) and not lab.faults:
                return True
            raise LabError(f"another lab is up in {self.directory}: end it first with `python -m lab down`")
        with self._progress.step("removing what a lab that did not end well has left"):
            self._end(lab)
        return False

    def _start(self, lab: State, plan: Plan, built: t.Mapping[str, images.Image]) -> None:
        lab.accelerator = accelerator.choose(cache_directory(), next(iter(built.values())).kernel, self._progress)
        lab.ports = dict(zip((node.name for node in plan.nodes), free_ports(len(plan.nodes)), strict=True))
        operator = keys.load_or_generate(self.directory / _OPERATOR_KEY, "gpufabric-lab-operator")
        self._start_switches(lab, plan)
        for node in plan.nodes:
            host_key = keys.generate(f"root@{node.name}")
            lab.host_keys[node.name] = host_key.algorithm_and_key
            identity = node_files.node_archive(plan, node, lab.lab_id, host_key, operator)
            machine.make_files(self.directory, node, built[node.release], identity)
        how = "KVM" if lab.accelerator == "kvm" else "software emulation"
        text = f"booting {len(plan.nodes)} node(s) under {how}"
        with self._progress.step(text):
            for node in plan.nodes:
                self._boot(lab, node, built[node.release])
            begun = time.monotonic()
            self._wait(
                lab,
                plan.nodes,
                lambda name: self._progress.say(f"{name} answers after {time.monotonic() - begun:.1f} s"),
            )
        inventory.write(
            inventory_directory(self.directory),
            plan,
            {node.name: self._endpoint(lab, node) for node in plan.nodes},
            self.directory / _KNOWN_HOSTS,
        )
        lab.phase = "up"
        state.save(self.directory, lab)

    def _start_switches(self, lab: State, plan: Plan) -> None:
        directory = self.directory / "switch"
        directory.mkdir()
        for network in plan.networks:
            command = [sys.executable, "-m", "lab.switch_daemon", str(directory), network.name, str(len(plan.nodes))]
            log = directory / f"{network.name}.log"
            self._spawn(lab, _switch_name(network.name), command, REPOSITORY, log)
        deadline = time.monotonic() + _SWITCH_S
        for network in plan.networks:
            while not (self.directory / machine.switch_control(network.name)).exists():
                if time.monotonic() > deadline or not lab.processes[_switch_name(network.name)].alive():
                    said = (directory / f"{network.name}.log").read_text("utf-8", "replace").strip()
                    raise LabError(f"the switch of {network.name} does not start: {said[-500:]}")
                time.sleep(_POLL_S)

    def _boot(self, lab: State, node: Node, image: images.Image) -> None:
        files = machine.MachineFiles(node.name)
        (self.directory / files.console).unlink(missing_ok=True)
        hardware = machine.Hardware(lab.settings.memory, lab.settings.cpus, lab.accelerator)
        command = machine.command(node, image, hardware, lab.ports[node.name])
        self._spawn(lab, node.name, command, self.directory, self.directory / files.log)

    def _spawn(
        self, lab: State, name: str, command: t.Sequence[str], directory: pathlib.Path, log: pathlib.Path
    ) -> None:
        lab.processes[name] = process.spawn(command, directory, log, lab.lab_id)
        state.save(self.directory, lab)

    def _wait(self, lab: State, nodes: t.Sequence[Node], arrived: t.Callable[[str], None]) -> None:
        def booted(name: str) -> bool:
            if not lab.processes[name].alive():
                raise LabError(f"QEMU has ended for {name}: {machine.console_tail(self.directory, name)}")
            return machine.console_says(self.directory, name)

        endpoints = [self._endpoint(lab, node) for node in nodes]
        remote.wait_for_all(endpoints, booted, _BOOT_S + _BOOT_S_A_NODE * len(nodes), arrived)

    def _endpoint(self, lab: State, node: Node) -> remote.Endpoint:
        return remote.Endpoint(
            node.name, lab.ports[node.name], lab.host_keys[node.name], self.directory / _OPERATOR_KEY
        )

    def _condition(self, lab: State, node: Node) -> str:
        recorded = lab.processes.get(node.name)
        if recorded is None or not recorded.alive():
            return "off"
        try:
            return str(qmp.execute(self.directory / machine.MachineFiles(node.name).monitor, "query-status")["status"])
        except LabError:
            return "silent"

    def _end(self, lab: State) -> None:
        """End the lab's processes, recorded or left between start and record, and remove its files."""
        process.end({*lab.processes.values(), *process.marked(lab.lab_id)})
        inventory.remove(inventory_directory(self.directory))
        for node in range(1, lab.settings.nodes + 1):
            shutil.rmtree(self.directory / f"n{node}", ignore_errors=True)
        shutil.rmtree(self.directory / "switch", ignore_errors=True)
        for name in (_OPERATOR_KEY, f"{_OPERATOR_KEY}.pub", _KNOWN_HOSTS):
            (self.directory / name).unlink(missing_ok=True)
        state.remove(self.directory)


def _switch_name(network: str) -> str:
    return f"switch {network}"
