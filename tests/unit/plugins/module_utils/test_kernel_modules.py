# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel modules: told apart, loaded, persisted, given back."""

from __future__ import annotations

import pathlib
import sys

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_modules import KernelModules, modules_load_file
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    return kernel_node.build(tmp_path)


def kernel(root: pathlib.Path) -> KernelModules:
    fs = RootedFs(str(root))
    return KernelModules(fs, Tools(fs), "rdma")


def log(root: pathlib.Path) -> list[str]:
    file = root / "modprobe.log"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    ("name", "status"),
    [("virtio-net", "loaded"), ("tcp_cubic", "builtin"), ("tcp_bbr", "available"), ("nvidia_peermem", "absent")],
)
def test_tells_states_apart(node: pathlib.Path, name: str, status: str) -> None:
    assert kernel(node).state(name).status == status


def test_sys_module_without_initstate_is_built_in(node: pathlib.Path) -> None:
    kernel_node.write(node, "sys/module/ib_core/parameters/recv_queue_size", "512\n")
    kernel_node.write(node, "sys/module/gone/initstate", "going\n")
    assert kernel(node).state("ib_core").status == "builtin"
    assert kernel(node).state("gone").status == "absent"


def test_listed_but_deleted_is_absent(node: pathlib.Path) -> None:
    (node / f"lib/modules/{kernel_node.RELEASE}/kernel/net/ipv4/tcp_bbr.ko.xz").unlink()
    state = kernel(node).state("tcp_bbr")
    assert state.status == "absent"
    assert "does not exist" in state.evidence


def test_kernel_updated_without_reboot_is_named(node: pathlib.Path) -> None:
    (node / "proc/sys/kernel/osrelease").write_text("6.6.99-newer\n")
    assert "without a reboot" in kernel(node).state("tcp_bbr").evidence


def test_loads_once_and_then_has_nothing_to_do(node: pathlib.Path) -> None:
    (first,) = kernel(node).load(["tcp-bbr", "tcp_bbr"])
    assert (first.status, first.loaded_now, first.loaded_before) == ("loaded", True, False)
    (second,) = kernel(node).load(["tcp_bbr"])
    assert (second.status, second.loaded_now, second.loaded_before) == ("loaded", False, False)
    assert log(node) == ["modprobe tcp_bbr"]


def test_check_mode_neither_loads_nor_remembers(node: pathlib.Path) -> None:
    (state,) = kernel(node).load(["tcp_bbr"], check=True)
    assert (state.status, state.loaded_now) == ("available", True)
    assert log(node) == []
    assert not (node / "var/lib/gpufabric").exists()


def test_a_refused_module_is_failed_with_modprobes_words(node: pathlib.Path) -> None:
    kernel_node.write(node, "etc/modprobe.d/no-bbr.conf", "install tcp_bbr /usr/local/bin/refuse\n")
    (state,) = kernel(node).load(["tcp_bbr"])
    assert state.status == "failed"
    assert "Error running install command" in state.evidence


@pytest.mark.parametrize(
    ("path", "line", "where"),
    [
        ("etc/modprobe.d/cis.conf", "install tcp-bbr /bin/false", "/etc/modprobe.d/cis.conf:2"),
        ("usr/lib/modprobe.d/cis.conf", "install tcp_bbr /bin/true", "/usr/lib/modprobe.d/cis.conf:2"),
        ("proc/cmdline", "ro module_blacklist=floppy,tcp_bbr", "/proc/cmdline"),
    ],
)
def test_a_blocked_module_is_named_without_trying(node: pathlib.Path, path: str, line: str, where: str) -> None:
    kernel_node.write(node, path, f"# hardening\n{line}\n")
    (state,) = kernel(node).load(["tcp_bbr"])
    assert state.status == "blocked"
    assert state.evidence.startswith(where)
    assert log(node) == []


def test_a_blacklist_line_does_not_keep_modprobe_from_loading(node: pathlib.Path) -> None:
    kernel_node.write(node, "etc/modprobe.d/blacklist.conf", "blacklist tcp_bbr\n")
    assert kernel(node).load(["tcp_bbr"])[0].status == "loaded"


def test_give_back_unloads_only_what_it_loaded(node: pathlib.Path) -> None:
    kernel(node).load(["tcp_bbr", "virtio_net"])
    states = {state.name: state for state in kernel(node).give_back(unload=True)}
    assert states["tcp_bbr"].unloaded_now
    assert states["virtio_net"].status == "loaded"
    assert log(node) == ["modprobe tcp_bbr", "modprobe -r tcp_bbr"]
    assert not (node / "var/lib/gpufabric").exists()


def test_give_back_leaves_a_used_module_until_the_next_boot(node: pathlib.Path) -> None:
    kernel(node).load(["tcp_bbr"])
    kernel_node.write(node, "sys/module/tcp_bbr/refcnt", "3\n")
    (state,) = kernel(node).give_back(unload=True)
    assert (state.status, state.unloaded_now) == ("loaded", False)
    assert "in use (3 references)" in state.evidence
    assert not (node / "var/lib/gpufabric").exists()


def test_give_back_lets_users_go_first(node: pathlib.Path) -> None:
    kernel(node).load(["tcp_bbr"])
    users = kernel_node.write(node, "sys/module/tcp_bbr/refcnt", "3\n")
    (state,) = kernel(node).give_back(unload=True, release=lambda name: users.write_text("0\n"))
    assert state.unloaded_now


def test_give_back_without_unload_forgets_and_leaves_it_loaded(node: pathlib.Path) -> None:
    kernel(node).load(["tcp_bbr"])
    assert [state.status for state in kernel(node).give_back()] == ["loaded"]
    assert kernel(node).give_back() == []


@pytest.mark.parametrize("name", ["", "../x", "a b", "-r", "x" * 60])
def test_no_module_name_gets_one_sentence(node: pathlib.Path, name: str) -> None:
    with pytest.raises(ValueError, match="no kernel module's name"):
        kernel(node).load([name])


def test_file_lists_one_name_a_line() -> None:
    file = modules_load_file("rdma", ["ib_umad", "rdma_ucm"])
    assert file.path == "/etc/modules-load.d/gpufabric-rdma.conf"
    assert file.content.splitlines()[1:] == ["ib_umad", "rdma_ucm"]
