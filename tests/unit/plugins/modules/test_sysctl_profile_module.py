# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules sysctl_profile and kernel_modules as Ansible runs them: arguments in, one JSON result out."""

from __future__ import annotations

import pathlib
import sys
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.modules import kernel_modules, node_info, sysctl_profile
from ansible_collections.gpufabric.cluster.tests.fixtures.module_call import call as run

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node

SETTINGS = [
    {"key": "net.core.rmem_max", "value": 134217728},
    {"key": "net.ipv4.tcp_congestion_control", "value": "bbr"},
]


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    return kernel_node.build(tmp_path)


def test_present_twice_verify_and_absent(node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(sysctl_profile, capsys, root=str(node), settings=SETTINGS)
    assert first["changed"] and [key["status"] for key in first["keys"]] == ["applied", "applied"]
    assert first["home"] == "/etc/sysctl.d/99-zz-gpufabric.conf"
    assert {key["status"] for key in first["boot"]["keys"]} == {"kept"}
    second = run(sysctl_profile, capsys, root=str(node), settings=SETTINGS)
    assert not second["changed"] and second["diff"] == []
    verified = run(sysctl_profile, capsys, root=str(node), settings=SETTINGS, state="verify")
    assert not verified["changed"] and {file["status"] for file in verified["files"]} == {"unchanged"}
    undone = run(sysctl_profile, capsys, root=str(node), state="absent")
    assert undone["changed"] and {key["status"] for key in undone["keys_given_back"]} == {"restored"}


def test_check_mode_shows_the_diff_and_changes_nothing(node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(
        sysctl_profile, capsys, root=str(node), settings=SETTINGS, _ansible_check_mode=True, _ansible_diff=True
    )
    assert result["changed"] and result["checked"]
    assert "net.core.rmem_max = 212992" in result["diff"][0]["before"]
    assert (node / "proc/sys/net/core/rmem_max").read_text() == "212992\n"


@pytest.mark.parametrize("state", ["present", "absent"])
def test_hold_changes_nothing_and_says_why(node: pathlib.Path, capsys: pytest.CaptureFixture[str], state: str) -> None:
    run(sysctl_profile, capsys, root=str(node), settings=SETTINGS)
    (node / "proc/sys/net/core/rmem_max").write_text("5\n")
    held = run(sysctl_profile, capsys, root=str(node), settings=SETTINGS, state=state, hold="GPU processes: 12")
    assert not held["changed"] and held["held"] == "GPU processes: 12"
    assert (node / "proc/sys/net/core/rmem_max").read_text() == "5\n"
    assert (node / "etc/sysctl.d/99-zz-gpufabric.conf").exists()


@pytest.fixture
def busy_node(node: pathlib.Path) -> pathlib.Path:
    kernel_node.write(node, "proc/4711/cmdline", "slurmstepd: [88.0]")
    return node


@pytest.mark.parametrize("state", ["present", "absent"])
def test_without_a_hold_the_node_is_read_and_its_work_is_one(
    busy_node: pathlib.Path, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    said = run(sysctl_profile, capsys, root=str(busy_node), settings=SETTINGS, state=state)
    assert said["observed"] == run(node_info, capsys, root=str(busy_node))["observed"]
    assert not said["changed"] and said["held"] == said["observed"]["busy_why"] == "Slurm job(s) 88"
    assert (busy_node / "proc/sys/net/core/rmem_max").read_text() == "212992\n"


def test_a_busy_node_is_changed_where_that_is_wanted_or_it_is_known_to_be_idle(
    busy_node: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ignored = run(sysctl_profile, capsys, root=str(busy_node), settings=SETTINGS, busy="ignore")
    assert ignored["changed"] and ignored["held"] == "" and ignored["observed"]["busy"]
    known = run(sysctl_profile, capsys, root=str(busy_node), state="absent", hold="")
    assert known["changed"] and "observed" not in known


def test_verify_reads_the_node_and_is_never_held(busy_node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(sysctl_profile, capsys, root=str(busy_node), settings=SETTINGS, state="verify")
    assert said["held"] == "" and said["observed"]["busy"]


def test_bad_input_does_not_lose_what_the_node_is(busy_node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(sysctl_profile, capsys, root=str(busy_node), problem="kernel_tuning_rtt_us is -1")
    assert said["failed"] and said["observed"]["slurm_jobs"] == ["88"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"settings": [{"key": "net.ipv4.tcp_sack", "value": True}]},
            "net.ipv4.tcp_sack: the value is the boolean true",
        ),
        ({"settings": [{"key": "net.core.*", "value": 1}]}, "is a pattern"),
        ({"settings": [], "problem": "kernel_tuning_rtt_us is -1"}, "kernel_tuning_rtt_us is -1"),
        ({"memlock": "lots"}, "memlock: 'lots'"),
        ({"modules": ["../evil"]}, "no kernel module's name"),
    ],
)
def test_bad_input_gets_one_sentence_and_changes_nothing(
    node: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: dict[str, t.Any], says: str
) -> None:
    result = run(sysctl_profile, capsys, root=str(node), **{"settings": SETTINGS, **arguments})
    assert result["failed"] and says in result["msg"] and "\n" not in result["msg"]
    assert not (node / "var").exists()
    assert (node / "proc/sys/net/core/rmem_max").read_text() == "212992\n"


def test_a_corrupt_record_is_not_guessed_at(node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel_node.write(node, "var/lib/gpufabric/prior/kernel_tuning-keys.json", "{")
    result = run(sysctl_profile, capsys, root=str(node), state="absent")
    assert result["failed"] and "move it away" in result["msg"]


def test_kernel_modules_present_and_absent(node: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = node / "etc/modules-load.d/gpufabric-rdma.conf"
    said = run(
        kernel_modules, capsys, root=str(node), owner="rdma", modules=["tcp_bbr", "nope"], _ansible_check_mode=True
    )
    assert said["changed"] and not load.exists()
    first = run(kernel_modules, capsys, root=str(node), owner="rdma", modules=["tcp_bbr", "nope", "tcp_cubic"])
    assert first["changed"]
    assert [m["status"] for m in first["modules"]] == ["loaded", "absent", "builtin"]
    assert load.read_text().splitlines()[1:] == ["tcp_bbr"]
    assert not run(kernel_modules, capsys, root=str(node), owner="rdma", modules=["tcp_bbr", "nope", "tcp_cubic"])[
        "changed"
    ]
    undone = run(kernel_modules, capsys, root=str(node), owner="rdma", state="absent")
    assert undone["changed"] and not load.exists()
    assert {m["name"]: m["status"] for m in undone["modules"]}["tcp_bbr"] == "loaded"
    assert not (node / "var/lib/gpufabric").exists()
