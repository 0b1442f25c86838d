# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters over what hca_info returns; each is described in the file of its name beside this one."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import coerced, load_specs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.select_hcas import select_hcas


def roce_interfaces(result: t.Any, settings: t.Mapping[str, t.Any] | None = None) -> list[str]:
    """Interfaces of one node's compute ports that speak RoCE in hardware; none where the node was not observed."""
    observed = result.get("observed") if isinstance(result, t.Mapping) else None
    if not observed:
        return []
    ports = select_hcas({"": observed}, coerced("rdma", settings or {}, load_specs())).compute[""]
    return list(dict.fromkeys(p.port["netdev"] for p in ports if p.roce and p.port["netdev"] and not p.hca["virtual"]))


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"roce_interfaces": roce_interfaces}
