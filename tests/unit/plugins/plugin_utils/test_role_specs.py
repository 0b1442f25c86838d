# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and types of a user's variables, held against the roles' specifications."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import role_specs

SPECS = role_specs.Specs(
    options={
        "rdma": {
            "rdma_expected_hcas": {"type": "int", "description": "x"},
            "rdma_drivers": {"type": "list", "elements": "str", "choices": ["mlx5_core", "rdma_rxe"]},
        },
        "rdma_deep": {"rdma_deep_level": {"type": "str", "required": True}},
    },
    shared=frozenset({"gpufabric_gate"}),
)


@pytest.mark.parametrize(
    "name", ["rdma_expected_hcas", "rdma_deep_level", "gpufabric_gate", "user_thing", "rdmax_hcas"]
)
def test_right_and_foreign_names_pass(name: str) -> None:
    assert role_specs.name_finding(name, "n1", SPECS) is None


@pytest.mark.parametrize(
    ("name", "severity", "nearest"),
    [
        ("rdma_expected_hca", "error", "rdma_expected_hcas"),
        ("rdma_driver", "error", "rdma_drivers"),
        ("gpufabric_gates", "error", "gpufabric_gate"),
        ("rdma_deep_levle", "error", "rdma_deep_level"),
        ("rdma_core_package_of_ours", "warning", ""),
    ],
)
def test_wrong_names_get_their_neighbour(name: str, severity: str, nearest: str) -> None:
    finding = role_specs.name_finding(name, "n1", SPECS)
    assert finding is not None and (finding.severity, finding.subject, finding.node) == (severity, name, "n1")
    assert nearest in finding.fix


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nccl_test_min_bytes", "nccl_tests_min_bytes"),
        ("kernel_tunning_profile", "kernel_tuning_profile"),
        ("gpu_fabric_nodes", "gpufabric_nodes"),
    ],
)
def test_names_that_begin_wrongly_get_a_warning(name: str, meant: str) -> None:
    finding = role_specs.elsewhere_finding(name, "n1")
    assert finding is not None and (finding.severity, finding.subject) == ("warning", name)
    assert finding.expected == f"{meant}, probably"


@pytest.mark.parametrize("name", ["ansible_host", "ansible_user", "nccl_version", "mpi_home", "fabric", "site_nodes"])
def test_names_of_others_are_theirs(name: str) -> None:
    assert role_specs.elsewhere_finding(name, "n1") is None


@pytest.mark.parametrize("value", [8, "8"])
def test_values_that_ansible_would_convert_pass(value: t.Any) -> None:
    assert role_specs.type_finding("rdma_expected_hcas", value, "n1", SPECS) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rdma_expected_hcas", "eight"),
        ("rdma_expected_hcas", {"a": 1}),
        ("rdma_drivers", ["bnxt_re"]),
        ("rdma_drivers", 5.5),
    ],
)
def test_wrong_values_are_shown_with_what_was_expected(name: str, value: t.Any) -> None:
    finding = role_specs.type_finding(name, value, "n2", SPECS)
    assert finding is not None and finding.severity == "error" and name in finding.evidence and finding.expected


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("gpufabric_gate", "ture", "no"),
        ("gpufabric_busy", "Ignore", "ignore"),
        ("gpufabric_lock", "brake", "break"),
        ("gpufabric_become", "nein", False),
        ("gpufabric_control_port", "ssh", "2222"),
        ("gpufabric_rack", None, 7),
    ],
)
def test_a_shared_knob_takes_what_its_roles_take(name: str, wrong: t.Any, right: t.Any) -> None:
    specs = role_specs.load_specs()
    assert role_specs.type_finding(name, right, "n1", specs) is None
    if wrong is not None:
        finding = role_specs.type_finding(name, wrong, "n1", specs)
        assert finding is not None and finding.subject == name and specs.twins[name] in finding.fix


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("nccl_tests_tolerated_share", 90, "a share from 0 to 1"),
        ("nccl_tests_tolerated_share", "-0.1", "a share from 0 to 1"),
        ("isolate_noise", "nan", "a share from 0 to 1"),
        ("nccl_tests_repeats", -1, "not negative"),
        ("diagnose_budget_s", "-5", "not negative"),
        ("rdma_expected_rate_gbps", float("inf"), "not negative"),
        ("lora_workload_lora_ranks", [8, -8], "not negative"),
        ("gpufabric_control_port", "-22", "not negative"),
    ],
)
def test_a_number_that_can_mean_nothing_is_out_of_range(name: str, value: t.Any, expected: str) -> None:
    finding = role_specs.type_finding(name, value, "n1", role_specs.load_specs())
    assert finding is not None and (finding.id, finding.subject) == ("out_of_range", name)
    assert expected in finding.expected


