# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults that the lab can inject: which steps each is made of, and which take it back. Pure; nothing is carried out.

Each shows as its kind does in the field, as far as virtual NICs can show it: docs/lab.md tells what is seen.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing as t

from lab import ibsim
from lab.errors import LabError
from lab.fault_actions import Action, ActiveFault, OnMonitor, OnNode, OnPower, OnSwitch
from lab.machine import nic_id
from lab.plan import Link, Node, Plan
from lab.switch import Rule

ROCE_PORT = 4791
_FOREIGN_DROP_IN = "/etc/sysctl.d/99-zz-foreign.conf"
_HIDDEN = ".hidden-by-lab"


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What a fault may be told. Each kind reads its own; control takes the control network in the place of a rail."""

    rail: int = 0
    control: bool = False
    peer: str | None = None
    mtu: int = 1500
    loss_percent: float = 5.0
    rate_mbit: float = 10.0
    delay_ms: float = 20.0
    at: str = "switch"
    setting: str = "net.core.rmem_max=212992"
    module: str = "tcp_bbr"


DEFAULTS = Parameters()


@dataclasses.dataclass(frozen=True)
class Design:
    """A fault before it is injected: the steps that make it, and its record with the steps that take it back."""

    apply: tuple[Action, ...]
    fault: ActiveFault


@dataclasses.dataclass(frozen=True)
class _Target:
    plan: Plan
    node: Node
    link: Link
    kind: str
    parameters: Parameters

    @property
    def name(self) -> str:
        """Name of the fault's switch rule or nftables table: one per kind, node and link."""
        return f"{self.kind} {self.node.name} {self.link.interface}"

    @property
    def peer_number(self) -> int | None:
        peer = self.parameters.peer
        return None if peer is None else self.plan.node(peer).number


class _Steps(t.NamedTuple):
    apply: list[Action]
    undo: list[Action]
    detail: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault: what it does in a few words, whether it hits one link, how it is made, and where it can be.

    simulated: it is one of the simulated fabric, which only the variant ibsim has.
    """

    summary: str
    on_link: bool
    steps: t.Callable[[_Target], _Steps]
    simulated: bool = False


def _link_down(target: _Target) -> _Steps:
    name = target.link.interface
    return _Steps([OnNode(f"ip link set {name} down")], [OnNode(f"ip link set {name} up")], f"{name} down")


def _carrier_down(target: _Target) -> _Steps:
    def set_link(up: bool) -> Action:
        return OnMonitor("set_link", {"name": nic_id(target.link), "up": up})

    return _Steps([set_link(False)], [set_link(True)], f"no carrier on {target.link.interface}")


def _mtu_mismatch(target: _Target) -> _Steps:
    def set_mtu(mtu: int) -> Action:
        return OnNode(f"ip link set {target.link.interface} mtu {mtu}")

    planned, wrong = target.link.network.mtu, target.parameters.mtu
    return _Steps([set_mtu(wrong)], [set_mtu(planned)], f"{target.link.interface} at {wrong} in place of {planned}")


def _hca_removed(target: _Target) -> _Steps:
    device = target.link.rdma_device
    if device is None:
        raise LabError(f"{target.node.name} has no HCA on {target.link.network.name}")
    restore = (
        f"rdma link show {device}/1 >/dev/null 2>&1 || rdma link add {device} type rxe netdev {target.link.interface}"
    )
    return _Steps([OnNode(f"rdma link delete {device}")], [OnNode(restore)], f"{device} is gone")


def _gid_lost(target: _Target) -> _Steps:
    name = target.link.interface
    return _Steps(
        [OnNode(f"ip -4 address flush dev {name}")],
        [OnNode(f"ip address replace {target.link.cidr} dev {name}")],
        f"{name} without its address",
    )


def _rails_swapped(target: _Target) -> _Steps:
    """The rail and the one after it (the first after the last) carry each other's addresses."""
    rails = target.node.rails
    if len(rails) < 2 or target.link not in rails:
        raise LabError(f"{target.kind} needs two rails: {target.node.name} has {len(rails)}")
    one, other = target.link, rails[(rails.index(target.link) + 1) % len(rails)]

    def addresses(first: Link, second: Link) -> Action:
        commands = [f"ip -4 address flush dev {link.interface}" for link in (one, other)]
        commands += [
            f"ip address add {first.cidr} dev {one.interface}",
            f"ip address add {second.cidr} dev {other.interface}",
        ]
        return OnNode(" && ".join(commands))

    return _Steps([addresses(other, one)], [addresses(one, other)], f"{one.interface} and {other.interface} swapped")


def _switch_rule(target: _Target, detail: str, **effect: t.Any) -> _Steps:
    rule = Rule(target.name, target.node.number, peer=target.peer_number, **effect)
    network = target.link.network.name
    towards = "" if target.parameters.peer is None else f" towards {target.parameters.peer}"
    return _Steps([OnSwitch(network, rule)], [OnSwitch(network, rule, present=False)], f"{network}: {detail}{towards}")


