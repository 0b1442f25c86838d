# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge over what the module really returns: one finding for each thing that is wrong, none where all is well."""

from __future__ import annotations

import errno
import pathlib
import sys
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_profile import Profile, ProfileOnNode
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_kernel import judge_kernel
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sysctl_profiles import resolve

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "fixtures" / "kernel"))
import kernel_node

DROP_IN = "/etc/sysctl.d/99-zz-gpufabric.conf"


@pytest.fixture
def node(tmp_path: pathlib.Path) -> pathlib.Path:
    return kernel_node.build(tmp_path)


class StubbornFs(RootedFs):
    """Refuses every write to one key."""

    def write_value(self, path: str, value: str) -> None:
        if path.endswith("/tcp_fin_timeout"):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        super().write_value(path, value)


def observed(
    root: pathlib.Path,
    state: str = "apply",
    profile: str = "guide",
    home: str = DROP_IN,
    fs: RootedFs | None = None,
    interfaces: tuple[str, ...] = ("rail0",),
    **more: t.Any,
) -> dict[str, t.Any]:
    """The registered result of sysctl_profile on this tree."""
    fs = fs or RootedFs(str(root))
    on = ProfileOnNode(fs, Tools(fs), "kernel_tuning")
    wanted = Profile(resolve(profile), home, interfaces=interfaces)
    check = state == "check"
    result = on.verify(wanted) if state == "verify" else on.apply(wanted, check)
    return {"held": "", "checked": check, **result.as_dict(), **more}


def judged(node: dict[str, t.Any]) -> list[Finding]:
    findings = judge_kernel({"node1": node}, {})
    for finding in findings:
        assert finding.node == "node1" and finding.evidence and finding.fix and finding.subject
    return findings


def ids(findings: list[Finding], severity: str = "") -> list[tuple[str, str]]:
    return sorted((f.id, f.subject) for f in findings if severity in ("", f.severity))


@pytest.mark.parametrize("state", ["apply", "verify"])
@pytest.mark.parametrize("profile", ["guide", "roce"])
@pytest.mark.parametrize("home", [DROP_IN, "/etc/sysctl.conf"])
def test_a_tuned_node_has_no_finding(node: pathlib.Path, state: str, profile: str, home: str) -> None:
    observed(node, "apply", profile, home)
    assert judged(observed(node, state, profile, home)) == []


@pytest.mark.parametrize("state", ["apply", "verify"])
def test_a_planted_later_file_gives_exactly_one_error_with_file_and_line(node: pathlib.Path, state: str) -> None:
    observed(node)
    kernel_node.write(node, "etc/sysctl.d/zz-vendor.conf", "# vendor\n\nnet.core.rmem_max = 212992\n")
    (finding,) = judged(observed(node, state))
    assert (finding.id, finding.severity, finding.subject) == ("sysctl_lost_at_boot", "error", "net.core.rmem_max")
    assert "/etc/sysctl.d/zz-vendor.conf:3" in finding.evidence
    assert "sed -i '3d' /etc/sysctl.d/zz-vendor.conf" in finding.fix


def test_a_key_wrong_now_and_at_the_next_boot_is_one_finding(node: pathlib.Path) -> None:
    observed(node)
    kernel_node.write(node, "etc/sysctl.d/zz-vendor.conf", "net.core.rmem_max = 212992\n")
    (node / "proc/sys/net/core/rmem_max").write_text("212992\n")
    (finding,) = judged(observed(node, "verify"))
    assert (finding.id, finding.severity) == ("sysctl_differs", "error")
    assert "net.core.rmem_max = 212992" in finding.evidence and "zz-vendor.conf:1" in finding.evidence


def test_an_untuned_node_is_told_key_by_key_and_file_by_file(node: pathlib.Path) -> None:
    findings = judged(observed(node, "verify"))
    differing = [subject for id_, subject in ids(findings, "error") if id_ == "sysctl_differs"]
    assert len(differing) == 8  # somaxconn is the kernel's own default
    assert ("kernel_file_differs", DROP_IN) in ids(findings)
    assert "sysctl_lost_at_boot" not in {f.id for f in findings}


def test_check_mode_on_a_bare_node_has_no_finding(node: pathlib.Path) -> None:
    assert judged(observed(node, "check")) == []


def test_bbr_without_its_module_is_one_warning(tmp_path: pathlib.Path) -> None:
    node = kernel_node.build(tmp_path, bbr=False)
    (finding,) = judged(observed(node))
    assert (finding.id, finding.severity) == ("sysctl_value_not_available", "warning")
    assert finding.subject == "net.ipv4.tcp_congestion_control"
    assert "tcp_bbr" in finding.evidence


