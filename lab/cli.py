# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command: up, down, status, ssh, power, fault, image."""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import types
import typing as t

from lab import faults
from lab import image as images
from lab.cluster import Cluster
from lab.errors import LabError
from lab.fault_actions import ActiveFault
from lab.image_build import COMMON
from lab.paths import DEFAULT_RUN_DIRECTORY, cache_directory
from lab.plan import RELEASES
from lab.progress import Progress
from lab.state import Settings
from lab.variants import VARIANTS

_DIRECTORY_VARIABLE = "GPUFABRIC_LAB_DIR"


class Interrupted(BaseException):
    """A signal asks the command to end; what it has started is taken back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: t.Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 1 after an error said in one sentence, or 128 plus the signal that ended it."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        status: int = options.run(options)
        return status
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except Interrupted as interruption:
        print(
            f"lab: ended by {signal.Signals(interruption.number).name}; what was started is taken back", file=sys.stderr
        )
        return 128 + interruption.number


def _interrupt(number: int, frame: types.FrameType | None) -> t.NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # a second one must not cut the cleaning up short
    raise Interrupted(number)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get(_DIRECTORY_VARIABLE) or DEFAULT_RUN_DIRECTORY),
        help=f"run directory of the lab (default: .lab in the repository, or ${_DIRECTORY_VARIABLE})",
    )
    common.add_argument("--quiet", action="store_true", help="say nothing but errors")
    image = argparse.ArgumentParser(add_help=False)
    image.add_argument(
        "--release",
        type=lambda text: tuple(text.split(",")),
        default=RELEASES[:1],
        help=f"Debian release of the nodes, or several in turn: {', '.join(RELEASES)} (default: %(default)s)".replace(
            "%(default)s", RELEASES[0]
        ),
    )
    image.add_argument("--variant", choices=tuple(VARIANTS), default=COMMON, help="what the nodes also hold")
    image.add_argument("--mirror", help="Debian mirror to build the image from (default: mmdebstrap's own)")

    parser = argparse.ArgumentParser(prog="python -m lab", description="An embedded cluster of virtual machines.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    defaults = Settings()

    up = commands.add_parser("up", parents=[common, image], help="bring a lab up and write its inventory")
    up.add_argument("--nodes", type=int, default=defaults.nodes, help="number of nodes (default: %(default)s)")
    up.add_argument("--hcas", type=int, default=defaults.hcas, help="RDMA devices a node (default: %(default)s)")
    up.add_argument("--memory", type=int, default=defaults.memory, help="MiB a node (default: %(default)s)")
    up.add_argument("--cpus", type=int, default=defaults.cpus, help="processors a node (default: %(default)s)")
    up.set_defaults(run=_up)

    commands.add_parser("down", parents=[common], help="end the lab").set_defaults(run=_down)
    commands.add_parser("status", parents=[common], help="how every node is").set_defaults(run=_status)

    ssh = commands.add_parser("ssh", parents=[common], help="a shell on a node, or one command")
    ssh.add_argument("node", metavar="NODE")
    ssh.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    ssh.set_defaults(run=_ssh)

    power = commands.add_parser("power", parents=[common], help="switch a node off or on")
    power.add_argument("node", metavar="NODE")
    power.add_argument("state", choices=("on", "off"))
    power.set_defaults(run=_power)

    _add_fault(commands, common)
    commands.add_parser("image", parents=[common, image], help="build the image only").set_defaults(run=_image)
    return parser


def _add_fault(commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    fault = commands.add_parser("fault", help="inject faults and take them back")
    actions = fault.add_subparsers(required=True, metavar="ACTION")
    told = faults.DEFAULTS

    inject = actions.add_parser(
        "inject",
        parents=[common],
        help="inject one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="kinds:\n" + "\n".join(f"  {name:17} {kind.summary}" for name, kind in faults.KINDS.items()),
    )
    inject.add_argument("kind", metavar="KIND")
    inject.add_argument("node", metavar="NODE")
    inject.add_argument("--rail", type=int, default=told.rail, help="which rail, from 0 (default: %(default)s)")
    inject.add_argument("--control", action="store_true", help="the control network in the place of a rail")
    inject.add_argument("--peer", metavar="NODE", help="only between the node and this one (faults of the switch)")
    inject.add_argument("--mtu", type=int, default=told.mtu, help="bytes (default: %(default)s)")
    inject.add_argument("--loss", type=float, default=told.loss_percent, help="percent (default: %(default)s)")
    inject.add_argument("--rate", type=float, default=told.rate_mbit, help="Mbit/s (default: %(default)s)")
    inject.add_argument("--delay", type=float, default=told.delay_ms, help="ms (default: %(default)s)")
    inject.add_argument("--at", choices=("switch", "node"), default=told.at, help="where roce-blocked blocks")
    inject.add_argument("--setting", default=told.setting, help="what later-drop-in sets (default: %(default)s)")
    inject.add_argument("--module", default=told.module, help="what module-hidden hides (default: %(default)s)")
    inject.set_defaults(run=_inject)

    clear = actions.add_parser("clear", parents=[common], help="take back a node's faults, or all")
    clear.add_argument("node", metavar="NODE", nargs="?")
    clear.set_defaults(run=_clear)

    actions.add_parser("list", parents=[common], help="the active faults").set_defaults(run=_list)


def _cluster(options: argparse.Namespace) -> Cluster:
    return Cluster(options.dir, _progress(options))


def _progress(options: argparse.Namespace) -> Progress:
    return Progress(quiet=options.quiet)


def _up(options: argparse.Namespace) -> int:
    settings = Settings(
        options.nodes, options.hcas, tuple(options.release), options.variant, options.memory, options.cpus
    )
    print(_cluster(options).up(settings, options.mirror))
    return 0


def _down(options: argparse.Namespace) -> int:
    _cluster(options).down()
    return 0


def _status(options: argparse.Namespace) -> int:
    nodes = (cluster := _cluster(options)).status()
    print(f"{'NODE':6} {'RELEASE':9} {'STATE':9} {'SSH':6} {'MiB':>5}  CONTROL ADDRESS")
    for one in nodes:
        print(f"{one.name:6} {one.release:9} {one.condition:9} {one.port:<6} {one.memory:5}  {one.control_address}")
    for fault in cluster.faults():
        _say_fault(fault, "fault: ")
    return 0


def _ssh(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    words = _cluster(options).ssh_command(options.node, command)
    os.execvp(words[0], words)


def _power(options: argparse.Namespace) -> int:
    _cluster(options).power(options.node, options.state == "on")
    return 0


def _inject(options: argparse.Namespace) -> int:
    parameters = faults.Parameters(
        rail=options.rail,
        control=options.control,
        peer=options.peer,
        mtu=options.mtu,
        loss_percent=options.loss,
        rate_mbit=options.rate,
        delay_ms=options.delay,
        at=options.at,
        setting=options.setting,
        module=options.module,
    )
    _say_fault(_cluster(options).inject(options.kind, options.node, parameters))
    return 0


def _clear(options: argparse.Namespace) -> int:
    for fault in _cluster(options).clear(options.node):
        _say_fault(fault, "taken back: ")
    return 0


def _list(options: argparse.Namespace) -> int:
    for fault in _cluster(options).faults():
        _say_fault(fault)
    return 0


def _say_fault(fault: ActiveFault, before: str = "") -> None:
    print(f"{before}{fault.kind} on {fault.where}: {fault.detail}")


def _image(options: argparse.Namespace) -> int:
    for release in dict.fromkeys(options.release):
        image = images.ensure(cache_directory(), release, options.variant, options.mirror, _progress(options))
        print(image.root.parent)
    return 0
