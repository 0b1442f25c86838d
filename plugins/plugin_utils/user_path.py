# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A path on the controller as its user wrote it."""

from __future__ import annotations

import os
import pathlib


def user_path(given: str) -> pathlib.Path:
    """*given* with its ``~`` filled in. It stays as it stands for a user without a home, as a shell leaves it: containers run under
    identifiers that no passwd knows, and pathlib's own expanduser() raises RuntimeError for them.
    """
    return pathlib.Path(os.path.expanduser(given))
