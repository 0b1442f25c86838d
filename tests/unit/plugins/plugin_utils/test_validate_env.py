# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's variables against one NCCL release."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue, parse_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_names import shown
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import Rules, Validated, validate


def checked(values: dict[str, t.Any], version: str = "2.28.9", **rules: t.Any) -> Validated:
    return validate(values, parse_version(version), Rules(**rules))


def only(result: Validated) -> Finding:
    (finding,) = result.findings
    return finding


NEVER = {
    "NCCL_NCHANNELS": ["NCCL_MIN_CTAS", "NCCL_MAX_CTAS"],
    "NCCL_IB_QP_SCALING_THRESHOLD": ["NCCL_IB_SPLIT_DATA_ON_QPS"],
    "NCCL_IB_REG_MR_ENABLE": ["nothing does this"],
    "NCCL_IB_REG_MR_THRESHOLD": ["nothing does this"],
    "NCCL_IB_ALIGNMENT": ["nothing does this"],
}


@pytest.mark.parametrize("version", load_catalogue().releases)
@pytest.mark.parametrize("name", NEVER)
def test_what_guides_invent(name: str, version: str) -> None:
    result = checked({name: 32}, version)
    finding = only(result)
    assert finding.id == "nccl_variable_never_existed" and finding.severity == "error"
    assert all(word in finding.expected for word in NEVER[name])
    assert result.kept == {} and result.dropped[0][:2] == (name, "32")


@pytest.mark.parametrize(
    ("name", "version", "kind", "says"),
    [
        ("NCCL_CTA_POLICY", "2.26.2", "nccl_variable_not_yet", "2.27"),
        ("NCCL_WORK_FIFO_DEPTH", "2.28.9", "nccl_variable_removed", "NCCL_WORK_FIFO_BYTES"),
        ("NCCL_MNNVL", "2.21.5", "nccl_variable_removed", "NCCL_MNNVL_ENABLE"),
        ("NCCL_IB_CUDA_SUPPORT", "2.28.9", "nccl_variable_removed", "NCCL_NET_GDR_LEVEL"),
        ("NCCL_TREE_THRESHOLD", "2.28.9", "nccl_variable_removed", "NCCL_ALGO"),
        ("NCCL_TESTS_DEVICE", "2.28.9", "nccl_variable_of_others", "nccl-tests"),
        ("NCCL_BLOCKING_WAIT", "2.28.9", "nccl_variable_of_others", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_HCA", "2.28.9", "nccl_variable_unknown", "NCCL_IB_HCA"),
        ("nccl_debug", "2.28.9", "nccl_variable_unknown", "NCCL_DEBUG"),
        ("NCCL_COMPLETELY_DIFFERENT_THING", "2.28.9", "nccl_variable_unknown", "docs/nccl_variables.md"),
        ("UCX_TLS", "2.28.9", "nccl_variable_unknown", "no variable of NCCL"),
        ("NCCL-DEBUG", "2.28.9", "nccl_name_invalid", "NCCL_DEBUG"),
        ("NCCL_DEBUG=1", "2.28.9", "nccl_name_invalid", "NCCL_DEBUG"),
        ("", "2.28.9", "nccl_name_invalid", "letters"),
        ("NCCL_DEBUG\nX", "2.28.9", "nccl_name_invalid", "NCCL_DEBUG"),
    ],
)
def test_wrong_names(name: str, version: str, kind: str, says: str) -> None:
    result = checked({name: "1"}, version)
    finding = only(result)
    assert finding.id == kind
    assert says in f"{finding.evidence} {finding.expected} {finding.fix}"
    assert result.kept == {}
    assert all("\n" not in text for text in finding.as_dict().values())


def test_mode_decides_how_bad_it_is() -> None:
    for values in ({"NCCL_HCA": 1}, {"NCCL_NCHANNELS": 1}, {"NCCL_IB_TIMEOUT": 99}, {"NCCL-X": 1}):
        assert only(checked(values)).severity == "error"
        assert only(checked(values, mode="warn")).severity == "warning"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "nccl_value_type"),
        ("yes", "nccl_value_type"),
        ("1M", "nccl_value_type"),
        ('"1048576"', "nccl_value_type"),
        ("010", "nccl_value_type"),
        ([1, 2], "nccl_value_type"),
        ({"a": 1}, "nccl_value_type"),
        (0, "nccl_value_range"),
        ("1\n2", "nccl_value_unsafe"),
        ("$(reboot)", "nccl_value_unsafe"),
        ("１", "nccl_value_unsafe"),
        ("9" * 2048, "nccl_value_unsafe"),
    ],
)
def test_wrong_values(value: object, kind: str) -> None:
    result = checked({"NCCL_BUFFSIZE": value, "NCCL_DEBUG": "WARN"})
    finding = only(result)
    assert (finding.id, finding.severity, finding.subject) == (kind, "error", "NCCL_BUFFSIZE")
    assert result.kept == {"NCCL_DEBUG": "WARN"}
    assert len(finding.evidence) < 400


