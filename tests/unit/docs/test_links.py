# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the documentation points to is there: links between pages, headings, and files of the repository."""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.gpufabric.cluster.tests.unit.docs.documents import ROOT, pages

DIRECTORIES = "awx|docs|inventories|lab|molecule|playbooks|plugins|roles|tests|tools"


def headings(page: pathlib.Path) -> set[str]:
    """Anchors of a page's headings, as they are made of their text."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


def problems(page: pathlib.Path) -> list[str]:
    text = page.read_text()
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?s)(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)):
        if re.match(r"https?:", target):
            continue
        path, _hash, anchor = target.partition("#")
        place = (page.parent / path) if path else page
        if not place.exists():
            found.append(f"link to {target}")
        elif anchor and anchor not in headings(place):
            found.append(f"heading {target}")
    named = re.findall(rf"`((?:{DIRECTORIES})/[\w./-]+)`", text)
    # what a run, a set-up or a recording writes may not be in the repository yet, and a placeholder is nowhere
    elsewhere = ("inventories/lab/", "tests/benchmarks/results/", "lab/image/VARIANT")
    found += [f"file {name}" for name in named if not (ROOT / name).exists() and not name.startswith(elsewhere)]
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_is_there(page: pathlib.Path) -> None:
    assert problems(page) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += [
                (page.parent / target.partition("#")[0]).resolve()
                for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text())
            ]
    assert set(ROOT.glob("docs/*.md")) - reached == set()


def test_a_wrong_link_is_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](nowhere.md) [b](#two) [c](#one) `plugins/nothing.py` `plugins/action/record.py`\n")
    assert problems(page) == ["link to nowhere.md", "heading #two", "file plugins/nothing.py"]
