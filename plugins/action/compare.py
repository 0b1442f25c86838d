# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of compare: results lie where the playbook runs."""

from __future__ import annotations

import pathlib
import typing as t

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.compare_runs import GOOD, compare_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.compare import (
    comparison_files,
    comparison_lines,
)
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_directory import write_whole
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.run_reader import find_run, read_whole_run


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"before", "after", "results_dir", "noise"})

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _unused, arguments = self.validate_argument_spec(
            argument_spec={
                "before": {"type": "str", "default": "previous"},
                "after": {"type": "str", "default": "latest"},
                "results_dir": {"type": "path", "default": "results"},
                "noise": {"type": "float", "default": 0.1},
            }
        )
        results = pathlib.Path(arguments["results_dir"]).absolute()
        try:
            told = _compared(arguments, results)
            name = f"compare-{told['before']['run_id']}-{told['after']['run_id']}"
            where = results / name
            if not self._task.check_mode:
                write_whole(results, name, comparison_files(told), in_place_of_older=True)
        except (OSError, ValueError) as error:
            result.update(failed=True, msg=str(error))
            return result
        shown = "not written in check mode" if self._task.check_mode else str(where / "compare.html")
        result.update(
            changed=False,
            directory=str(where),
            verdict=told["verdict"],
            good=told["verdict"]["status"] in GOOD,
            settings=told["settings"],
            findings=told["findings"],
            speed=[{key: value for key, value in series.items() if key != "points"} for series in told["speed"]],
            summary=comparison_lines(told, shown),
        )
        return result


def _compared(arguments: t.Mapping[str, t.Any], results: pathlib.Path) -> dict[str, t.Any]:
    """ValueError says in one sentence what cannot be compared."""
    if not 0.0 < arguments["noise"] < 1.0:
        raise ValueError(f"compare_noise is {arguments['noise']:g}; a relative difference between 0 and 1 is expected")
    after = find_run(arguments["after"], results)
    before = find_run(arguments["before"], results, after)
    records = [read_whole_run(before), read_whole_run(after)]
    if records[0]["run_id"] == records[1]["run_id"]:
        raise ValueError(
            f"{before} and {after} are the same run, {records[0]['run_id']}: two different ones are expected"
        )
    return compare_runs(*records, arguments["noise"])
