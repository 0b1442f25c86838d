# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole profile on one node: applied, kept, tuned again, booted, given back to the byte; in both homes."""

from __future__ import annotations

import os
import pathlib
import sys
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_conf import parse
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_profile import Profile, ProfileOnNode, Result

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node

DROP_IN = "/etc/sysctl.d/99-zz-gpufabric.conf"
SYSCTL_CONF = "/etc/sysctl.conf"

FIRST = [
    {"key": "net.core.rmem_max", "value": 134217728, "reason": "why"},
    {"key": "net.ipv4.tcp_rmem", "value": [4096, 87380, 134217728]},
    {"key": "net.ipv4.tcp_congestion_control", "value": "bbr"},
    {"key": "net.ipv4.conf.<rdma>.arp_ignore", "value": 1},
]
SECOND = [
    {"key": "net.core.rmem_max", "value": 67108864},
    {"key": "net.core.default_qdisc", "value": "fq"},
]


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    return kernel_node.build(tmp_path)


def on(root: pathlib.Path) -> ProfileOnNode:
    fs = RootedFs(str(root))
    return ProfileOnNode(fs, Tools(fs), "kernel_tuning")


def profile(entries: t.Sequence[t.Mapping[str, t.Any]] = FIRST, home: str = DROP_IN, **more: t.Any) -> Profile:
    return Profile(entries, home, interfaces=("rail0", "rail1.100"), **more)


