# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys: set, read back, refused, given back. The kernel's refusals come from a file system that answers like it."""

from __future__ import annotations

import errno
import os
import pathlib
import sys

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_modules import KernelModules
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import (
    Setting,
    Sysctl,
    normal_value,
    settings_of,
)

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node


class StubbornFs(RootedFs):
    """Answers a write as told: {path below /proc/sys: errno, or the value that the kernel keeps instead}."""

    def __init__(self, root: str, answers: dict[str, int | str]) -> None:
        super().__init__(root)
        self.answers = answers
        self.writes: list[str] = []

    def write_value(self, path: str, value: str) -> None:
        name = path[len("/proc/sys/") :]
        self.writes.append(name)
        answer = self.answers.get(name, value)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer), path)
        super().write_value(path, answer)


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    return kernel_node.build(tmp_path)


def sysctl(root: pathlib.Path, **answers: int | str) -> Sysctl:
    fs = StubbornFs(str(root), {name.replace("__", "/"): answer for name, answer in answers.items()})
    return Sysctl(fs, KernelModules(fs, Tools(fs), "kernel_tuning"), "kernel_tuning")


def value(root: pathlib.Path, name: str) -> str:
    return (root / "proc/sys" / name).read_text().strip()


RMEM = Setting("net/core/rmem_max", "134217728")
BBR = Setting("net/ipv4/tcp_congestion_control", "bbr")
FQ = Setting("net/core/default_qdisc", "fq")


def test_sets_reads_back_and_then_has_nothing_to_do(node: pathlib.Path) -> None:
    (first,) = sysctl(node).apply([RMEM])
    assert (first.key, first.status, first.before, first.value) == (
        "net.core.rmem_max",
        "applied",
        "212992",
        "134217728",
    )
    assert sysctl(node).apply([RMEM])[0].status == "already"
    assert value(node, "net/core/rmem_max") == "134217728"


def test_tabs_are_no_difference(node: pathlib.Path) -> None:
    assert sysctl(node).apply([Setting("net/ipv4/tcp_rmem", "4096 131072 6291456")])[0].status == "already"


def test_check_mode_predicts_and_touches_nothing(node: pathlib.Path) -> None:
    states = sysctl(node).apply([RMEM, Setting("net/no/such", "1"), BBR], check=True)
    assert [state.status for state in states] == ["applied", "unsupported", "applied"]
    assert value(node, "net/core/rmem_max") == "212992"
    assert not (node / "var").exists()


def test_observing_calls_it_differs(node: pathlib.Path) -> None:
    (state,) = sysctl(node).observe([RMEM])
    assert (state.status, state.changed) == ("differs", False)


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (errno.EROFS, "read_only", "Read-only file system"),
        (errno.EPERM, "read_only", "Operation not permitted"),
        (errno.EINVAL, "failed", "Invalid argument"),
        ("4608", "failed", "4608"),
    ],
)
def test_the_kernels_refusals_are_told_apart(node: pathlib.Path, answer: int | str, status: str, says: str) -> None:
    if status == "read_only" and answer == errno.EPERM and os.geteuid() != 0:
        pytest.skip("who is not root may be refused for that alone")
    (state,) = sysctl(node, net__core__rmem_max=answer).apply([RMEM])
    assert state.status == status
    assert says in state.evidence


def test_one_refusal_does_not_stop_the_others(node: pathlib.Path) -> None:
    states = sysctl(node, net__core__rmem_max=errno.EINVAL).apply([RMEM, Setting("net/ipv4/tcp_fin_timeout", "30")])
    assert [state.status for state in states] == ["failed", "applied"]


def test_a_key_without_write_bit_is_read_only(node: pathlib.Path) -> None:
    (node / "proc/sys/net/core/rmem_max").chmod(0o444)
    (state,) = sysctl(node).apply([RMEM])
    assert (state.status, state.value) == ("read_only", "212992")


def test_bbr_is_judged_by_its_module_and_never_written_in_vain(tmp_path: pathlib.Path) -> None:
    node = kernel_node.build(tmp_path, bbr=False)
    fs = StubbornFs(str(node), {})
    (state,) = Sysctl(fs, KernelModules(fs, Tools(fs), "kernel_tuning"), "kernel_tuning").apply([BBR])
    assert state.status == "value_not_available"
    assert "reno cubic" in state.evidence and "tcp_bbr is absent" in state.evidence
    assert fs.writes == []


def test_a_value_refused_at_last_names_the_module(node: pathlib.Path) -> None:
    (state,) = sysctl(node, net__core__default_qdisc=errno.ENOENT).apply([FQ])
    assert state.status == "value_not_available"
    assert "sch_fq" in state.evidence


@pytest.mark.parametrize(
    ("qdisc", "status"), [("fq", "applied"), ("pfifo_fast", "applied"), ("cake", "value_not_available")]
)
def test_queueing_disciplines_are_judged_too(node: pathlib.Path, qdisc: str, status: str) -> None:
    assert sysctl(node).apply([Setting("net/core/default_qdisc", qdisc)], check=True)[0].status == status