def test_shares_are_variables_and_defaults_are_in_range() -> None:
    import yaml

    specs = role_specs.load_specs()
    options = {name: role for role, names in specs.options.items() for name in names}
    assert set(options) >= role_specs.SHARES
    for role in specs.options:
        defaults = yaml.safe_load((role_specs.COLLECTION / "roles" / role / "defaults/main.yml").read_text()) or {}
        plain = {name: value for name, value in defaults.items() if "{{" not in str(value)}
        assert [role_specs.type_finding(name, value, "n1", specs) for name, value in plain.items()] == [None] * len(
            plain
        )


@pytest.mark.parametrize(
    ("role", "given", "taken"),
    [
        (
            "nccl_tests",
            {"collectives": "all_reduce,all_gather", "stages": "cluster", "repeats": "3", "trust": "run"},
            {"collectives": ["all_reduce", "all_gather"], "stages": ["cluster"], "repeats": 3, "trust": "run"},
        ),
        ("autotune", {"sizes": "64M", "minutes": "5"}, {"sizes": ["64M"], "minutes": 5.0}),
        ("lora_workload", {"strategies": "ddp", "lora_ranks": "8"}, {"strategies": ["ddp"], "lora_ranks": [8]}),
    ],
)
def test_texts_of_extra_variables_become_what_a_role_takes(
    role: str, given: dict[str, t.Any], taken: dict[str, t.Any]
) -> None:
    """-e nccl_tests_collectives=all_reduce is one collective, and not ten letters."""
    assert role_specs.coerced_settings(role, given) == taken


def test_every_shared_knob_but_those_of_a_play_is_held_against_a_specification() -> None:
    """Ansible itself reads what `serial` says."""
    specs = role_specs.load_specs()
    assert specs.shared - set(specs.twins) == {"gpufabric_serial"}


def test_one_extra_variable_gives_one_finding() -> None:
    findings = [role_specs.name_finding("rdma_driver", node, SPECS) for node in ("n1", "n2")]
    merged = role_specs.merge_common([f for f in findings if f], ["n1", "n2"])
    assert [f.node for f in merged] == [""]
    assert [f.node for f in role_specs.merge_common(merged[:0] + [f for f in findings[:1] if f], ["n1", "n2"])] == [
        "n1"
    ]


def test_the_collections_own_specs_hold_its_defaults() -> None:
    """defaults/main.yml and meta/argument_specs.yml of each role name the same variables."""
    import yaml

    specs = role_specs.load_specs()
    assert {"inputs", "node_facts", "fabric_report"} <= set(specs.options)
    for role, options in specs.options.items():
        defaults = yaml.safe_load((role_specs.COLLECTION / "roles" / role / "defaults/main.yml").read_text()) or {}
        optional = {name for name, option in options.items() if "default" in option or not option.get("required")}
        assert set(defaults) <= set(options), f"{role}: defaults without a spec"
        with_default = {name for name in optional if "default" in options[name]}
        assert with_default <= set(defaults), f"{role}: a spec states a default that defaults/main.yml lacks"
        assert all(name.startswith(f"{role}_") for name in options), role
