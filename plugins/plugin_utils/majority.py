# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What most of a group have, so that the odd ones can be named."""

from __future__ import annotations

import collections
import typing as t

V = t.TypeVar("V", bound=t.Hashable)


def majority(values: t.Iterable[V]) -> tuple[V, int, int] | None:
    """(value, how many have it, of how many) where more than half agree, else None."""
    count = collections.Counter(values)
    total = count.total()
    if not total:
        return None
    value, number = count.most_common(1)[0]
    return (value, number, total) if number * 2 > total else None


def listed(names: t.Sequence[str], most: int = 5) -> str:
    """Names for a sentence, the rest of a long list as a number."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
