# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsers of what RDMA tools print: one file a tool, each a pure function from text to a mapping that never raises."""
