# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of kernel_tuning: wishes that cannot be meant become a sentence, and results that are no answer a finding."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.filter.kernel_tuning import FilterModule

settings = FilterModule().filters()["sysctl_settings"]
findings = FilterModule().filters()["kernel_findings"]


def test_settings_of_a_profile_and_no_problem() -> None:
    found = settings("guide", {"net.core.somaxconn": None})
    assert found["problem"] == "" and len(found["settings"]) == 8


@pytest.mark.parametrize(
    "wishes",
    [{"overrides": {"net.ipv4.tcp_sack": True}}, {"link_gbps": 100.0}, {"overrides": {"x": 1}}, {"qdisc": " "}],
)
def test_what_cannot_be_meant_is_returned_and_not_raised(wishes: dict[str, t.Any]) -> None:
    found = settings("guide", **wishes)
    assert found["settings"] == [] and "kernel_tuning_" in found["problem"]


def test_a_result_that_is_no_answer_is_an_error() -> None:
    (finding,) = findings({"node1": {"failed": True, "msg": "no Python"}})
    assert (finding["severity"], finding["node"]) == ("error", "node1") and "no Python" in finding["evidence"]
