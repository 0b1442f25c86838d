# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a reader of the documentation is told to type."""

from __future__ import annotations

import pathlib
import re
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[3]

SHELLS = ("sh", "bash", "shell", "console")

#: programs by which a line in a text's own code spans is known as a command
PROGRAMS = (
    "ansible",
    "ansible-builder",
    "ansible-doc",
    "ansible-galaxy",
    "ansible-playbook",
    "make",
    "pip",
    "python",
    "python3",
    "tools/",
)

#: pages that quote what is typed on nodes and elsewhere
QUOTE_OTHERS = ("faults.md", "nccl_variables.md")


class Line(t.NamedTuple):
    """A line that a reader may type. where: file and line number."""

    where: str
    text: str


def pages() -> list[pathlib.Path]:
    return [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("roles/*/README.md")),
        *sorted(ROOT.glob("inventories/*/README.md")),
    ]


def lines() -> list[Line]:
    """Every line of every shell block, fenced or indented, and every command in a code span."""
    return [line for page in pages() for line in of_page(page)]


def of_page(page: pathlib.Path) -> t.Iterator[Line]:
    fence: str | None = None
    text = page.read_text().replace("\\\n", "")
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{page.relative_to(ROOT)}:{number}"
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().removeprefix("```")
        elif fence in SHELLS:
            if fence != "console" or line.startswith("$ "):
                yield Line(where, _bare(line.removeprefix("$ ")))
        elif fence is None and re.match(r"(?: {4}| {6})\S", line) and not re.match(r" +[-*|] ", line):
            yield Line(where, _bare(line))
        elif fence is None and page.name not in QUOTE_OTHERS:
            for span in re.findall(r"`([^`]+)`", line):
                if span.startswith(PROGRAMS) and " " in span:
                    yield Line(where, _bare(span))


def _bare(line: str) -> str:
    return re.sub(r"\s+#.*$", "", line).strip()
