# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeps a long text short without losing how it began and how it ended. PRIVATE to the collection."""

from __future__ import annotations


def head_and_tail(text: str, limit: int) -> str:
    """*text*, or its first and last half of *limit* characters at line ends, with a line that says how much is missing."""
    if len(text) <= limit:
        return text
    head = text[: limit // 2].rpartition("\n")[0]
    tail = text[-(limit // 2) :].partition("\n")[2]
    return f"{head}\n# [{len(text) - len(head) - len(tail)} characters left out]\n{tail}"
