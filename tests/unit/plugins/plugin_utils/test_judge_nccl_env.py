# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether what was resolved reaches the ranks, and what stands in its way by name."""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_nccl_env import judge_nccl_env

Observed = dict[str, t.Any]
RESOLVED = {
    "NCCL_DEBUG": ("WARN", "uniform"),
    "NCCL_IB_HCA": ("=mlx5_0:1", "node"),
    "NCCL_IB_TIMEOUT": ("22", "uniform"),
}


def seen(**values: tuple[str, str]) -> Observed:
    """What one way ends up with: the resolved values, from nccl.conf, and *values* as (value, source) over them."""
    effective = {name: {"value": value, "source": "/etc/nccl.conf"} for name, (value, _scope) in RESOLVED.items()}
    effective.update({name: {"value": value, "source": source} for name, (value, source) in values.items()})
    return {"environment": {}, "effective": effective, "problem": ""}


def node(**changes: t.Any) -> Observed:
    observed: Observed = {
        "library": {"path": "/usr/lib/libnccl.so.2", "version": "2.28.9"},
        "libraries": [],
        "user": "ops",
        "home": "/home/ops",
        "ways": {way: seen() for way in ("login", "ssh", "mpirun", "systemd")},
        "conf": {"exists": True, "ours": True, "lines": []},
        "site": {"present": False, "adopted": False, "variables": {}},
        "user_files": [],
        "settings": [],
        "writers": [],
        "asked": None,
        "resolved": {
            "writable": True,
            "findings": [],
            "variables": [
                {"name": n, "value": v, "origin": "profile guide", "reason": "", "scope": s}
                for n, (v, s) in RESOLVED.items()
            ],
        },
        "written": {"outcomes": [{"path": "/etc/nccl.conf", "status": "unchanged"}]},
        "check_mode": False,
        "problems": [],
    }
    observed.update(copy.deepcopy(changes))
    return observed


def judged(**changes: t.Any) -> list[Finding]:
    return judge_nccl_env({"n1": {"observed": node(**changes)}}, {})


def only(**changes: t.Any) -> Finding:
    (finding,) = judged(**changes)
    return finding


def test_a_node_where_all_arrives() -> None:
    assert judged() == []


def ways(**values: tuple[str, str]) -> dict[str, Observed]:
    return {"login": seen(), "ssh": seen(**values), "mpirun": seen(**values)}


def test_a_value_that_another_source_overrides() -> None:
    finding = only(ways=ways(NCCL_IB_TIMEOUT=("18", "environment")))
    assert (finding.id, finding.severity, finding.subject) == ("nccl_env_overridden", "error", "NCCL_IB_TIMEOUT")
    assert "a command over SSH and a rank of mpirun has NCCL_IB_TIMEOUT=18" in finding.evidence
    assert finding.expected == "NCCL_IB_TIMEOUT=22"


def test_the_file_that_exports_it_is_named() -> None:
    line = {"path": "/etc/profile.d/old.sh", "kind": "login shell", "line": 4, "name": "NCCL_IB_TIMEOUT", "value": "18"}
    found = judged(ways=ways(NCCL_IB_TIMEOUT=("18", "environment")), settings=[line])
    assert {f.id for f in found} == {"nccl_env_overridden", "nccl_set_elsewhere"}
    assert all("/etc/profile.d/old.sh line 4" in f.evidence for f in found)


def test_a_variable_that_nobody_resolved() -> None:
    finding = only(ways=ways(NCCL_ALGO=("Tree", "environment")))
    assert (finding.id, finding.severity, finding.subject) == ("nccl_env_extra", "warning", "NCCL_ALGO")