@pytest.mark.parametrize(
    ("values", "version", "no_op"),
    [
        ({"NCCL_IB_DISABLE": 0}, "2.28.9", True),
        ({"NCCL_IB_RETRY_CNT": "7"}, "2.28.9", True),
        ({"NCCL_IB_RETRY_CNT": "0x7"}, "2.28.9", True),
        ({"NCCL_IB_TIMEOUT": 20}, "2.28.9", True),
        ({"NCCL_IB_TIMEOUT": 20}, "2.22.3", False),
        ({"NCCL_IB_TIMEOUT": 18}, "2.22.3", True),
        ({"NCCL_BUFFSIZE": 4194304}, "2.28.9", True),
        ({"NCCL_NETDEVS_POLICY": "auto"}, "2.28.9", True),
        ({"NCCL_DEBUG": ""}, "2.28.9", True),
        ({"NCCL_NSOCKS_PERTHREAD": 1}, "2.28.9", False),
    ],
)
def test_no_ops(values: dict[str, t.Any], version: str, no_op: bool) -> None:
    result = checked(values, version, production=False)
    assert [f.id for f in result.findings if f.id == "nccl_no_op"] == ["nccl_no_op"] * no_op
    assert bool(result.kept) != no_op
    assert all(f.severity == "notice" for f in result.findings if f.id == "nccl_no_op")


def test_algo_that_breaks_collectives_is_dropped_with_the_right_form() -> None:
    result = checked({"NCCL_ALGO": "Tree"})
    finding = only(result)
    assert (finding.id, finding.severity) == ("nccl_breaks_collectives", "warning")
    assert "allreduce:tree" in finding.expected and "allgather" in finding.evidence
    assert result.kept == {}


def test_the_right_form_follows_release_and_protocol() -> None:
    values = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}
    forms = {v: checked(values, v).findings[0].expected for v in ("2.23.4", "2.28.9", "2.31.2")}
    assert "NCCL_ALGO=Tree" in forms["2.23.4"]
    assert "NCCL_ALGO=allreduce:tree" in forms["2.28.9"]
    assert "NCCL_ALGO=ring,tree;allreduce:tree" in forms["2.31.2"]


def test_tuner_settings_are_written_only_when_asked_for() -> None:
    values = {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "Simple"}
    assert checked(values).kept == {}
    kept = checked(values, keep_debug=True)
    assert kept.kept == values
    assert {f.id for f in kept.findings} == {"nccl_debug_only"}


def test_a_debug_profile_takes_debug_settings_but_none_that_break_a_job() -> None:
    result = checked({"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": 8388608}, production=False)
    assert set(result.kept) == {"NCCL_PROTO", "NCCL_BUFFSIZE"}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("NCCL_BUFFSIZE", 1048576, "nccl_debug_only"),
        ("NCCL_IB_QPS_PER_CONNECTION", 4, "nccl_debug_only"),
        ("NCCL_GDR_FLUSH_DISABLE", 1, "nccl_dangerous"),
        ("NCCL_CHUNK_SIZE", 4096, "nccl_undocumented"),
        ("NCCL_IB_MERGE_VFS", 0, "nccl_undocumented"),
        ("NCCL_MIN_NCHANNELS", 4, "nccl_deprecated"),
        ("NCCL_DEBUG", "INFO", "nccl_logging_in_production"),
        ("NCCL_DEBUG_SUBSYS", "INIT,COLL", "nccl_logging_in_production"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.log", "nccl_logging_in_production"),
    ],
)
def test_what_is_written_with_a_warning(name: str, value: object, kind: str) -> None:
    result = checked({name: value})
    assert (only(result).id, only(result).severity) == (kind, "warning")
    assert result.kept == {name: str(value)}


def test_a_log_file_for_each_rank_is_no_fault() -> None:
    assert checked({"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}).findings == []


def test_null_unsets() -> None:
    result = checked({"NCCL_IB_TIMEOUT": None})
    assert result.removed == ["NCCL_IB_TIMEOUT"] and result.kept == {} and result.findings == []


def test_a_library_newer_than_the_catalogue() -> None:
    names = frozenset({"NCCL_DEBUG", "NCCL_BRAND_NEW"})
    result = checked({"NCCL_BRAND_NEW": 1, "NCCL_DEBUG": "WARN"}, "9.9.9", library_names=names)
    assert result.kept == {"NCCL_BRAND_NEW": "1", "NCCL_DEBUG": "WARN"}
    assert (only(result).id, only(result).severity) == ("nccl_variable_newer", "warning")
    unsafe = checked({"NCCL_BRAND_NEW": "$(id)"}, "9.9.9", library_names=names)
    assert unsafe.kept == {} and only(unsafe).id == "nccl_value_unsafe"


def test_an_unknown_name_in_a_newer_release_cannot_be_told_wrong() -> None:
    assert only(checked({"NCCL_BRAND_NEW": 1}, "9.9.9")).severity == "warning"
    assert only(checked({"NCCL_BRAND_NEW": 1}, "9.9.9", library_names=frozenset({"NCCL_DEBUG"}))).severity == "error"


@pytest.mark.parametrize("value", ["a\nb", "ü", "x" * 500, [1], None, True])
def test_what_is_shown_fits_a_sentence(value: object) -> None:
    text = shown(value)
    assert text.isascii() and text.isprintable() and len(text) <= 80
