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
Judge = t.Callable[[t.Mapping[str, Observation], t.Mapping[str, t.Any]], list[Finding]]


@dataclasses.dataclass(frozen=True)
class Section:
    """name: key in run.json; role: whose settings count; variable: what the role registers on each node.

    key: what an answer of the part's module always holds, and a failure never.
    judge: "module:function" below plugin_utils, imported only when the part was observed.
    """

    name: str
    role: str
    variable: str
    key: str
    judge: str

    def answered(self, result: Observation | None) -> bool:
        """Whether the module really answered; Ansible registers failures and unreachable nodes under the same name."""
        return result is not None and self.key in result

    def load_judge(self) -> Judge:
        module, function = self.judge.split(":")
        package = __name__.rpartition(".")[0]
        return t.cast(Judge, getattr(importlib.import_module(f"{package}.{module}"), function))


NODE = Section("node", "node_facts", "__node_facts_observed", "observed", "judge_nodes:judge_nodes")

SECTIONS = (
    NODE,
    Section("run_lock", "run_lock", "__run_lock_observed", "lock", "judge_run_lock:judge_run_lock"),
    Section("kernel", "kernel_tuning", "__kernel_tuning_observed", "keys", "judge_kernel:judge_kernel"),
    Section("rdma", "rdma", "__rdma_observed", "observed", "judge_hcas:judge_hcas"),
    Section("counters", "rdma", "__rdma_counters_observed", "observed", "judge_counters:judge_counters"),
    Section("roce_qos", "roce_qos", "__roce_qos_observed", "observed", "judge_roce_qos:judge_roce_qos"),
    Section("state", "diagnose", "__diagnose_state_observed", "state", "judge_state:judge_state"),
    Section("mesh", "diagnose", "__diagnose_mesh_observed", "mesh", "judge_mesh:judge_mesh"),
    Section("isolate", "isolate", "__isolate_observed", "verdict", "judge_isolate:judge_isolate"),
    Section("lora", "lora_workload", "__lora_workload_observed", "trainings", "judge_lora:judge_lora"),
    Section("autotune", "autotune", "__autotune_observed", "result", "judge_autotune:judge_autotune"),
    Section("nccl_env", "nccl_env", "__nccl_env_observed", "observed", "judge_nccl_env:judge_nccl_env"),
    Section("rollback", "rollback", "__rollback_observed", "given_back", "judge_rollback:judge_rollback"),
)

#: logs from anywhere, read on the controller: of the run as a whole and of no node of it
LOGS = Section("logs", "diagnose_logs", "__diagnose_logs_observed", "logs", "judge_logs:judge_logs")

#: what was measured; judged by plugin_utils.benchmark, since it belongs to the cluster and not to a node
BENCHMARK = Section("benchmark", "nccl_tests", "__nccl_tests_observed", "runs", "judge_busbw:judge_busbw")