def test_refused_unsupported_and_read_only_keys_are_told_apart(node: pathlib.Path) -> None:
    (node / "proc/sys/net/core/rmem_max").chmod(0o444)
    (node / "proc/sys/net/core/wmem_max").unlink()
    findings = judged(observed(node, fs=StubbornFs(str(node))))
    assert ids(findings, "error") == [("sysctl_failed", "net.ipv4.tcp_fin_timeout")]
    assert ids(findings, "warning") == [
        ("sysctl_read_only", "net.core.rmem_max"),
        ("sysctl_unsupported", "net.core.wmem_max"),
    ]
    assert "Invalid argument" in next(f.evidence for f in findings if f.severity == "error")


def test_sysctl_conf_that_boot_does_not_read_is_one_warning(tmp_path: pathlib.Path) -> None:
    node = kernel_node.build(tmp_path, sysctl_conf_link=False)
    assert ids(judged(observed(node, home="/etc/sysctl.conf"))) == [
        ("sysctl_conf_not_read_at_boot", "/etc/sysctl.conf")
    ]


def test_a_masked_systemd_sysctl_is_one_error(node: pathlib.Path) -> None:
    (node / "etc/systemd/system").mkdir(parents=True)
    (node / "etc/systemd/system/systemd-sysctl.service").symlink_to("/dev/null")
    assert ids(judged(observed(node))) == [("systemd_sysctl_masked", "systemd-sysctl")]


def test_a_foreign_file_of_our_name_is_named(node: pathlib.Path) -> None:
    kernel_node.write(node, DROP_IN, "net.core.rmem_max = 5\n")
    findings = ids(judged(observed(node)), "error")
    assert ("foreign_file", DROP_IN) in findings


def test_a_stricter_all_overrules_an_interface(node: pathlib.Path) -> None:
    (node / "proc/sys/net/ipv4/conf/all/arp_ignore").write_text("2\n")
    (finding,) = judged(observed(node, profile="roce"))
    assert (finding.id, finding.subject) == ("sysctl_overruled", "net.ipv4.conf.rail0.arp_ignore")
    assert "net.ipv4.conf.all.arp_ignore = 2" in finding.evidence


def test_keys_for_rails_that_are_not_there_are_one_warning(node: pathlib.Path) -> None:
    (finding,) = judged(observed(node, profile="roce", interfaces=("auto",)))
    assert (finding.id, finding.severity) == ("no_rdma_interface", "warning")
    assert "net.ipv4.conf.<rdma>.arp_ignore" in finding.evidence


def test_a_missing_file_of_ours_is_one_error_and_not_one_a_key(node: pathlib.Path) -> None:
    observed(node)
    (node / DROP_IN[1:]).unlink()
    assert ids(judged(observed(node, "verify"))) == [("kernel_file_differs", DROP_IN)]


def test_a_node_at_work_is_left_alone_with_one_notice(node: pathlib.Path) -> None:
    (finding,) = judged(observed(node, "verify", held="Slurm job 4711"))
    assert (finding.id, finding.severity) == ("kernel_left_alone", "notice")
    assert "4711" in finding.evidence and "net.core.rmem_max" in finding.evidence
    observed(node)
    assert judged(observed(node, "verify", held="Slurm job 4711")) == []


@pytest.mark.parametrize(
    ("service", "session", "found"),
    [
        (("unlimited", "unlimited"), "unlimited\nunlimited\n", []),
        (("8192", "8192"), "unlimited\nunlimited\n", ["memlock of a systemd service"]),
        (("unlimited", "8192"), "unlimited\nunlimited\n", ["memlock of a systemd service"]),
        (("unlimited", "unlimited"), "unlimited\n64\n", ["memlock of a new SSH session"]),
        (("", ""), "", []),
    ],
)
def test_memlock_is_judged_as_measured(
    node: pathlib.Path, service: tuple[str, str], session: str, found: list[str]
) -> None:
    memlock = {"wanted": "unlimited", "hard": service[0], "soft": service[1], "evidence": "systemd-run"}
    result = observed(node, memlock=memlock, memlock_session={"text": session})
    assert [f.subject for f in judged(result)] == found


def test_a_wanted_number_of_kib_is_enough_from_that_number_on(node: pathlib.Path) -> None:
    memlock = {"wanted": "65536", "hard": "65536", "soft": "65536", "evidence": ""}
    assert judged(observed(node, memlock=memlock)) == []
    assert len(judged(observed(node, memlock={**memlock, "soft": "65535"}))) == 1


def test_the_platform_gets_warnings_and_no_changes(node: pathlib.Path) -> None:
    platform = {
        "iommu": {"0000:02:00.0": "DMA-FQ", "0000:03:00.0": "identity"},
        "acs": ["0000:01:00.0"],
        "acs_unread": [],
        "governors": {"performance": 3, "schedutil": 61},
    }
    findings = judged(observed(node, platform=platform))
    assert ids(findings, "warning") == [
        ("acs_redirects", "PCIe ACS"),
        ("cpu_governor", "CPU frequency"),
        ("iommu_translates", "IOMMU"),
    ]
    assert "0000:03:00.0" not in next(f.evidence for f in findings if f.id == "iommu_translates")
