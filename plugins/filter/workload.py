# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters about what a training sends; each is described in the file of its name beside this one."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_cost import size_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Strategy


def workload_sizes(
    config: t.Mapping[str, t.Any],
    ranks: int,
    ranks_per_node: int = 1,
    strategy: str = "ddp",
    lora_rank: int = 0,
    target_modules: t.Any = "all-linear",
    dtype: str | None = None,
) -> dict[str, t.Any]:
    """workload_cost.size_plan() of one step, and its range over all collectives."""
    modules = tuple(target_modules) if isinstance(target_modules, (list, tuple)) else target_modules or None
    try:
        lora = Lora(rank=int(lora_rank), target_modules=modules) if int(lora_rank) else None
        spread = Strategy(strategy, int(ranks), int(ranks_per_node))
        messages = workload.step_messages(config, spread, lora, dtype)
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"workload_sizes: {error}") from error
    plan = size_plan(messages)
    return {
        "collectives": list(dict.fromkeys(entry["collective"] for entry in plan)),
        "min_bytes": str(min((entry["min_bytes"] for entry in plan), default=0)),
        "max_bytes": str(max((entry["max_bytes"] for entry in plan), default=0)),
        "plan": plan,
        "bytes": sum(message.size for message in messages),
        "messages": len(messages),
    }


class FilterModule:
    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"workload_sizes": workload_sizes}
