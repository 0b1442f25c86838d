# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hypothesis fails a test for what it finds, not for how busy this machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("whatever-the-load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever-the-load")
