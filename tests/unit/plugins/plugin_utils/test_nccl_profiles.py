# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: their data, and how they lie over one another."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_value
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue, parse_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_profiles import (
    Transport,
    chosen,
    compose,
    load_profiles,
    profiles_from,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_profile import _RESOLVERS
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE

PROFILES = load_profiles()
ROCE, IB, TCP = frozenset({"roce"}), frozenset({"ib"}), frozenset({"socket"})


def test_the_profiles_that_there_are() -> None:
    assert set(PROFILES) == {"guide", "infiniband", "roce", "tcp", "lora", "debug"}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_setting_is_one_that_nccl_takes(name: str) -> None:
    known = load_catalogue()
    newest = parse_version(known.newest)
    for setting in PROFILES[name].settings:
        assert setting.reason
        assert bool(setting.value) + bool(setting.source) + setting.leave == 1, setting.name
        assert setting.source in ("", *_RESOLVERS)
        if setting.value:
            variable = known.variables[setting.name]
            assert nccl_value.check(variable, setting.value, newest) is None
            assert setting.value != variable.default(newest)[0], f"{setting.name} is the default"


def test_the_guide_says_something_about_each_of_its_settings() -> None:
    assert {setting.name for setting in PROFILES["guide"].settings} >= set(GUIDE)


@pytest.mark.parametrize(
    ("transport", "has", "has_not"),
    [
        (ROCE, {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_QPS_PER_CONNECTION"}, {"NCCL_SOCKET_NTHREADS"}),
        (IB, {"NCCL_IB_HCA", "NCCL_IB_TIMEOUT"}, {"NCCL_IB_GID_INDEX", "NCCL_NSOCKS_PERTHREAD"}),
        (TCP, {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}, {"NCCL_IB_HCA", "NCCL_IB_TIMEOUT"}),
        (frozenset({"ib", "roce"}), {"NCCL_IB_HCA", "NCCL_IB_TC"}, {"NCCL_SOCKET_NTHREADS"}),
        (None, {"NCCL_IB_HCA", "NCCL_SOCKET_NTHREADS"}, set()),
    ],
)
def test_the_guide_by_transport(transport: Transport, has: set[str], has_not: set[str]) -> None:
    wanted, findings = compose([PROFILES["guide"]], transport)
    assert has <= set(wanted) and not has_not & set(wanted) and not findings


@pytest.mark.parametrize(("name", "likely"), [("guid", "guide"), ("rocee", "roce"), ("production", ""), ("", "")])
def test_a_profile_that_does_not_exist(name: str, likely: str) -> None:
    profiles, (finding,) = chosen([name], PROFILES)
    assert profiles == [] and finding.id == "nccl_profile_unknown" and finding.severity == "error"
    assert repr(name) in finding.evidence
    assert finding.expected.startswith(likely)
    assert likely or finding.expected.startswith("one of")


def test_two_profiles_for_different_transports() -> None:
    _profiles, (finding,) = chosen(["tcp", "infiniband"], PROFILES)
    assert (finding.id, finding.severity) == ("nccl_profiles_disagree", "error")
    assert "tcp and infiniband" in finding.evidence


@pytest.mark.parametrize("names", [["guide", "lora"], ["roce", "debug"], ["tcp", "lora", "debug"], ["lora"], []])
def test_profiles_that_go_together(names: list[str]) -> None:
    profiles, findings = chosen(names, PROFILES)
    assert [profile.name for profile in profiles] == names and findings == []
    assert compose(profiles, ROCE)[1] == []


def test_overlays_win_in_any_order() -> None:
    for names in (["roce", "lora", "debug"], ["debug", "lora", "roce"]):
        wanted, _ = compose([PROFILES[name] for name in names], ROCE)
        assert wanted["NCCL_DEBUG"].value == "INFO"
        assert wanted["NCCL_IB_QPS_PER_CONNECTION"].leave
        assert wanted["NCCL_IB_TIMEOUT"].value == "22"


def test_two_base_profiles_that_disagree_are_named_and_the_later_one_counts() -> None:
    made = {
        name: {
            "summary": name,
            "layer": "base",
            "production": True,
            "settings": [{"name": "NCCL_IB_TIMEOUT", "value": value, "when": "always", "reason": "r"}],
        }
        for name, value in (("one", "21"), ("two", "22"), ("three", "22"))
    }
    profiles = profiles_from(made)
    wanted, (finding,) = compose([profiles["one"], profiles["two"]], IB)
    assert wanted["NCCL_IB_TIMEOUT"].value == "22"
    assert "one wants 21, two wants 22" in finding.evidence and finding.severity == "warning"
    assert compose([profiles["two"], profiles["three"]], IB)[1] == []
