# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m lab`."""

from __future__ import annotations

import sys

from lab.cli import main

sys.exit(main())
