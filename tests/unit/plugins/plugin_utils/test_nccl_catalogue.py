# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue: held to its schema, and to the names that are in the released libraries."""

from __future__ import annotations

import json
import pathlib
import re

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import nccl_value
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import (
    CATALOGUE,
    DATA,
    catalogue_from,
    load_catalogue,
    parse_version,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.validate_env import Rules, validate

ROOT = pathlib.Path(__file__).resolve().parents[4]
TABLE = json.loads((ROOT / "tests/fixtures/nccl_names_by_version.json").read_text())
SCHEMA = json.loads((DATA / "nccl_catalogue.schema.json").read_text())
ABSENT = ("nccl_variable_not_yet", "nccl_variable_removed")


def names_in_library(release: str) -> set[str]:
    version = parse_version(release)
    return {
        name
        for name, stretches in TABLE["names"].items()
        if any(parse_version(first) <= version <= parse_version(last) for first, last in stretches)
    }


def test_it_holds_to_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(CATALOGUE.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"type": "integer"},
        {"defaults": []},
        {"defaults": [{"since": "2.18.1", "value": None}]},
        {"first": "<=2.18"},
        {"meaning": ""},
        {"reach": "everywhere"},
        {"unheard_of": 1},
    ],
)
def test_the_schema_refuses(change: dict[str, object]) -> None:
    data = json.loads(CATALOGUE.read_text())
    data["variables"]["NCCL_DEBUG"].update(change)
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(data))


def test_the_table_holds_twenty_releases_and_the_catalogue_lists_them() -> None:
    assert len(TABLE["releases"]) == 20
    assert tuple(TABLE["releases"]) == load_catalogue().releases
    assert load_catalogue().newest == TABLE["releases"][-1]


@pytest.mark.parametrize("release", TABLE["releases"])
def test_validation_agrees_with_the_library_on_every_name(release: str) -> None:
    """Every name of the catalogue is taken exactly in the releases whose library holds it."""
    known = load_catalogue()
    checked = validate(dict.fromkeys(known.variables), parse_version(release), Rules())
    refused = {finding.subject for finding in checked.findings if finding.id in ABSENT}
    in_library = names_in_library(release)
    assert set(known.variables) - refused == in_library & set(known.variables)
    assert in_library <= set(known.variables), "the library has names that the catalogue lacks"
    assert len(in_library) > 100


@pytest.mark.parametrize("release", TABLE["releases"])
def test_what_never_existed_is_in_no_library(release: str) -> None:
    known = load_catalogue()
    assert not names_in_library(release) & {*known.never_existed, *known.legacy, *known.read_by_others}


def test_every_default_is_a_value_that_the_check_takes() -> None:
    for release in load_catalogue().releases:
        version = parse_version(release)
        for variable in load_catalogue().variables.values():
            default = variable.default(version)[0]
            if default is not None and variable.is_in(version):
                assert nccl_value.check(variable, default, version) is None, (variable.name, release)


def test_replacements_exist() -> None:
    known = load_catalogue()
    newest = parse_version(known.newest)
    named = [name for entry in known.never_existed.values() for name in [*entry["instead"], *entry.get("related", [])]]
    named += [name for entry in known.legacy.values() for name in entry["instead"]]
    named += [variable.replaced_by for variable in known.variables.values() if variable.replaced_by]
    assert named
    for name in named:
        assert known.variables[name].is_in(newest), name


def test_histories_are_in_order() -> None:
    for variable in load_catalogue().variables.values():
        for history in (variable.entry["defaults"], variable.entry.get("limits", [])):
            since = [parse_version(entry["since"]) for entry in history]
            assert since == sorted(set(since)), variable.name


@pytest.mark.parametrize(
    ("name", "version", "default"),
    [
        ("NCCL_IB_TIMEOUT", "2.13.4", "14"),
        ("NCCL_IB_TIMEOUT", "2.22.3", "18"),
        ("NCCL_IB_TIMEOUT", "2.23.4", "20"),
        ("NCCL_IB_GID_INDEX", "2.20.5", "0"),
        ("NCCL_IB_GID_INDEX", "2.21.5", "-1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.19.3", "1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "2.20.5", "0"),
        ("NCCL_GRAPH_REGISTER", "2.18.3", "0"),
        ("NCCL_NSOCKS_PERTHREAD", "2.28.9", None),
    ],
)
def test_default_by_version(name: str, version: str, default: str | None) -> None:
    assert load_catalogue().variables[name].default(parse_version(version))[0] == default


def test_limit_by_version() -> None:
    ctas = load_catalogue().variables["NCCL_MAX_CTAS"]
    assert [ctas.maximum(parse_version(v)) for v in ("2.17.1", "2.24.3", "2.25.1", "2.32.3")] == [32, 32, 64, 64]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("2.28.9", (2, 28, 9)), ("2.28", (2, 28, 0)), ("2.28.9+cuda12.9", (2, 28, 9)), ("v2.30.7-1", (2, 30, 7))],
)
def test_versions(text: str, parsed: tuple[int, ...]) -> None:
    assert parse_version(text) == parsed


@pytest.mark.parametrize("text", ["", "two", "2", "22809", "2.x"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_version(text)


def test_readers_of_foreign_names() -> None:
    known = load_catalogue()
    assert known.reader_of("NCCL_TESTS_DEVICE") == ("nccl-tests", [])
    assert known.reader_of("NCCL_ASYNC_ERROR_HANDLING") == ("PyTorch before 2.2", ["TORCH_NCCL_ASYNC_ERROR_HANDLING"])
    reader = known.reader_of("NCCL_FASTRAK_IFNAME")
    assert reader and "FasTrak" in reader[0]
    assert known.reader_of("NCCL_IB_HCA") is None
    assert known.reader_of("NCCL_NOTHING") is None


def test_the_role_knows_the_newest_release() -> None:
    variables = yaml.safe_load((ROOT / "roles/nccl_env/vars/main.yml").read_text())
    assert str(variables["__nccl_env_catalogue_version"]) == load_catalogue().newest


def test_another_catalogue_can_be_used() -> None:
    data = json.loads(CATALOGUE.read_text())
    data["newest"] = "2.20.5"
    assert catalogue_from(data).newest == "2.20.5"
