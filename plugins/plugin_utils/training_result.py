# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the ranks of a training answered, in the shape of the run record: measured, predicted, compared. Pure."""

from __future__ import annotations

import collections
import math
import statistics
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import bandwidths
from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task, answers
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_plan import described, listed
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_prices import Prices, predict, prices_of
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_cost import curves_of, price, size_plan
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Message

Result = t.Mapping[str, t.Any]

TIMES = ("step_s", "communication_s", "exposed_s", "transfer_s", "compute_s", "profiled_s", "cpu_cores")
#: of the dearest messages that a result shows
SHOWN = 6
#: of a failed launch's own words, in characters
SAID = 1500


class Launch(t.NamedTuple):
    """One launch read: said: {node: answers of its ranks}; failure: {} where it did all that it was asked to."""

    setting: str
    said: dict[str, list[dict[str, t.Any]]]
    failure: dict[str, t.Any]

    @property
    def all(self) -> list[dict[str, t.Any]]:
        return [answer for answers_of_node in self.said.values() for answer in answers_of_node]


def read(raw: Result, wanted: t.Sequence[str]) -> Launch:
    """A result of _benchmark_run. wanted: names of the trainings that it was to make."""
    alone = raw.get("alone") or {}
    said = {node: answers(own.get("stdout", "")) for node, own in alone.items()}
    problems = [{**answer, "node": node} for node, own in said.items() for answer in own if "problem" in answer]
    done = {answer["training"] for own in said.values() for answer in own if "training" in answer}
    missing = [name for name in wanted if name not in done]
    if raw["rc"] == 0 and not missing and not problems:
        return Launch(raw["collective"], said, {})
    kind = (
        "timeout" if raw["timed_out"] else problems[0]["problem"] if problems else "lost" if raw["lost"] else "failed"
    )
    silent = [node for node in raw["nodes"] if node in alone and not any("ranks" in answer for answer in said[node])]
    words = next((own.get("error") or own.get("stderr", "") for own in alone.values() if own.get("rc") != 0), "")
    return Launch(
        raw["collective"],
        said,
        {
            "setting": raw["collective"],
            "kind": kind,
            "problem": raw["problem"],
            "ranks": [{key: one.get(key) for key in ("node", "rank", "problem", "while", "text")} for one in problems],
            "missing": missing,
            "silent": silent,
            "lost": dict(raw["lost"]),
            "timeout_s": raw["timeout_s"],
            "said": "" if problems else words.strip()[-SAID:],
        },
    )


def _prices(launches: t.Sequence[Launch]) -> Prices:
    """Of the messages that these launches timed alone."""
    every = [answer for launch in launches for answer in launch.all]
    return prices_of(every, next((answer["ranks"] for answer in every if "ranks" in answer), 0))


def shape(
    raws: t.Sequence[Result],
    task: Task,
    ranks_per_node: int,
    line_rate_gbps: float = 0.0,
    benchmark: t.Iterable[Result] = (),
) -> dict[str, t.Any]:
    """{trainings, failures, size_plan, versions, device, ranks, backend} of all launches of one task.

    benchmark: runs of the record that nccl-tests measured, for a second prediction. line_rate_gbps: of one node's NICs.
    """
    names = [training.name for training in task.trainings]
    launches = [read(raw, names) for raw in raws]
    ranks = next((answer["ranks"] for launch in launches for answer in launch.all if "ranks" in answer), 0)
    first = next((answer for launch in launches for answer in launch.all if "versions" in answer), {})
    others = curves_of(benchmark)
    shaped: list[dict[str, t.Any]] = []
    every: list[Message] = []
    for training in task.trainings if ranks > 1 else ():
        messages = listed(training, ranks, ranks_per_node)
        every += messages
        for setting in dict.fromkeys(launch.setting for launch in launches):
            own = [launch for launch in launches if launch.setting == setting]
            measured = _measured(own, training.name)
            if not measured:
                continue
            told = {key: value for key, value in described(training, ranks, ranks_per_node).items() if key != "listed"}
            cost = _cost(messages, own, measured, line_rate_gbps)
            second = price(messages, others) if others else {}
            if second and not second["missing"]:
                cost["predicted_from_nccl_tests_s"] = second["seconds"]
            shaped.append({"setting": setting, **told, **measured, **cost, **_held(messages, measured.pop("issued"))})
    curves = _prices(launches).following
    return {
        "backend": task.backend,
        "ranks": ranks,
        "versions": first.get("versions", {}),
        "device": first.get("device", ""),
        "trainings": shaped,
        "failures": [launch.failure for launch in launches if launch.failure],
        "size_plan": size_plan(every, curves or None) if every else [],
    }


