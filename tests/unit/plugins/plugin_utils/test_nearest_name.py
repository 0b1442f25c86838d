# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Misspelt names find their neighbour, whatever was done to them."""

from __future__ import annotations

import random
import string

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.catalogue import load_catalogue
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.nearest_name import edit_distance, nearest_names

NAMES = sorted(load_catalogue().variables)


def mutated(name: str, kind: str, source: random.Random) -> str:
    letters = list(name)
    place = source.randrange(5, len(letters) - 1)
    if kind == "lost":
        del letters[place]
    elif kind == "swapped":
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    elif kind == "other":
        letters[place] = source.choice(string.ascii_uppercase)
    else:
        letters.insert(place, letters[place])
    return "".join(letters)


@pytest.mark.parametrize("kind", ["lost", "swapped", "other", "doubled"])
def test_one_mutation_of_every_name_leads_back_to_it(kind: str) -> None:
    source = random.Random(kind)
    wrong = []
    for name in NAMES:
        changed = mutated(name, kind, source)
        if changed in NAMES:
            continue
        found = nearest_names(changed, NAMES)
        ties = [other for other in NAMES if edit_distance(changed, other, 1) <= 1]
        if not found or (found[0] != name and found[0] not in ties):
            wrong.append((changed, name, found))
    assert not wrong


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG_SUBSYS"])
def test_case_dashes_and_blanks_do_not_count(name: str) -> None:
    for changed in (name.lower(), name.replace("_", "-"), f" {name} ", name.title()):
        assert nearest_names(changed, NAMES)[0] == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_HCA", "NCCL_IB_HCA"),
        ("NCCL_GID_INDEX", "NCCL_IB_GID_INDEX"),
        ("NCCL_HCA_IB", "NCCL_IB_HCA"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_NSOCKS_PERTHREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_IB_TRAFFIC_CLASS", "NCCL_IB_TC"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_TOPOLOGY_FILE", "NCCL_TOPO_FILE"),
        ("NCCL_ALGORITHM", "NCCL_ALGO"),
        ("NCCL_IB_SERVICE_LEVEL", "NCCL_IB_SL"),
    ],
)
def test_words_that_people_mix_up(wrong: str, right: str) -> None:
    assert nearest_names(wrong, NAMES)[0] == right


@pytest.mark.parametrize("name", ["", "LD_LIBRARY_PATH", "NCCL_FOO_BAR_QUX", "X"])
def test_what_resembles_nothing_gets_no_neighbour(name: str) -> None:
    assert nearest_names(name, NAMES) == []


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "abd", 1), ("abc", "ab", 1), ("kitten", "sitting", 3)],
)
def test_distance(one: str, other: str, edits: int) -> None:
    assert edit_distance(one, other, 9) == edit_distance(other, one, 9) == edits


def test_distance_gives_up_beyond_the_bound() -> None:
    assert edit_distance("aaaaaaaa", "bbbbbbbb", 2) > 2
    assert edit_distance("a", "aaaaaa", 2) > 2
