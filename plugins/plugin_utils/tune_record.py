# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""autotune.json, and the files that lie beside it: docs/autotune.md describes each key. Pure."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from ansible_collections.gpufabric.cluster.plugins.plugin_utils.render.tuning import render_html, render_markdown
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search import Search
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.search_space import Settings
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_plan import Plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_settings import profile
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.tune_study import CURRENT
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.version import COLLECTION_VERSION

#: version of autotune.json; it grows with every change of meaning
SCHEMA_VERSION = 1

Outcome = t.Mapping[str, t.Any]


def record_of(
    plan: Plan, search: Search, outcome: Outcome | None, problem: str, variables: Settings, finished: str
) -> dict[str, t.Any]:
    """The study as it stands. outcome: Study.run()'s, None where it broke off for *problem*; variables: nccl_env_variables as
    they are, which a profile keeps; finished: in UTC.
    """
    best = search.best()
    result = {**outcome, "text": _sentence(outcome)} if outcome else {}
    name, text = "", ""
    if outcome and outcome["better"]:
        name, text = profile(outcome["best"], plan.in_force, variables, plan.transport, result["text"])
    return {
        "schema_version": SCHEMA_VERSION,
        "collection_version": COLLECTION_VERSION,
        "study": plan.study,
        "finished": finished,
        "backend": plan.backend,
        "transport": plan.transport,
        "nodes": list(plan.nodes),
        "versions": dict(plan.versions),
        "objective": plan.objective.as_dict(),
        "space": [{"name": knob.name, "values": list(knob.values)} for knob in plan.space.knobs],
        "budget": dataclasses.asdict(plan.budget),
        "starts": {who: dict(settings) for who, settings in plan.starts.items()},
        "trials": [dataclasses.asdict(trial) for trial in search.trials()],
        "leader": dataclasses.asdict(best[0]) if best else None,
        "importances": search.importances(),
        "problem": problem,
        "result": result,
        "profile": {"file": name, "text": text},
    }


def files_of(record: t.Mapping[str, t.Any]) -> dict[str, str]:
    """{name: text} of the study's directory. Without a gain there is no profile, and an earlier one stays as it is."""
    files = {
        "autotune.json": json.dumps(record, indent=1, sort_keys=True) + "\n",
        "report.md": render_markdown(record),
        "report.html": render_html(record),
    }
    made = record["profile"]
    return {**files, made["file"]: made["text"]} if made["file"] else files


def _sentence(outcome: Outcome) -> str:
    against = outcome["comparisons"].get(CURRENT)
    if outcome["better"] and against is None:
        return "what is in force fails, and these settings work"
    if outcome["better"]:
        return f"{against['ratio']:.3g} times what is in force ({against['low']:.3g} to {against['high']:.3g})"
    tried = f"the best of the search reached {against['text']}" if against else "nothing else worked"
    return f"no improvement: {tried}; what is in force stays"