def test_give_back_restores_what_was_before_the_first_of_many_runs(node: pathlib.Path) -> None:
    fin = Setting("net/ipv4/tcp_fin_timeout", "30")
    sysctl(node).apply([RMEM, fin])
    (node / "proc/sys/net/core/rmem_max").write_text("5\n")  # behind its back
    sysctl(node).apply([Setting("net/core/rmem_max", "268435456"), fin])
    states = sysctl(node).give_back()
    assert {state.key: (state.status, state.value) for state in states} == {
        "net.core.rmem_max": ("restored", "212992"),
        "net.ipv4.tcp_fin_timeout": ("restored", "60"),
    }
    assert not (node / "var/lib/gpufabric").exists()


def test_a_key_that_was_right_from_the_start_is_remembered_too(node: pathlib.Path) -> None:
    somaxconn = Setting("net/core/somaxconn", "4096")
    assert sysctl(node).apply([somaxconn])[0].status == "already"
    (node / "proc/sys/net/core/somaxconn").write_text("128\n")
    assert sysctl(node).apply([somaxconn])[0].status == "applied"
    sysctl(node).give_back()
    assert value(node, "net/core/somaxconn") == "4096"


def test_keys_no_longer_wanted_are_given_back_and_the_others_kept(node: pathlib.Path) -> None:
    sysctl(node).apply([RMEM, FQ])
    sysctl(node).give_back(keep=["net/core/rmem_max"])
    assert value(node, "net/core/default_qdisc") == "fq_codel"
    assert value(node, "net/core/rmem_max") == "134217728"
    assert [state.key for state in sysctl(node).give_back()] == ["net.core.rmem_max"]


def test_what_could_not_be_put_back_stays_on_record(node: pathlib.Path) -> None:
    sysctl(node).apply([RMEM])
    assert sysctl(node, net__core__rmem_max=errno.EINVAL).give_back()[0].status == "failed"
    assert sysctl(node).give_back()[0].status == "restored"


def test_give_back_in_check_mode_only_says(node: pathlib.Path) -> None:
    sysctl(node).apply([RMEM])
    assert sysctl(node).give_back(check=True)[0].changed
    assert value(node, "net/core/rmem_max") == "134217728"
    assert sysctl(node).give_back()[0].changed


def test_an_interface_that_is_gone_is_no_failure_of_rollback(node: pathlib.Path) -> None:
    sysctl(node).apply([Setting("net/ipv4/conf/rail0/arp_ignore", "1")])
    for file in (node / "proc/sys/net/ipv4/conf/rail0").iterdir():
        file.unlink()
    assert [state.status for state in sysctl(node).give_back()] == ["unsupported"]
    assert sysctl(node).give_back() == []


@pytest.mark.parametrize(
    ("key", "of_all", "own", "effective"),
    [
        ("rp_filter", "1", "0", "1"),
        ("rp_filter", "1", "2", None),
        ("arp_ignore", "2", "1", "2"),
        ("arp_announce", "0", "2", None),
    ],
)
def test_the_higher_of_all_and_the_interface_counts(
    node: pathlib.Path, key: str, of_all: str, own: str, effective: str | None
) -> None:
    (node / f"proc/sys/net/ipv4/conf/all/{key}").write_text(f"{of_all}\n")
    (state,) = sysctl(node).apply([Setting(f"net/ipv4/conf/rail0/{key}", own)])
    assert state.effective == effective


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (1, "1"),
        (30.0, "30"),
        ("4096  87380 1", "4096 87380 1"),
        ([4096, "131072", 1], "4096 131072 1"),
        ("bbr", "bbr"),
        (0, "0"),
    ],
)
def test_values_as_yaml_gives_them(given: object, normal: str) -> None:
    assert normal_value(given, "x") == normal


@pytest.mark.parametrize("given", [True, False, [True], None, "", " ", [], [[1]], {}, 1.5, "a\nb"])
def test_no_value_gets_one_sentence(given: object) -> None:
    with pytest.raises(ValueError, match=r"^settings: k: .*[^.]$"):
        normal_value(given, "settings: k")


def test_rdma_stands_for_each_interface_and_the_last_of_two_entries_wins() -> None:
    entries = [
        {"key": "net.ipv4.conf.<rdma>.rp_filter", "value": 2, "reason": "loose"},
        {"key": "net/ipv4/conf/rail0/rp_filter", "value": 1},
    ]
    assert settings_of(entries, ["rail0", "rail1.100"]) == [
        Setting("net/ipv4/conf/rail1.100/rp_filter", "2", "loose"),
        Setting("net/ipv4/conf/rail0/rp_filter", "1", ""),
    ]
    assert settings_of(entries[:1], []) == []
