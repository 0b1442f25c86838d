# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all nodes have alike is said once, and never in the place of what one node has."""

from __future__ import annotations

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.shared_findings import fold_shared


def untuned(node: str, value: str = "212992") -> Finding:
    return Finding(
        "sysctl_differs", "error", node, "net.core.rmem_max", value, "67108864", fix=f"type this --limit {node}"
    )


def test_what_all_have_is_one_warning() -> None:
    folded = fold_shared({untuned("n1"): "kernel", untuned("n2"): "kernel"}, ["n1", "n2"], seeks_faults=True)
    (finding,) = folded
    assert (finding.node, finding.severity, finding.fix) == ("", "warning", "type this")
    assert finding.evidence == "on all 2 nodes: 212992" and folded[finding] == "kernel"


def test_what_not_all_have_stays_with_its_node() -> None:
    findings = {untuned("n1"): "kernel", untuned("n2", "4096"): "kernel"}
    assert fold_shared(findings, ["n1", "n2"], seeks_faults=True) == findings
    assert fold_shared({untuned("n1"): "kernel"}, ["n1", "n2"], seeks_faults=True) == {untuned("n1"): "kernel"}


def test_a_lone_node_and_the_run_itself_stay() -> None:
    assert list(fold_shared({untuned("n1"): "kernel"}, ["n1"], seeks_faults=True)) == [untuned("n1")]
    assert list(fold_shared({untuned(""): "inputs"}, ["n1", "n2"], seeks_faults=True)) == [untuned("")]


def test_a_broken_thing_stays_an_error_even_if_all_have_it() -> None:
    folded = fold_shared({untuned("n1"): "rdma", untuned("n2"): "rdma"}, ["n1", "n2"], seeks_faults=True)
    assert [finding.severity for finding in folded] == ["error"]


def test_a_wish_stays_an_error_where_no_fault_is_sought() -> None:
    folded = fold_shared({untuned("n1"): "kernel", untuned("n2"): "kernel"}, ["n1", "n2"], seeks_faults=False)
    assert [(finding.severity, finding.node) for finding in folded] == [("error", "")]
