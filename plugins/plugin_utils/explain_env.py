# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A resolution in words: each variable with value, origin and reason, and what was left out and why."""

from __future__ import annotations

import typing as t

SCOPES = {"uniform": "every node", "node": "this node"}


def explain(resolved: t.Mapping[str, t.Any], node: str = "") -> list[str]:
    """Lines about one node's entry of resolve_fleet()."""
    transport = resolved.get("transport")
    over = " and ".join(transport) if transport else "unknown hardware"
    profiles = ", ".join(resolved.get("profiles", [])) or "no profile"
    head = f"{node + ': ' if node else ''}NCCL {resolved['nccl_version']}, {over}, {profiles}"
    lines = [head, "", "set:"]
    lines += [
        f"  {v['name']}={v['value']}  [{v['origin']}; {SCOPES[v['scope']]}] {v['reason']}"
        for v in resolved["variables"]
    ] or ["  nothing"]
    lines += ["", "left out:"]
    lines += [
        f"  {d['name']}{'=' + d['value'] if d['value'] else ''}  [{d['origin']}] {d['reason']}"
        for d in resolved["dropped"]
    ] or ["  nothing"]
    return lines
