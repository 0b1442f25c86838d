# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's virtual machine: its files in the run directory, QEMU's command line, and what its console says."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess

from lab import tools
from lab.errors import LabError
from lab.image import Image
from lab.plan import Link, Node
from lab.ports import LOOPBACK

READY = "LAB-NODE-READY"
_FAILURES = ("LAB-BOOT-FAILED", "Kernel panic")
_CONSOLE_TAIL_LINES = 8
# Translated code of one node; QEMU's own default grows to a gigabyte.
_TRANSLATION_CACHE_MIB = 128
# tsc=unstable: on a busy computer the kernel measures an emulated TSC wrong, and the node's clock then runs several times
# too fast, with every time-out and every bandwidth on it. The HPET (or KVM's own clock) is slower to read, and right.
_KERNEL_ARGUMENTS = (
    "console=ttyS0 net.ifnames=0 quiet loglevel=4 panic=5 mitigations=off audit=0 apparmor=0 "
    "tsc=unstable no_timer_check random.trust_cpu=on"
)


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a virtual machine is given. memory in MiB; accelerator is `kvm` or `tcg` (software emulation)."""

    memory: int
    cpus: int
    accelerator: str


@dataclasses.dataclass(frozen=True)
class MachineFiles:
    """Where a node's files lie, relative to the run directory: QEMU works there, so socket paths stay short."""

    node: str

    @property
    def directory(self) -> pathlib.PurePath:
        return pathlib.PurePath(self.node)

    @property
    def disk(self) -> pathlib.PurePath:
        return self.directory / "disk.qcow2"

    @property
    def identity(self) -> pathlib.PurePath:
        return self.directory / "identity.tar"

    @property
    def console(self) -> pathlib.PurePath:
        return self.directory / "console.log"

    @property
    def monitor(self) -> pathlib.PurePath:
        return self.directory / "monitor"

    @property
    def log(self) -> pathlib.PurePath:
        return self.directory / "qemu.log"


def switch_socket(link: Link, node: Node) -> pathlib.PurePath:
    """Where the switch of link's network listens for node."""
    return pathlib.PurePath("switch") / f"{link.network.name}-{node.number}"


def switch_control(network: str) -> pathlib.PurePath:
    """Where the switch of a network takes commands."""
    return pathlib.PurePath("switch") / f"{network}.control"


def nic_id(link: Link) -> str:
    """The NIC's name in QEMU's monitor."""
    return f"nic-{link.interface}"


def command(node: Node, image: Image, hardware: Hardware, ssh_port: int) -> list[str]:
    """QEMU's argument list for node, to be run in the run directory."""
    files = MachineFiles(node.name)
    accelerator = hardware.accelerator
    if accelerator == "tcg":
        accelerator += f",thread=multi,tb-size={_TRANSLATION_CACHE_MIB}"
    arguments = [
        *("qemu-system-x86_64", "-name", node.name, "-accel", accelerator, "-machine", "pc"),
        *("-cpu", "host" if hardware.accelerator == "kvm" else "max"),
        *("-smp", str(hardware.cpus), "-m", str(hardware.memory)),
        *("-display", "none", "-nodefaults", "-no-user-config", "-device", "virtio-rng-pci"),
        *("-serial", f"file:{files.console}", "-qmp", f"unix:{files.monitor},server=on,wait=off"),
        *("-kernel", str(image.kernel), "-initrd", str(image.ramdisk), "-append", _KERNEL_ARGUMENTS),
        *("-drive", f"file={files.disk},if=none,id=root,format=qcow2,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-drive", f"file={files.identity},if=none,id=identity,format=raw,readonly=on"),
        *("-device", "virtio-blk-pci,drive=identity"),
        *(
            "-netdev",
            f"user,id=net-{node.management.interface},ipv6=off,restrict=on,hostfwd=tcp:{LOOPBACK}:{ssh_port}-:22",
        ),
        *("-device", _nic(node.management)),
    ]
    for link in node.switched_links:
        path = switch_socket(link, node)
        arguments += [
            *("-netdev", f"stream,id=net-{link.interface},server=off,addr.type=unix,addr.path={path}"),
            *("-device", _nic(link)),
        ]
    return arguments


def _nic(link: Link) -> str:
    # Without a speed Soft-RoCE takes the link for 2.5 Gb/s.
    return (
        f"virtio-net-pci,netdev=net-{link.interface},id={nic_id(link)},mac={link.mac},"
        f"speed={link.network.speed_mbps},duplex=full,romfile="
    )


def make_files(run_directory: pathlib.Path, node: Node, image: Image, identity: bytes) -> None:
    """Make the node's directory: a disk that holds only what differs from the image, and the node's own files."""
    files = MachineFiles(node.name)
    (run_directory / files.directory).mkdir()
    (run_directory / files.identity).touch(0o600)
    (run_directory / files.identity).write_bytes(identity)
    done = subprocess.run(
        [
            "qemu-img",
            "create",
            "-q",
            "-f",
            "qcow2",
            "-F",
            "raw",
            "-b",
            str(image.root),
            str(run_directory / files.disk),
        ],
        env={"PATH": tools.search_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"the disk of {node.name} cannot be made: {done.stderr.strip()}")


def console_says(run_directory: pathlib.Path, node: str) -> bool:
    """Whether the console has said that the node is up. Raises LabError with its last lines when it says that it failed."""
    try:
        text = (run_directory / MachineFiles(node).console).read_text("utf-8", "replace")
    except FileNotFoundError:
        return False
    if READY in text:
        return True
    if any(failure in text for failure in _FAILURES):
        raise LabError(f"{node} does not boot; its console says last:\n  {console_tail(run_directory, node)}")
    return False


def console_tail(run_directory: pathlib.Path, node: str) -> str:
    """The last lines of the console and of QEMU itself."""
    lines: list[str] = []
    for path in (MachineFiles(node).log, MachineFiles(node).console):
        try:
            lines += (run_directory / path).read_text("utf-8", "replace").splitlines()[-_CONSOLE_TAIL_LINES:]
        except FileNotFoundError:
            continue
    return "\n  ".join(line.strip() for line in lines) or "nothing"
