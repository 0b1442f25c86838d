# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the next boot makes of a key: order, masking, links, patterns, and those who come after systemd-sysctl."""

from __future__ import annotations

import pathlib
import sys

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._boot_sysctl import BootSysctl, BootVerdict
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl import Setting

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node

HOME = "/etc/sysctl.d/99-zz-gpufabric.conf"
KEY = "net.core.rmem_max"


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    kernel_node.build(tmp_path)
    kernel_node.write(tmp_path, HOME, f"# ours\n{KEY} = 1000\nnet.ipv4.conf.rail0.rp_filter = 2\n")
    return tmp_path


def verdict(root: pathlib.Path, key: str = KEY, wanted: str = "1000", home: str = HOME) -> BootVerdict:
    name = key.replace(".", "/")
    return BootSysctl(RootedFs(str(root))).verdicts([Setting(name, wanted)], home)[0]


def where(found: BootVerdict) -> tuple[str, str, int]:
    return found.status, found.path, found.line


def test_ours_is_kept(node: pathlib.Path) -> None:
    assert where(verdict(node)) == ("kept", HOME, 2)


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("etc/sysctl.d/zz-vendor.conf", f"{KEY}=7", ("lost", "/etc/sysctl.d/zz-vendor.conf", 2)),
        ("usr/lib/sysctl.d/zz-vendor.conf", "net/core/rmem_max = 7", ("lost", "/usr/lib/sysctl.d/zz-vendor.conf", 2)),
        ("run/sysctl.d/99-zz-gpufabric2.conf", f"-{KEY} = 7", ("lost", "/run/sysctl.d/99-zz-gpufabric2.conf", 2)),
        ("etc/sysctl.d/zz-vendor.conf", f"-{KEY}", ("unset", "/etc/sysctl.d/zz-vendor.conf", 2)),
        ("etc/sysctl.d/zz-vendor.conf", f"{KEY}=1000", ("kept", HOME, 2)),
        ("etc/sysctl.d/zz-vendor.conf", "net.core.*=7", ("kept", HOME, 2)),
        ("etc/sysctl.d/10-early.conf", f"{KEY}=7", ("kept", HOME, 2)),
        ("etc/sysctl.d/zz-vendor.txt", f"{KEY}=7", ("kept", HOME, 2)),
        ("etc/sysctl.conf", f"{KEY}=7", ("kept", HOME, 2)),
    ],
)
def test_by_name_of_the_file(node: pathlib.Path, path: str, line: str, expected: tuple[str, str, int]) -> None:
    kernel_node.write(node, path, f"# planted\n{line}\n")
    assert where(verdict(node)) == expected


def test_directories_hide_files_of_one_name(node: pathlib.Path) -> None:
    kernel_node.write(node, "usr/lib/sysctl.d/zz-vendor.conf", f"{KEY}=7\n")
    (node / "etc/sysctl.d/zz-vendor.conf").symlink_to("/dev/null")
    assert verdict(node).status == "kept"


def test_a_link_named_99_sysctl_leads_to_sysctl_conf(node: pathlib.Path) -> None:
    (node / HOME[1:]).rename(node / "etc/sysctl.d/90-gpufabric.conf")
    kernel_node.write(node, "etc/sysctl.conf", f"#x\n#y\n{KEY}=7\n")
    lost = verdict(node, home="/etc/sysctl.d/90-gpufabric.conf")
    assert where(lost) == ("lost", "/etc/sysctl.d/99-sysctl.conf", 3)


def test_whether_boot_reads_sysctl_conf(tmp_path: pathlib.Path) -> None:
    linked = kernel_node.build(tmp_path / "12")
    unlinked = kernel_node.build(tmp_path / "13", sysctl_conf_link=False)
    assert BootSysctl(RootedFs(str(linked))).reads_sysctl_conf
    assert not BootSysctl(RootedFs(str(unlinked))).reads_sysctl_conf
    (unlinked / "usr/lib/systemd/systemd-sysctl").unlink()
    procps = BootSysctl(RootedFs(str(unlinked)))
    assert procps.reads_sysctl_conf and procps.files[-1] == "/etc/sysctl.conf"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # an explicit line beats a pattern, wherever it stands
        ({"zz.conf": "net.ipv4.conf.*.rp_filter=1"}, ("kept", HOME, 3)),
        # without one, the later pattern counts; "-name" takes a name out of them
        (
            {"10.conf": "net.ipv4.conf.*.arp_ignore=1", "20.conf": "net.ipv4.conf.rail?.arp_ignore=2"},
            ("lost", "/etc/sysctl.d/20.conf", 1),
        ),
        (
            {"10.conf": "net.ipv4.conf.*.arp_ignore=1", "20.conf": "-net.ipv4.conf.rail0.arp_ignore"},
            ("unset", "/etc/sysctl.d/20.conf", 1),
        ),
        ({"10.conf": "net.*.arp_ignore=1"}, ("unset", "", 0)),
    ],
)
def test_patterns(node: pathlib.Path, files: dict[str, str], expected: tuple[str, str, int]) -> None:
    for name, line in files.items():
        kernel_node.write(node, f"etc/sysctl.d/{name}", f"{line}\n")
    key = "arp_ignore" if "arp" in "".join(files.values()) else "rp_filter"
    wanted = {"arp_ignore": "8", "rp_filter": "2"}[key]
    assert where(verdict(node, f"net.ipv4.conf.rail0.{key}", wanted)) == expected