def test_a_variable_that_does_not_arrive() -> None:
    lost = seen()
    del lost["effective"]["NCCL_IB_HCA"]
    finding = only(ways={"login": seen(), "ssh": lost})
    assert (finding.id, finding.severity) == ("nccl_env_not_seen", "error")
    assert finding.evidence == "a command over SSH does not see NCCL_IB_HCA"


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"check_mode": True, "written": {"outcomes": [{"path": "/etc/nccl.conf", "status": "written"}]}}, set()),
        ({"written": {"skipped": True}}, set()),
        ({"written": {"failed": True, "msg": "Read-only\nfile system"}}, {"nccl_files_not_written"}),
    ],
)
def test_nothing_is_missed_that_was_never_written(changes: Observed, ids: set[str]) -> None:
    empty = {"environment": {}, "effective": {}, "problem": ""}
    assert {f.id for f in judged(ways={"login": empty}, **changes)} == ids


def test_verify_finds_what_was_removed() -> None:
    empty = {"environment": {}, "effective": {}, "problem": ""}
    found = judged(ways={"login": empty}, written={})
    assert [f.id for f in found] == ["nccl_env_not_seen"] * 3


def test_errors_of_the_resolution_are_told_and_so_is_that_nothing_was_written() -> None:
    error = Finding("nccl_variable_unknown", "error", "", "NCCL_HCA", "no such variable")
    resolved = {**node()["resolved"], "writable": False, "findings": [error.as_dict()]}
    found = judge_nccl_env({n: {"observed": node(resolved=resolved)} for n in ("n1", "n2")}, {})
    assert [(f.id, f.node) for f in found] == [
        ("nccl_variable_unknown", ""),
        ("nccl_env_not_written", "n1"),
        ("nccl_env_not_written", "n2"),
    ]


def test_a_vendors_file_in_the_way() -> None:
    only_login = seen()
    del only_login["effective"]["NCCL_IB_HCA"]
    nothing = {"environment": {}, "effective": {}, "problem": ""}
    finding = only(
        written={"outcomes": [{"path": "/etc/nccl.conf", "status": "foreign"}]},
        conf={"exists": True, "ours": False, "lines": []},
        ways={"login": only_login, "ssh": nothing},
    )
    assert (finding.id, finding.severity) == ("nccl_file_foreign", "warning")
    assert "NCCL_IB_HCA" in finding.evidence and "nccl_env_adopt" in finding.fix


def test_a_key_that_was_not_taken_over() -> None:
    finding = only(site={"present": True, "adopted": True, "variables": {}, "secret": True})
    assert (finding.id, finding.severity) == ("nccl_secret_left_out", "error")


def test_a_planted_user_file_is_named() -> None:
    file = {"path": "/home/ops/.nccl.conf", "variables": {"NCCL_IB_TIMEOUT": "18", "NCCL_NET": "Socket"}}
    finding = only(user_files=[file])
    assert (finding.id, finding.severity, finding.subject) == ("nccl_user_conf", "error", "/home/ops/.nccl.conf")
    assert "against the resolved NCCL_IB_TIMEOUT=22" in finding.evidence
    other = only(user_files=[{**file, "path": "/home/eve/.nccl.conf"}])
    assert other.severity == "warning"


def test_nccl_conf_file_in_the_environment() -> None:
    way = seen()
    way["environment"] = {"NCCL_CONF_FILE": "/job/x"}
    finding = only(ways={"login": way, "ssh": way})
    assert (finding.id, finding.evidence) == ("nccl_conf_file_set", "a login shell has NCCL_CONF_FILE=/job/x")


def test_a_script_that_writes_the_file_again() -> None:
    finding = only(writers=[{"path": "/etc/rc.local", "line": 3, "text": "echo > /etc/nccl.conf"}])
    assert finding.id == "nccl_conf_rewritten" and "/etc/rc.local line 3" in finding.evidence


@pytest.mark.parametrize(("value", "severity"), [("22", "notice"), ("18", "warning")])
def test_another_place_that_sets_a_variable(value: str, severity: str) -> None:
    line = {"path": "/etc/environment", "kind": "PAM", "line": 1, "name": "NCCL_IB_TIMEOUT", "value": value}
    assert (only(settings=[line]).id, only(settings=[line]).severity) == ("nccl_set_elsewhere", severity)


