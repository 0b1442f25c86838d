# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception that a person is meant to read."""

from __future__ import annotations


class LabError(Exception):
    """Something that the caller can act on, said in one sentence."""
