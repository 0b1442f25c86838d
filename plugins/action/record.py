# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of record: walks all nodes once, judges, writes the run directory."""

from __future__ import annotations

import datetime
import platform
import typing as t

from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.assemble import assemble
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.job_slice import slice_refusal
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.keep_run import keep_run
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.terminal import summary_lines
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.sections import BENCHMARK, LOGS, SECTIONS
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.settings import SettingsReader
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.unfinished_run import UnfinishedRun
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.user_path import user_path

INPUTS = "__inputs_checked"


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"results_dir"})

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        hostvars = (task_vars or {})["hostvars"]
        # localhost comes last: what nodes registered counts before what was registered without any.
        raw = {host: hostvars.raw_get(host) for host in (*hostvars, "localhost")}
        inputs = next((variables[INPUTS] for variables in raw.values() if "nodes" in variables.get(INPUTS, {})), None)
        if inputs is None:
            result.update(
                failed=True,
                # A slice may have got none of the nodes: then no play came to refuse it.
                msg=slice_refusal(task_vars or {})
                or "There is no run to report, since no play ran on a node: name an inventory that holds nodes with -i, or set gpufabric_nodes;"
                " --limit and --tags may have left none as well.",
            )
            return result
        check_mode = bool(self._task.check_mode)
        reader = SettingsReader(self._loader, self._templar, hostvars, task_vars)
        record = assemble(
            inputs=inputs,
            results={
                section.name: {node: raw.get(node, {}).get(section.variable) for node in inputs["nodes"]}
                for section in (*SECTIONS, BENCHMARK)
            },
            logs=raw["localhost"].get(LOGS.variable),
            settings={
                section.name: {node: reader.read(section.role, node) for node in inputs["nodes"]}
                for section in (*SECTIONS, BENCHMARK)
            },
            about={
                "ansible_core": ansible_version,
                "python": platform.python_version(),
                "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "check_mode": check_mode,
            },
        )
        results = user_path(self._task.args.get("results_dir", "results")).absolute()
        directory = results / inputs["run_id"]
        if not check_mode:
            try:
                directory, record = keep_run(results, record)
                UnfinishedRun(results, inputs["run_id"]).remove()
            except OSError as error:
                result.update(failed=True, msg=f"Neither {results} nor a temporary directory can be written: {error}")
                return result
        result.update(
            changed=False,
            run_id=inputs["run_id"],
            run_dir=str(directory),
            verdict=record["verdict"],
            findings=record["findings"],
            summary=summary_lines(
                record, "not written in check mode" if check_mode else str(directory / "report.html")
            ),
        )
        return result