def _spread(values: t.Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _measured(launches: t.Sequence[Launch], name: str) -> dict[str, t.Any]:
    """Over all ranks and repeats of one training under one setting; {} where there is nothing."""
    found = [
        (node, answer)
        for launch in launches
        for node, own in launch.said.items()
        for answer in own
        if answer.get("training") == name
    ]
    if not found:
        return {}
    steps = [step for _node, answer in found for step in answer["steps"]]
    times = {key: _spread([float(step[key]) for step in steps]) for key in TIMES}
    whole, busy, exposed = (times[key]["median"] for key in ("profiled_s", "communication_s", "exposed_s"))
    by_rank: dict[tuple[int, str], list[dict[str, t.Any]]] = collections.defaultdict(list)
    for node, answer in found:
        by_rank[answer["rank"], node] += answer["steps"]
    processors: dict[str, list[float]] = collections.defaultdict(list)
    for node, answer in found:
        if answer["node_delta"].get("cpu_busy") is not None:
            processors[node].append(float(answer["node_delta"]["cpu_busy"]))
    return {
        **times,
        "samples_s": [
            float(step["step_s"]) for node, answer in found if answer["rank"] == 0 for step in answer["steps"]
        ],
        "exposed_samples_s": [float(step["exposed_s"]) for step in steps],
        "communication_share": busy / whole,
        "exposed_share": exposed / whole,
        "overlap": 1 - exposed / busy if busy else 0.0,
        "cpu_utilisation": {node: round(statistics.median(shares), 4) for node, shares in processors.items()},
        "memory_mb": max(int(answer["memory_mb"]) for _node, answer in found),
        "by_rank": [
            {"rank": rank, "node": node, **{key: statistics.median(float(step[key]) for step in own) for key in TIMES}}
            for (rank, node), own in sorted(by_rank.items())
        ],
        "issued": next(answer["issued"] for _node, answer in found),
    }


def _cost(
    messages: t.Sequence[Message], launches: t.Sequence[Launch], measured: Result, line_rate_gbps: float
) -> dict[str, t.Any]:
    """The prediction of transfer_s (of several launches the median), and how fast messages went: GB/s (1e9 bytes/s), as a share of
    the best bandwidth at which any of them went alone, and of the line rate.
    """
    free_s, transfer_s = (
        measured["profiled_s"]["median"] - measured["exposed_s"]["median"],
        measured["transfer_s"]["median"],
    )
    cost = predict(messages, _prices(launches), free_s)
    predicted = statistics.median(predict(messages, _prices([launch]), free_s)["seconds"] for launch in launches)
    sent = sum(message.size for message in messages)
    bus = sum(bandwidths(message.collective, message.size, 1.0, message.ranks)[1] for message in messages)
    took = transfer_s or math.inf
    return {
        "predicted_s": predicted,
        "prediction_error": predicted / took - 1 if transfer_s and not cost["missing"] else None,
        "pattern": cost["pattern"],
        "rules": cost["rules"],
        "bandwidth_share": cost["bandwidth_share"],
        "dearest": cost["entries"][:SHOWN],
        "unpriced": cost["missing"],
        "messages": len(messages),
        "sent_bytes": sent,
        "algbw_gbs": sent / took / 1e9,
        "bandwidth_utilisation": min(cost["seconds"] * cost["bandwidth_share"] / took, 1.0),
        "line_rate_share": bus / took / (line_rate_gbps / 8) if line_rate_gbps else None,
    }


def _held(messages: t.Sequence[Message], issued: t.Sequence[t.Sequence[t.Any]]) -> dict[str, t.Any]:
    """Whether PyTorch issued what the list says: differences as [{collective, size, listed, issued}], counts of one step."""
    want = collections.Counter((message.collective, message.size) for message in messages)
    sent = {(str(collective), int(size)): int(count) for collective, size, count in issued}
    differences = [
        {"collective": key[0], "size": key[1], "listed": want.get(key, 0), "issued": sent.get(key, 0)}
        for key in sorted({*want, *sent})
        if want.get(key, 0) != sent.get(key, 0)
    ]
    return {"as_listed": not differences, "differences": differences}