def test_odd_lines_of_a_foreign_file() -> None:
    line = {"number": 2, "name": "NCCL_A ", "value": " 1", "oddity": "the blank before = belongs to the name"}
    finding = only(conf={"exists": True, "ours": False, "lines": [line]})
    assert finding.id == "nccl_conf_line_odd" and finding.subject == "/etc/nccl.conf line 2"


def library(version: str, path: str) -> Observed:
    return {"version": version, "path": path, "source": "wheel", "real_path": path, "cuda": "", "problem": ""}


def test_two_libraries_of_different_versions() -> None:
    finding = only(libraries=[library("2.28.9", "/a"), library("2.26.2", "/b"), library("2.26.2", "/c")])
    assert finding.id == "nccl_libraries_differ" and "2.26.2: /b (wheel), /c (wheel)" in finding.evidence
    assert judged(libraries=[library("2.28.9", "/a"), library("2.28.9", "/b")]) == []


def asked(**changes: t.Any) -> Observed:
    values = {name: value for name, (value, _scope) in RESOLVED.items() if name != "NCCL_DEBUG"}
    return {"seen": values, "logged": {}, "warnings": [], "problem": "", **changes}


def test_a_library_that_has_it_all() -> None:
    assert judged(asked=asked()) == []


def test_a_library_that_lacks_one() -> None:
    finding = only(asked=asked(seen={"NCCL_IB_HCA": "=mlx5_0:1"}))
    assert finding.id == "nccl_env_not_seen" and finding.evidence == "the library itself does not see NCCL_IB_TIMEOUT"


def test_a_library_that_logs_another_value_or_warns() -> None:
    found = judged(asked=asked(logged={"NCCL_IB_TIMEOUT": "18"}, warnings=["Bootstrap : no socket interface found"]))
    assert [(f.id, f.severity) for f in found] == [("nccl_seen_differs", "error"), ("nccl_library_warns", "error")]


def test_a_way_that_could_not_be_tried_is_a_notice() -> None:
    untried = {"environment": {}, "effective": {}, "problem": "mpirun is not installed"}
    finding = only(ways={"login": seen(), "mpirun": untried})
    assert (finding.id, finding.severity) == ("nccl_env_way_untried", "notice")


def test_what_could_not_be_read_is_a_notice() -> None:
    finding = only(problems=[{"id": "user_unknown", "subject": "eve", "evidence": "there is no account eve"}])
    assert (finding.id, finding.severity, finding.node) == ("user_unknown", "notice", "n1")


def test_a_node_that_was_never_resolved() -> None:
    assert judged(resolved={}, written={}, ways={}) == []


def test_the_same_on_many_nodes_is_told_once() -> None:
    writers = [{"path": "/etc/rc.local", "line": 3, "text": "echo > /etc/nccl.conf"}]
    (finding,) = judge_nccl_env({f"n{i}": {"observed": node(writers=writers)} for i in range(20)}, {})
    assert finding.node == "" and finding.evidence.endswith("(on n0, n1, n2, n3, n4, n5, n6, n7 and 12 more)")
    few = judge_nccl_env({f"n{i}": {"observed": node(writers=writers)} for i in range(2)}, {})
    assert [f.node for f in few] == ["n0", "n1"]


def test_every_finding_says_what_to_do() -> None:
    line = {"path": "/etc/environment", "kind": "PAM", "line": 1, "name": "NCCL_A", "value": "1"}
    found = judged(
        ways=ways(NCCL_ALGO=("Tree", "environment")),
        settings=[line],
        user_files=[{"path": "/root/.nccl.conf", "variables": {}}],
        writers=[{"path": "/x", "line": 1, "text": "x"}],
        libraries=[library("2.28.9", "/a"), library("2.26.2", "/b")],
    )
    assert len(found) == 5 and all(f.fix and f.expected and f.evidence for f in found)
