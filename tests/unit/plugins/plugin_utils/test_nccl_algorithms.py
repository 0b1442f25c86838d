# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL_ALGO and NCCL_PROTO by release: what they leave without an algorithm, and how to say it right."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nccl_algorithms import (
    FUNCTIONS,
    form_problem,
    left_without,
    right_form,
)

BEFORE, PER_FUNCTION, NAMED_ONLY = (2, 23, 4), (2, 28, 9), (2, 31, 2)
ALL_BUT_ALLREDUCE = [function for function in FUNCTIONS if function != "allreduce"]


@pytest.mark.parametrize(
    ("algo", "lost"),
    [
        ("Tree", ALL_BUT_ALLREDUCE),
        ("tree", ALL_BUT_ALLREDUCE),
        ("^Ring", ALL_BUT_ALLREDUCE),
        ("NVLSTree", list(FUNCTIONS)),
        ("pat", list(FUNCTIONS)),
        ("Ring", []),
        ("Tree,Ring", []),
        ("^Tree", []),
        ("^NVLS,NVLSTree", []),
        ("allreduce:tree", []),
        ("allreduce:tree;broadcast:ring", []),
        ("allgather:pat", ["allgather"]),
        ("ring;allreduce:nvls", ["allreduce"]),
    ],
)
def test_what_is_left_without_an_algorithm(algo: str, lost: list[str]) -> None:
    assert left_without(algo, PER_FUNCTION) == lost


@pytest.mark.parametrize("algo", ["Tree", "NVLS", "^Ring"])
def test_older_releases_fall_back_to_ring(algo: str) -> None:
    assert left_without(algo, BEFORE) == []


def test_named_functions_beside_a_plain_protocol() -> None:
    """From 2.31 the functions that NCCL_ALGO does not name are lost then."""
    assert left_without("allreduce:tree", NAMED_ONLY, "Simple") == ALL_BUT_ALLREDUCE
    assert left_without("allreduce:tree", NAMED_ONLY) == []
    assert left_without("allreduce:tree", NAMED_ONLY, "allreduce:simple") == []
    assert left_without("allreduce:tree", PER_FUNCTION, "Simple") == []
    assert left_without("ring,tree;allreduce:tree", NAMED_ONLY, "Simple") == []


@pytest.mark.parametrize(
    ("algo", "version", "proto", "form"),
    [
        ("Tree", BEFORE, "", "Tree"),
        ("Tree", PER_FUNCTION, "", "allreduce:tree"),
        ("Tree", PER_FUNCTION, "Simple", "allreduce:tree"),
        ("Tree", NAMED_ONLY, "", "allreduce:tree"),
        ("Tree", NAMED_ONLY, "Simple", "ring,tree;allreduce:tree"),
        ("NVLSTree", PER_FUNCTION, "", "allreduce:nvlstree"),
        ("broadcast:ring", PER_FUNCTION, "", "allreduce:tree,ring"),
    ],
)
def test_right_form(algo: str, version: tuple[int, ...], proto: str, form: str) -> None:
    assert right_form(algo, version, proto) == form
    assert left_without(form, version, proto) == ([] if "nvls" not in form else ["allreduce"])


@pytest.mark.parametrize(
    ("grammar", "text", "says"),
    [
        ("algo", "Trea", "trea"),
        ("algo", "", "empty"),
        ("algo", "ring,", "empty"),
        ("algo", "ring tree", "blanks"),
        ("algo", "gather:ring", "gather"),
        ("proto", "ll256", "ll256"),
    ],
)
def test_what_cannot_be_read(grammar: str, text: str, says: str) -> None:
    assert says in form_problem(grammar, text, PER_FUNCTION)


def test_an_algorithm_of_a_later_release_is_named_so() -> None:
    assert "2.23.4" in form_problem("algo", "pat", (2, 22, 3))