def _firewall(target: _Target, match: str, detail: str) -> _Steps:
    table = f"inet lab_{target.kind.replace('-', '_')}_{target.link.interface}"
    chain = "{ type filter hook input priority 0; }"
    apply = f"nft {shlex.quote(f'add table {table}; add chain {table} in {chain}; add rule {table} in {match} drop')}"
    undo = f"nft list table {table} >/dev/null 2>&1 || exit 0; nft delete table {table}"
    return _Steps([OnNode(apply)], [OnNode(undo)], detail)


def _roce_blocked(target: _Target) -> _Steps:
    where = target.parameters.at
    if where == "switch":
        return _switch_rule(target, f"UDP port {ROCE_PORT} blocked", drop=True, udp_port=ROCE_PORT)
    name = target.link.interface
    return _firewall(target, f'iifname "{name}" udp dport {ROCE_PORT}', f"UDP port {ROCE_PORT} blocked on {name}")


def _tcp_blocked(target: _Target) -> _Steps:
    # New connections only: what port 22 answers to goes to high ports too. The controller's way in (eth0) stays open.
    match = (
        f'iifname != {{ "lo", "{target.node.management.interface}" }} tcp dport 1024-65535 tcp flags & (syn|ack) == syn'
    )
    return _firewall(target, match, "new TCP connections to ports from 1024 blocked")


def _later_drop_in(target: _Target) -> _Steps:
    key, equals, value = target.parameters.setting.partition("=")
    if not equals or not key.strip():
        raise LabError(f"--setting is '{target.parameters.setting}', expected KEY=VALUE")
    line = shlex.quote(f"{key.strip()} = {value.strip()}")
    return _Steps(
        [OnNode(f"printf '%s\\n' {line} > {_FOREIGN_DROP_IN}")],
        [OnNode(f"rm -f {_FOREIGN_DROP_IN}")],
        f"{_FOREIGN_DROP_IN} sets {target.parameters.setting}",
    )


def _module_hidden(target: _Target) -> _Steps:
    module = target.parameters.module
    if not module.replace("_", "").isalnum():
        raise LabError(f"--module is '{module}', expected the name of a kernel module")
    tree = '"/lib/modules/$(uname -r)"'
    hide = (
        f'file=$(find {tree} -name "{module}.ko*" ! -name "*{_HIDDEN}" | grep .) || exit 1; '
        f'modprobe -r {module}; mv "$file" "$file{_HIDDEN}"; depmod'
    )
    show = f'find {tree} -name "{module}.ko*{_HIDDEN}" | while read -r file; do mv "$file" "${{file%{_HIDDEN}}}"; done; depmod'
    return _Steps([OnNode(hide)], [OnNode(show)], f"kernel module {module} cannot be loaded")


def _fabric_steps(target: _Target, apply: t.Sequence[str], undo: t.Sequence[str], detail: str) -> _Steps:
    """Commands on n1, where the simulated fabric runs; then every node shows its HCA anew."""
    show = OnNode("lab-fabric-sysfs", tuple(node.name for node in target.plan.nodes))
    first = (target.plan.nodes[0].name,)
    return _Steps(
        [*(OnNode(command, first) for command in apply), show],
        [*(OnNode(command, first) for command in undo), show],
        detail,
    )


def _console(*lines: str) -> str:
    return f"lab-fabric-console {' '.join(shlex.quote(line) for line in lines)}"


def _unlink(node: Node) -> str:
    return f'Unlink "{node.name}"[1]'


def _link_to(node: Node, cable: ibsim.Cable) -> str:
    return f'Link "{node.name}"[1] "{cable.switch}"[{cable.port}]'


def _fabric_link_down(target: _Target) -> _Steps:
    node = target.node
    cable = ibsim.cable(node)
    return _fabric_steps(
        target,
        [_console(_unlink(node))],
        [_console(_link_to(node, cable))],
        f"ibsim0 is not plugged into {cable.switch} port {cable.port}",
    )


def _wrong_cable(target: _Target) -> _Steps:
    node = target.node
    right = ibsim.cable(node)
    wrong = right._replace(port=ibsim.SPARE_PORT)
    return _fabric_steps(
        target,
        [_console(_unlink(node), _link_to(node, wrong))],
        [_console(_unlink(node), _link_to(node, right))],
        f"ibsim0 in {wrong.switch} port {wrong.port} in place of port {right.port}",
    )


def _sm_stopped(target: _Target) -> _Steps:
    node = target.node
    replug = _console(_unlink(node), _link_to(node, ibsim.cable(node)))
    return _fabric_steps(
        target,
        ["systemctl stop lab-sm", replug],
        ["systemctl start lab-sm; sleep 6"],
        "no subnet manager; ibsim0 was plugged in since",
    )


def _python_missing(target: _Target) -> _Steps:
    path = "/usr/bin/python3"
    return _Steps(
        [OnNode(f"mv {path} {path}{_HIDDEN}")],
        [OnNode(f"[ ! -e {path}{_HIDDEN} ] || mv {path}{_HIDDEN} {path}")],
        f"{path} is gone",
    )


