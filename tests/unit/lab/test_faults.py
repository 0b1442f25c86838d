# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The design of faults, and the engine that carries them out on a lab that only records."""

from __future__ import annotations

import pathlib

import pytest

from lab import qmp, switch_client
from lab.errors import LabError
from lab.fault_actions import ActiveFault, OnNode, OnSwitch
from lab.fault_engine import FaultEngine
from lab.faults import KINDS, Parameters, design
from lab.plan import make_plan
from lab.remote import Completed
from lab.switch import Rule

PLAN = make_plan(3, 2)
SIMULATED = make_plan(3, 2, soft_roce=False)


class RecordingLab:
    """Stands in for nodes, switches and monitors: keeps what it is told, fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
        self.done: list[str] = []
        self.fails: set[str] = set()
        self.active: list[ActiveFault] = []
        self.recorded: list[list[str]] = []
        self.engine = FaultEngine(
            tmp_path, self, self.active, lambda: self.recorded.append([one.kind for one in self.active])
        )
        monkeypatch.setattr(
            switch_client, "add_rule", lambda control, rule: self.note(f"add {control.name} {rule.name}")
        )
        monkeypatch.setattr(
            switch_client, "remove_rule", lambda control, name: self.note(f"remove {control.name} {name}")
        )
        monkeypatch.setattr(
            qmp, "execute", lambda monitor, command, arguments: self.note(f"{command} {dict(arguments)}")
        )

    def note(self, what: str) -> None:
        if any(part in what for part in self.fails):
            raise LabError(f"refused: {what}")
        self.done.append(what)

    def run(self, node: str, command: str) -> Completed:
        if any(part in command for part in self.fails):
            return Completed(1, "", "does not want to")
        self.done.append(f"{node}: {command}")
        return Completed(0, "", "")

    def set_power(self, node: str, running: bool) -> None:
        self.note(f"{node} {'on' if running else 'off'}")


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> RecordingLab:
    return RecordingLab(monkeypatch, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_recorded_before_it_is_made_and_survives_its_record(kind: str, recording: RecordingLab) -> None:
    one = design(SIMULATED if KINDS[kind].simulated else PLAN, kind, "n2", Parameters(rail=1))
    assert ActiveFault.from_json(one.fault.to_json()) == one.fault
    recording.engine.inject(one)
    assert recording.recorded == [[kind]]
    assert recording.done
    assert recording.engine.clear() == [one.fault]
    assert recording.active == []


@pytest.mark.parametrize("kind", [kind for kind, one in KINDS.items() if one.on_link and kind != "rails-swapped"])
def test_a_fault_of_a_link_hits_the_rail_it_is_given(kind: str) -> None:
    touched = [repr(design(PLAN, kind, "n3", Parameters(rail=rail)).apply) for rail in (0, 1)]
    for rail, text in enumerate(touched):
        assert f"eth{rail + 1}" in text or f"mlx5_{rail}" in text
        assert f"eth{2 - rail}" not in text


def test_a_fault_of_a_switch_names_its_port_peer_and_network() -> None:
    one = design(PLAN, "loss", "n3", Parameters(rail=1, peer="n1", loss_percent=25))
    assert one.apply == (OnSwitch("rail1", Rule("loss n3 eth2", 3, peer=1, loss=0.25)),)
    assert one.fault.where == "n3 rail 1"
    control = design(PLAN, "delay", "n1", Parameters(control=True))
    assert control.apply == (OnSwitch("control", Rule("delay n1 ctl0", 1, delay_ms=20.0)),)
    assert control.fault.where == "n1"


def test_the_ways_in_stay_open_when_tcp_is_blocked() -> None:
    (action,) = design(PLAN, "tcp-blocked", "n1", Parameters()).apply
    assert isinstance(action, OnNode)
    assert 'iifname != { "lo", "eth0" }' in action.command
    assert "tcp dport 1024-65535" in action.command


@pytest.mark.parametrize(
    ("kind", "node", "parameters", "words"),
    [
        ("no-such", "n1", Parameters(), "there is no fault 'no-such': expected one of link-down"),
        ("wrong-cable", "n1", Parameters(), "wrong-cable needs the simulated fabric"),
        ("loss", "n7", Parameters(), "there is no node 'n7'"),
        ("loss", "n1", Parameters(peer="n8"), "there is no node 'n8'"),
        ("link-down", "n1", Parameters(rail=2), "--rail is 2, expected 0 to 1"),
        ("link-down", "n1", Parameters(rail=-1), "--rail is -1"),
        ("rails-swapped", "n1", Parameters(control=True), "rails-swapped needs two rails"),
        ("hca-removed", "n1", Parameters(control=True), "n1 has no HCA on control"),
        ("loss", "n1", Parameters(loss_percent=0), "--loss is 0"),
        ("loss", "n1", Parameters(loss_percent=101), "--loss is 101"),
        ("rate-limit", "n1", Parameters(rate_mbit=0), "--rate is 0"),
        ("delay", "n1", Parameters(delay_ms=-1), "--delay is -1"),
        ("mtu-mismatch", "n1", Parameters(mtu=20), "--mtu is 20"),
        ("later-drop-in", "n1", Parameters(setting="vm.swappiness"), "expected KEY=VALUE"),
        ("module-hidden", "n1", Parameters(module="x; reboot"), "expected the name of a kernel module"),
    ],
)
def test_what_cannot_be_injected_is_said(kind: str, node: str, parameters: Parameters, words: str) -> None:
    with pytest.raises(LabError, match=words):
        design(PLAN, kind, node, parameters)


def test_a_fault_of_the_fabric_is_made_on_the_first_node_and_shown_on_all() -> None:
    one = design(SIMULATED, "wrong-cable", "n3", Parameters())
    assert one.apply == (
        OnNode("""lab-fabric-console 'Unlink "n3"[1]' 'Link "n3"[1] "leaf0"[35]'""", ("n1",)),
        OnNode("lab-fabric-sysfs", ("n1", "n2", "n3")),
    )
    assert one.fault.undo[0] == OnNode("""lab-fabric-console 'Unlink "n3"[1]' 'Link "n3"[1] "leaf0"[2]'""", ("n1",))


def test_values_reach_the_nodes_shell_quoted() -> None:
    (action,) = design(PLAN, "later-drop-in", "n1", Parameters(setting="a.b=$(reboot) 'x'")).apply
    assert isinstance(action, OnNode)
    assert "'a.b = $(reboot) '\"'\"'x'\"'\"''" in action.command


def test_the_same_fault_twice_is_refused_and_another_rail_is_not(recording: RecordingLab) -> None:
    recording.engine.inject(design(PLAN, "link-down", "n1", Parameters(rail=0)))
    recording.engine.inject(design(PLAN, "link-down", "n1", Parameters(rail=1)))
    with pytest.raises(LabError, match="link-down on n1 rail 0 is active already"):
        recording.engine.inject(design(PLAN, "link-down", "n1", Parameters(rail=0)))
    assert len(recording.active) == 2


def test_a_fault_that_cannot_be_made_is_taken_back_at_once(recording: RecordingLab) -> None:
    recording.fails = {"link set eth1 down"}
    with pytest.raises(LabError, match="n1 ends `ip link set eth1 down` with status 1: does not want to"):
        recording.engine.inject(design(PLAN, "link-down", "n1", Parameters()))
    assert recording.done == ["n1: ip link set eth1 up"]
    assert recording.active == []


def test_a_node_runs_again_before_it_is_asked_to_do_something(recording: RecordingLab) -> None:
    for kind in ("mtu-mismatch", "node-stopped", "power-off", "loss"):
        recording.engine.inject(design(PLAN, kind, "n1", Parameters()))
    recording.done.clear()
    recording.engine.clear()
    assert recording.done[-1] == "n1: ip link set eth1 mtu 9000"
    assert recording.done[:-1] == ["cont {}", "n1 on", "remove rail0.control loss n1 eth1"]


def test_clearing_a_node_leaves_the_others(recording: RecordingLab) -> None:
    for node in ("n1", "n2"):
        recording.engine.inject(design(PLAN, "loss", node, Parameters()))
    recording.engine.clear("n1")
    assert [fault.node for fault in recording.active] == ["n2"]


def test_what_cannot_be_taken_back_stays_on_record_and_the_rest_goes(recording: RecordingLab) -> None:
    for kind in ("link-down", "mtu-mismatch"):
        recording.engine.inject(design(PLAN, kind, "n1", Parameters()))
    recording.fails = {"eth1 up"}
    with pytest.raises(LabError, match="not taken back: link-down on n1 rail 0: "):
        recording.engine.clear()
    assert [fault.kind for fault in recording.active] == ["link-down"]
    recording.fails = set()
    recording.engine.clear()
    assert recording.active == []