def test_a_masked_systemd_sysctl_sets_nothing(node: pathlib.Path) -> None:
    (node / "etc/systemd/system").mkdir(parents=True)
    (node / "etc/systemd/system/systemd-sysctl.service").symlink_to("/dev/null")
    boot = BootSysctl(RootedFs(str(node)))
    assert boot.masked_by == "/etc/systemd/system/systemd-sysctl.service"
    assert verdict(node).status == "unset"


TUNED = "[main]\nsummary=x\ninclude=base\n\n[sysctl]\n# bigger\nnet.core.rmem_max=7\nnet.core.wmem_max=${x}\n"


def tuned(root: pathlib.Path, **main: str) -> None:
    kernel_node.write(root, "etc/systemd/system/multi-user.target.wants/tuned.service", "")
    kernel_node.write(root, "etc/tuned/active_profile", "mine\n")
    kernel_node.write(root, "etc/tuned/mine/tuned.conf", TUNED)
    kernel_node.write(root, "usr/lib/tuned/base/tuned.conf", "[sysctl]\nnet.core.wmem_max = >9\n")
    kernel_node.write(root, "etc/tuned/tuned-main.conf", "".join(f"{k} = {v}\n" for k, v in main.items()))


def test_tuned_wins_where_it_does_not_reapply(node: pathlib.Path) -> None:
    tuned(node, reapply_sysctl="0")
    lost = verdict(node)
    assert (*where(lost), lost.setter) == ("lost", "/etc/tuned/mine/tuned.conf", 7, "tuned")
    assert where(verdict(node, "net.core.wmem_max")) == ("lost", "/usr/lib/tuned/base/tuned.conf", 2)


def test_tuned_spares_etc_sysctl_d_by_default_but_sets_sysctl_conf_last(node: pathlib.Path) -> None:
    tuned(node)
    assert verdict(node).status == "kept"
    kernel_node.write(node, "etc/sysctl.conf", f"{KEY} = 5\n")
    assert where(verdict(node)) == ("lost", "/etc/sysctl.conf", 1)


def test_tuned_that_is_not_enabled_does_nothing(node: pathlib.Path) -> None:
    tuned(node, reapply_sysctl="0")
    (node / "etc/systemd/system/multi-user.target.wants/tuned.service").unlink()
    assert verdict(node).status == "kept"


PERF_TUNING = """#!/bin/bash
load_tuning() {
    /sbin/sysctl -q -w net.core.rmem_max=4194304
    /sbin/sysctl -w net.ipv4.tcp_rmem="4096 87380 4194304"
}
unload_tuning() {
    /sbin/sysctl -q -w net.core.rmem_max=131071
}
"""


@pytest.mark.parametrize(("run", "status"), [("yes", "lost"), ("no", "kept")])
def test_openibd(node: pathlib.Path, run: str, status: str) -> None:
    kernel_node.write(node, "etc/infiniband/openib.conf", f"# tuning\nRUN_SYSCTL={run}\n")
    kernel_node.write(node, "sbin/sysctl_perf_tuning", PERF_TUNING, 0o755)
    found = verdict(node)
    assert found.status == status
    if run == "yes":
        assert (found.path, found.line, found.value, found.setter) == (
            "/sbin/sysctl_perf_tuning",
            3,
            "4194304",
            "openibd",
        )
        assert verdict(node, "net.ipv4.tcp_rmem", "4096 87380 4194304").status == "kept"


@pytest.mark.parametrize(
    ("path", "text", "setter"),
    [
        (
            "etc/NetworkManager/dispatcher.d/90-tune",
            'case "$2" in\nup)\n  sysctl -w net.core.rmem_max=7 ;;\nesac\n',
            "NetworkManager dispatcher",
        ),
        (
            "etc/NetworkManager/dispatcher.d/90-tune",
            "\n\necho 7 > /proc/sys/net/core/rmem_max\n",
            "NetworkManager dispatcher",
        ),
        ("etc/network/if-up.d/tune", "#!/bin/sh\n\nsysctl -q -w 'net.core.rmem_max = 7' || true\n", "ifupdown"),
        ("etc/rc.local", "#!/bin/sh\nset -e\n/sbin/sysctl -qw net.core.rmem_max=7\n", "rc.local"),
    ],
)
def test_scripts_that_run_later(node: pathlib.Path, path: str, text: str, setter: str) -> None:
    script = kernel_node.write(node, path, text, 0o755)
    lost = verdict(node)
    assert (*where(lost), lost.value, lost.setter) == ("lost", f"/{path}", 3, "7", setter)
    script.chmod(0o644)
    assert verdict(node).status == "kept"


