# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The parts of a run: which role observes what, under which variable, and who judges it.

To add a part: register the observation in the role, write a judge, add a line here.
"""

from __future__ import annotations

import dataclasses
import importlib
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

Observation = t.Mapping[str, t.Any]
Judge = t.Callable[[t.Mapping[str, Observation], t.Mapping[str, t.Any]], "list[Finding]"]


@dataclasses.dataclass(frozen=True)
class Section:
    """name: key in run.json; role: whose settings count; variable: what the role registers on each node.

    judge: "module:function" below plugin_utils, imported only when the part was observed.
    """

    name: str
    role: str
    variable: str
    judge: str

    def load_judge(self) -> Judge:
        module, function = self.judge.split(":")
        package = __name__.rpartition(".")[0]
        return t.cast(Judge, getattr(importlib.import_module(f"{package}.{module}"), function))


NODE = Section("node", "node_facts", "__node_facts_observed", "judge_nodes:judge_nodes")

SECTIONS = (
    NODE,
    Section("kernel", "kernel_tuning", "__kernel_tuning_observed", "judge_kernel:judge_kernel"),
    Section("rdma", "rdma", "__rdma_observed", "judge_hcas:judge_hcas"),
    Section("nccl_env", "nccl_env", "__nccl_env_observed", "judge_nccl_env:judge_nccl_env"),
)