def snapshot(root: pathlib.Path) -> dict[str, tuple[t.Any, ...]]:
    """Everything below the root but what our stand-in for modprobe notes for itself and the empty /var/lib."""
    found: dict[str, tuple[t.Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file() and name != "modprobe.log":
            found[name] = ("file", path.read_text().split(), path.stat().st_mode)
        elif path.is_dir() and name not in ("var", "var/lib"):
            found[name] = ("directory",)
    return found


def boot(root: pathlib.Path) -> None:
    """What a reboot does to the tree: untuned values, no modules, then modules-load.d and the sysctl files."""
    for key, value in kernel_node.UNTUNED.items():
        (root / "proc/sys" / key).write_text(f"{value}\n")
    for file in (root / "proc/sys/net/ipv4/conf").glob("*/*"):
        file.write_text("0\n")
    (root / "proc/modules").write_text("virtio_net 86016 0 - Live 0x0\n")
    fs = RootedFs(str(root))
    for path in fs.glob("/etc/modules-load.d", "*.conf"):
        for line in fs.read_lines(path):
            if line and not line.startswith("#"):
                Tools(fs).run(["modprobe", line])
    for directory in ("/usr/lib/sysctl.d", "/etc/sysctl.d"):
        for path in fs.glob(directory, "*.conf"):
            for found in parse(fs.read_lines(path), path)[0]:
                if fs.exists(f"/proc/sys/{found.name}"):
                    fs.write_value(f"/proc/sys/{found.name}", found.value or "")


def statuses(result: Result) -> dict[str, str]:
    return {key.key: key.status for key in result.keys}


@pytest.mark.parametrize("home", [DROP_IN, SYSCTL_CONF])
def test_applies_everything_and_then_nothing(node: pathlib.Path, home: str) -> None:
    first = on(node).apply(profile(home=home, memlock="unlimited"))
    assert first.changed
    assert set(statuses(first).values()) == {"applied"}
    assert [(m.name, m.status, m.loaded_now) for m in first.modules] == [("tcp_bbr", "loaded", True)]
    assert [entry["status"] for entry in first.observed["boot"]["keys"]] == ["kept"] * 5
    second = on(node).apply(profile(home=home, memlock="unlimited"))
    assert not second.changed
    assert set(statuses(second).values()) == {"already"}
    assert second.diff() == []


@pytest.mark.parametrize("home", [DROP_IN, SYSCTL_CONF])
@pytest.mark.parametrize("steps", ["a", "ab", "aba", "abRbRa", "aR"])
def test_rollback_restores_everything_to_the_byte(node: pathlib.Path, home: str, steps: str) -> None:
    boot(node)
    before = snapshot(node)
    for step in steps:
        if step == "R":
            boot(node)
        else:
            on(node).apply(profile({"a": FIRST, "b": SECOND}[step], home, memlock="unlimited"))
    assert snapshot(node) != before
    result = on(node).rollback()
    assert result.changed
    assert snapshot(node) == before
    assert not on(node).rollback().changed


def test_moving_the_home_leaves_one_copy(node: pathlib.Path) -> None:
    before = snapshot(node)
    on(node).apply(profile(home=DROP_IN))
    on(node).apply(profile(home=SYSCTL_CONF))
    assert not (node / DROP_IN[1:]).exists()
    on(node).apply(profile(home=DROP_IN))
    assert "BEGIN" not in (node / "etc/sysctl.conf").read_text()
    on(node).rollback()
    assert snapshot(node) == before


@pytest.mark.parametrize("home", [DROP_IN, SYSCTL_CONF])
def test_check_mode_says_what_the_run_then_does(node: pathlib.Path, home: str) -> None:
    before = snapshot(node)
    said = on(node).apply(profile(home=home, memlock="unlimited"), check=True)
    assert snapshot(node) == before
    done = on(node).apply(profile(home=home, memlock="unlimited"))
    assert said.diff() == done.diff()
    assert statuses(said) == statuses(done)
    tuned = snapshot(node)
    undoing = on(node).rollback(check=True)
    assert snapshot(node) == tuned
    assert undoing.diff() == on(node).rollback().diff()


def test_one_key_changed_behind_its_back_is_reported_and_healed(node: pathlib.Path) -> None:
    on(node).apply(profile())
    (node / "proc/sys/net/ipv4/tcp_rmem").write_text("4096\t1\t2\n")
    seen = on(node).verify(profile())
    assert {key for key, status in statuses(seen).items() if status != "already"} == {"net.ipv4.tcp_rmem"}
    healed = on(node).apply(profile())
    assert [key.key for key in healed.keys if key.changed] == ["net.ipv4.tcp_rmem"]
    assert len(healed.diff()) == 1
    assert not on(node).apply(profile()).changed


def test_verify_changes_nothing_and_names_files(node: pathlib.Path) -> None:
    before = snapshot(node)
    bare = on(node).verify(profile())
    assert snapshot(node) == before
    assert {file.status for file in bare.files} == {"differs"}
    on(node).apply(profile())
    assert {file.status for file in on(node).verify(profile()).files} == {"unchanged"}


def test_what_the_node_cannot_have_is_left_out_of_the_file(tmp_path: pathlib.Path) -> None:
    node = kernel_node.build(tmp_path, bbr=False)
    result = on(node).apply(profile([*FIRST, {"key": "net.core.nothing", "value": 1}]))
    assert statuses(result)["net.ipv4.tcp_congestion_control"] == "value_not_available"
    text = (node / DROP_IN[1:]).read_text()
    names = [assignment.name for assignment in parse(text.splitlines(), "f")[0]]
    assert "net/ipv4/tcp_congestion_control" not in names and "net/core/nothing" not in names
    assert not (node / "etc/modules-load.d").exists()
    assert not on(node).apply(profile([*FIRST, {"key": "net.core.nothing", "value": 1}])).changed


def test_a_planted_later_file_is_the_one_verdict_that_is_lost(node: pathlib.Path) -> None:
    on(node).apply(profile())
    kernel_node.write(node, "etc/sysctl.d/zz-planted.conf", "# x\nnet.core.rmem_max = 5\n")
    lost = [e for e in on(node).apply(profile()).observed["boot"]["keys"] if e["status"] != "kept"]
    assert [(e["key"], e["path"], e["line"]) for e in lost] == [
        ("net.core.rmem_max", "/etc/sysctl.d/zz-planted.conf", 2)
    ]


def test_a_foreign_file_of_our_name_stays(node: pathlib.Path) -> None:
    kernel_node.write(node, DROP_IN, "net.core.rmem_max = 5\n")
    result = on(node).apply(profile())
    assert {file.path: file.status for file in result.files}[DROP_IN] == "foreign"
    assert (node / DROP_IN[1:]).read_text() == "net.core.rmem_max = 5\n"


def test_bad_settings_change_nothing(node: pathlib.Path) -> None:
    before = snapshot(node)
    with pytest.raises(ValueError, match="boolean"):
        on(node).apply(profile([*FIRST, {"key": "net.core.somaxconn", "value": True}]))
    assert snapshot(node) == before


def test_interfaces_are_found_by_what_carries_roce(node: pathlib.Path) -> None:
    device = "sys/class/infiniband/mlx5_0"
    for path, text in {
        "ports/1/link_layer": "Ethernet",
        "ports/1/gids/0": "fe80:0000:0000:0000:0000:00ff:fe00:0001",
        "ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a14:0001",
        "ports/1/gid_attrs/ndevs/0": "rail0",
        "ports/1/gid_attrs/ndevs/1": "rail1.100",
    }.items():
        kernel_node.write(node, f"{device}/{path}", f"{text}\n")
    kernel_node.write(node, "sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand\n")
    kernel_node.write(node, "sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "ib0\n")
    result = on(node).apply(Profile(FIRST, DROP_IN))
    assert result.observed["interfaces"] == ["rail0", "rail1.100"]
    assert (node / "proc/sys/net/ipv4/conf/rail1.100/arp_ignore").read_text().strip() == "1"
    assert "net.ipv4.conf.rail1/100.arp_ignore = 1" in (node / DROP_IN[1:]).read_text()