@pytest.mark.parametrize(
    "text",
    [
        "# sysctl -w net.core.rmem_max=7\n",
        "sysctl -w net.core.rmem_max=$SIZE\n",
        'case "$2" in\ndown)\n  sysctl -w net.core.rmem_max=7\n  ;;\nesac\n',
        "echo sysctl is nice\n",
    ],
)
def test_what_a_script_does_not_say_in_plain_words_is_not_guessed(node: pathlib.Path, text: str) -> None:
    kernel_node.write(node, "etc/NetworkManager/dispatcher.d/90-tune", text, 0o755)
    assert verdict(node).status == "kept"


def test_interfaces_file_ufw_and_units(node: pathlib.Path) -> None:
    kernel_node.write(
        node, "etc/network/interfaces", "iface rail0 inet static\n  post-up sysctl -w net.core.rmem_max=7\n"
    )
    assert where(verdict(node)) == ("lost", "/etc/network/interfaces", 2)
    kernel_node.write(node, "etc/ufw/ufw.conf", "ENABLED=yes\n")
    kernel_node.write(node, "etc/default/ufw", "IPT_SYSCTL=/etc/ufw/sysctl.conf\n")
    kernel_node.write(node, "etc/ufw/sysctl.conf", "net/core/rmem_max=8\n")
    assert where(verdict(node)) == ("lost", "/etc/ufw/sysctl.conf", 1)
    unit = "[Service]\nDescription=sysctl -w net.core.rmem_max=6\nExecStart=/sbin/sysctl -w net.core.rmem_max=9\n"
    kernel_node.write(node, "etc/systemd/system/tune.service", unit)
    (node / "etc/systemd/system/multi-user.target.wants").mkdir()
    (node / "etc/systemd/system/multi-user.target.wants/tune.service").symlink_to("../tune.service")
    lost = verdict(node)
    assert (*where(lost), lost.setter) == ("lost", "/etc/systemd/system/tune.service", 3, "tune.service")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"50-rails.network": "[Match]\nName=rail0 rail1\n[Network]\nIPv4ReversePathFilter=strict\n"}, ("lost", 4)),
        ({"50-rails.network": "[Match]\nName=rail*\n\n[Network]\nIPv4ReversePathFilter=no\n"}, ("lost", 5)),
        ({"50-rails.network": "[Match]\nName=rail*\n[Network]\nIPv4ReversePathFilter=loose\n"}, ("kept", 4)),
        ({"50-rails.network": "[Match]\nName=eth*\n[Network]\nIPv4ReversePathFilter=strict\n"}, ("kept", 3)),
        ({"50-rails.network": "[Match]\nName=rail*\n[Network]\nDHCP=no\n"}, ("kept", 3)),
        (
            {
                "10-first.network": "[Match]\nName=rail0\n[Network]\nIPv4ReversePathFilter=loose\n",
                "90-last.network": "[Match]\nName=*\n[Network]\nIPv4ReversePathFilter=strict\n",
            },
            ("kept", 4),
        ),
        (
            {
                "10-first.network": "[Match]\nName=rail0\n[Network]\nDHCP=no\n",
                "90-last.network": "[Match]\nName=*\n[Network]\nIPv4ReversePathFilter=strict\n",
            },
            ("kept", 3),
        ),
    ],
)
def test_networkd_sets_rp_filter_of_the_interfaces_it_matches(
    node: pathlib.Path, files: dict[str, str], expected: tuple[str, int]
) -> None:
    for name, text in files.items():
        kernel_node.write(node, f"etc/systemd/network/{name}", text)
    found = verdict(node, "net.ipv4.conf.rail0.rp_filter", "2")
    assert (found.status, found.line) == expected


def test_unreadable_files_and_lines_are_said(node: pathlib.Path) -> None:
    (node / "etc/sysctl.d/50-loop.conf").symlink_to("50-loop.conf")
    kernel_node.write(node, "etc/sysctl.d/60-bad.conf", "gibberish\n")
    problems = BootSysctl(RootedFs(str(node))).problems
    assert any("50-loop.conf cannot be read" in problem for problem in problems)
    assert any("/etc/sysctl.d/60-bad.conf:1" in problem for problem in problems)
