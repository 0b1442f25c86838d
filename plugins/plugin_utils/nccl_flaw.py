# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with a value."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Why a value is not right. kind: unsafe, type, range, choice or form; fix: the value to write, "" if unknown."""

    kind: str
    evidence: str
    expected: str
    fix: str = ""