KINDS: dict[str, Kind] = {
    "link-down": Kind("the interface is set down on the node", True, _link_down),
    "carrier-down": Kind("the cable is pulled out of the node's NIC", True, _carrier_down),
    "switch-port-down": Kind(
        "the switch passes nothing on this port; both ends stay up",
        True,
        lambda target: _switch_rule(target, "port passes nothing", drop=True),
    ),
    "mtu-mismatch": Kind("the interface has another MTU (--mtu)", True, _mtu_mismatch),
    "mtu-black-hole": Kind(
        "the switch loses packets longer than --mtu",
        True,
        lambda target: _switch_rule(
            target, f"packets over {target.parameters.mtu} bytes are lost", mtu=target.parameters.mtu
        ),
    ),
    "hca-removed": Kind("the RDMA device is gone, its interface stays", True, _hca_removed),
    "gid-lost": Kind("the interface loses its IPv4 address, the HCA its GID", True, _gid_lost),
    "rails-swapped": Kind("the rail and the next one carry each other's addresses", True, _rails_swapped),
    "roce-blocked": Kind("UDP port 4791 is blocked, at the switch or on the node (--at)", True, _roce_blocked),
    "tcp-blocked": Kind("the node takes no new TCP connections to ports from 1024", False, _tcp_blocked),
    "rate-limit": Kind(
        "the port carries --rate Mbit/s in each direction",
        True,
        lambda target: _switch_rule(
            target, f"{target.parameters.rate_mbit:g} Mbit/s", rate_mbit=target.parameters.rate_mbit
        ),
    ),
    "loss": Kind(
        "the port loses --loss percent of the frames",
        True,
        lambda target: _switch_rule(
            target, f"{target.parameters.loss_percent:g} % lost", loss=target.parameters.loss_percent / 100
        ),
    ),
    "delay": Kind(
        "the port holds every frame for --delay ms",
        True,
        lambda target: _switch_rule(
            target, f"{target.parameters.delay_ms:g} ms later", delay_ms=target.parameters.delay_ms
        ),
    ),
    "later-drop-in": Kind("a foreign file sets a kernel parameter at the next boot (--setting)", False, _later_drop_in),
    "module-hidden": Kind("a kernel module cannot be loaded (--module)", False, _module_hidden),
    "python-missing": Kind("the node has no /usr/bin/python3", False, _python_missing),
    "fabric-link-down": Kind(
        "the simulated HCA is not plugged in (variant ibsim)", False, _fabric_link_down, simulated=True
    ),
    "wrong-cable": Kind(
        "the simulated HCA is in another port of its leaf (variant ibsim)", False, _wrong_cable, simulated=True
    ),
    "sm-stopped": Kind(
        "no subnet manager brings the HCA's port up (variant ibsim)", False, _sm_stopped, simulated=True
    ),
    "node-stopped": Kind(
        "the node hangs: its connections stay open and say nothing",
        False,
        lambda target: _Steps([OnMonitor("stop")], [OnMonitor("cont")], "the machine is stopped"),
    ),
    "power-off": Kind(
        "the node's power is cut",
        False,
        lambda target: _Steps([OnPower(False)], [OnPower(True)], "the machine is off"),
    ),
}


def design(plan: Plan, kind: str, node_name: str, parameters: Parameters) -> Design:
    """The steps of a fault of that kind on that node. Raises LabError on a kind, node, rail or value that cannot be."""
    if kind not in KINDS:
        raise LabError(f"there is no fault '{kind}': expected one of {', '.join(KINDS)}")
    if KINDS[kind].simulated and plan.soft_roce:
        raise LabError(f"{kind} needs the simulated fabric: `python -m lab up --variant ibsim`")
    _check(parameters)
    node = plan.node(node_name)
    target = _Target(plan, node, _link(node, parameters), kind, parameters)
    steps = KINDS[kind].steps(target)
    rail = parameters.rail if KINDS[kind].on_link and not parameters.control else None
    return Design(tuple(steps.apply), ActiveFault(kind, node.name, rail, steps.detail, tuple(steps.undo)))


def _link(node: Node, parameters: Parameters) -> Link:
    if parameters.control or not node.rails:
        return node.control
    if not 0 <= parameters.rail < len(node.rails):
        raise LabError(
            f"--rail is {parameters.rail}, expected 0 to {len(node.rails) - 1}: {node.name} has no other rail"
        )
    return node.rails[parameters.rail]


def _check(parameters: Parameters) -> None:
    if not 0 < parameters.loss_percent <= 100:
        raise LabError(f"--loss is {parameters.loss_percent:g}, expected a percentage above 0 and up to 100")
    if parameters.rate_mbit <= 0:
        raise LabError(f"--rate is {parameters.rate_mbit:g}, expected Mbit/s above 0")
    if parameters.delay_ms <= 0:
        raise LabError(f"--delay is {parameters.delay_ms:g}, expected ms above 0")
    if not 68 <= parameters.mtu <= 65535:
        raise LabError(f"--mtu is {parameters.mtu}, expected 68 to 65535 bytes")
