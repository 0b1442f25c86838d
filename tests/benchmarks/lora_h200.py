#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Communication of training steps over TCP sockets: NCCL's defaults, the guide's list corrected, and what autotune found.

    python tests/benchmarks/lora_h200.py --journal FILE [--rounds 3] [--seconds 440]     (--small: a tiny model on gloo)
    python tests/benchmarks/lora_h200.py --journal FILE --record-only

Two ranks on one machine talk as two nodes would. Each round launches every setting in turn; a launch trains a model whole
and with LoRA of rank 8 and 64 under DDP, and times the messages of these steps alone, with the same library and settings.

Times of a step, in s: step_s as it runs; communication_s in which NCCL's kernels ran, waiting for the other rank included;
exposed_s, the part of it in which nothing was computed; transfer_s, what its messages took once both ranks were there.
The prediction is of transfer_s: the message list of the step, which is computed and not observed, each message priced by
those that were timed alone: one at once after another where they would take longer than the step computes, and else apart,
beside computation. Needs two GPUs, PyTorch, transformers and peft.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
import typing as t

import recorded
from nccl_env_tcp_h200 import make_importable, resolved

ROUNDS = 3
RANKS = 2

#: 0.97 billion parameters: layers as wide as those of a model of 7 billion, so that a step is computed by the GPU and
#: not held up by Python, which takes some 10 ms a layer
MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
SMALL = {**MODEL, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256}  # fmt: skip

#: {workload: LoRA rank, None for the whole model}
WORKLOADS = {"full": None, "lora 8": 8, "lora 64": 64}
JUDGED = "lora 64"

#: a launch takes about 40 s; one that hangs is ended after so many
LAUNCH_S = 150.0
TIMES = ("step_s", "communication_s", "exposed_s", "transfer_s", "profiled_s", "compute_s", "cpu_cores")


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Medians over all steps of both ranks by workload and setting, times in ms; ratios and shares from them."""
    rows = [row for row in record["rows"] if row.get("steps")]
    workloads, settings = (list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "setting"))
    medians = {
        (w, s): _medians([r for r in rows if (r["workload"], r["setting"]) == (w, s)])
        for w in workloads
        for s in settings
    }
    errors = {key: one["predicted_s"] / one["transfer_s"] - 1 for key, one in medians.items()}

    def table(value: t.Callable[[dict[str, float]], float], digits: int) -> dict[str, dict[str, float]]:
        return {w: {s: round(value(medians[w, s]), digits) for s in settings} for w in workloads}

    def reduction(key: str) -> float:
        return round(1 - medians[JUDGED, "autotuned"][key] / medians[JUDGED, "default"][key], 4)

    return {
        "communication_time_reduction": reduction("exposed_s"),
        "whole_communication_reduction": reduction("communication_s"),
        "step_time_reduction": reduction("step_s"),
        "prediction_error": round(max(abs(error) for error in errors.values()), 4),
        "prediction_error_median": round(statistics.median(abs(error) for error in errors.values()), 4),
        "prediction_errors": {w: {s: round(errors[w, s], 4) for s in settings} for w in workloads},
        "communication_share": table(lambda one: one["communication_s"] / one["profiled_s"], 4),
        "exposed_share": table(lambda one: one["exposed_s"] / one["profiled_s"], 4),
        "overlap": table(lambda one: 1 - one["exposed_s"] / one["communication_s"], 4),
        "step_ms": table(lambda one: 1e3 * one["step_s"], 2),
        "step_ms_spread": table(lambda one: 1e3 * one["step_spread_s"], 2),
        "exposed_ms": table(lambda one: 1e3 * one["exposed_s"], 2),
        "exposed_ms_spread": table(lambda one: 1e3 * one["exposed_spread_s"], 2),
        "communication_ms": table(lambda one: 1e3 * one["communication_s"], 2),
        "transfer_ms": table(lambda one: 1e3 * one["transfer_s"], 2),
        "predicted_ms": table(lambda one: 1e3 * one["predicted_s"], 2),
        "algbw_gbs": table(lambda one: one["sent_bytes"] / one["transfer_s"] / 1e9, 3),
        "cpu_cores": table(lambda one: one["cpu_cores"], 2),
        "messages_as_listed": all(row["issued"] == row["listed"] for row in rows if row["rank"] == 0),
        "rounds": {s: len({row["round"] for row in rows if row["setting"] == s}) for s in settings},
    }


def _medians(rows: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, float]:
    """By time, with the half of the middle two quarters' width as spread of two of them."""
    steps = [step for row in rows for step in row["steps"]]
    found = {key: statistics.median(step[key] for step in steps) for key in TIMES}
    for name, key in (("step_spread_s", "step_s"), ("exposed_spread_s", "exposed_s")):
        quarters = statistics.quantiles((step[key] for step in steps), n=4)
        found[name] = (quarters[2] - quarters[0]) / 2
    found["predicted_s"] = statistics.median(row["predicted_s"] for row in rows if row["rank"] == 0)
    found["sent_bytes"] = next(sum(size * count for _name, size, count in row["listed"]) for row in rows)
    return found


def measure_all(journal: t.TextIO, rounds: int, seconds: float, small: bool) -> None:
    """Measure everything; each row goes to the journal at once. No launch begins that may not end before *seconds* are over."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as text:
        directory = pathlib.Path(text)
        make_importable(directory)

        def note(entry: t.Mapping[str, t.Any]) -> None:
            journal.write(json.dumps(entry) + "\n")
            journal.flush()

        versions = _versions(small)
        settings = _settings(versions.get("nccl", ""), small)
        note(
            {"versions": versions, "environments": settings, "model": SMALL if small else MODEL, "dtype": _dtype(small)}
        )
        longest = 0.0
        for number in range(rounds):
            for name, environment in settings.items():
                left = seconds - (time.monotonic() - began)
                if left < 1.15 * longest:
                    print(f"{left:.0f} s are left: no further launch", flush=True)
                    return
                launched = time.monotonic()
                for row in _launch(name, environment, directory, small, max(left, 30.0)):
                    note({"round": number, **row})
                longest = max(longest, time.monotonic() - launched)


def _settings(nccl: str, small: bool) -> dict[str, dict[str, str]]:
    """{name: variables}, on top of what keeps the ranks on sockets. autotuned: what the recorded search had found."""
    import nccl_fleet

    if small:
        return {"default": {}, "guide": {}, "autotuned": {}}
    search = json.loads((recorded.RESULTS / "autotune_h200.json").read_text())
    best = next(row["settings"] for row in search["rows"] if row["phase"] == "confirm" and row["who"] == "autotune")
    return {"default": {}, "guide": resolved(nccl, [], nccl_fleet.GUIDE), "autotuned": best}


def _dtype(small: bool) -> str:
    return "float32" if small else "bfloat16"


def _versions(small: bool) -> dict[str, str]:
    if small:
        return {"gpus": "none"}
    import nccl_torch

    return nccl_torch.versions()


def _trainings(small: bool) -> list[t.Any]:
    from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Training

    size = {"batch": 1, "sequence": 32, "repeats": 3} if small else {"batch": 4, "sequence": 1024, "repeats": 6}
    return [
        Training(
            name,
            SMALL if small else MODEL,
            lora=None if rank is None else {"r": rank, "target_modules": "all-linear"},
            dtype=_dtype(small),
            **size,
        )
        for name, rank in WORKLOADS.items()
    ]


def _listed(small: bool) -> dict[str, list[t.Any]]:
    """{workload: the messages of one step}, computed from the model's config alone."""
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils import workload
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.model_parameters import Lora
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload_state import Strategy

    strategy = Strategy("ddp", RANKS)
    loras = {name: rank and Lora(rank=rank, target_modules="all-linear") for name, rank in WORKLOADS.items()}
    config = SMALL if small else MODEL
    return {name: workload.step_messages(config, strategy, lora, _dtype(small)) for name, lora in loras.items()}


def _launch(
    setting: str, environment: t.Mapping[str, str], directory: pathlib.Path, small: bool, timeout: float
) -> t.Iterator[dict[str, t.Any]]:
    """The rows of one launch: one a workload and rank, and one a size that was timed alone."""
    import local_training
    import nccl_torch
    from ansible_collections.gpufabric.cluster.plugins.module_utils._training_task import Task
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.training_prices import predict, prices_of

    listed = _listed(small)
    sizes: dict[str, list[int]] = {}
    for message in sorted({(m.collective, m.size) for messages in listed.values() for m in messages}):
        sizes.setdefault(message[0], []).append(message[1])
    task = Task("gloo" if small else "nccl", tuple(_trainings(small)), sizes, iterations=5, threads=1 if small else 0)
    base = {} if small else {**nccl_torch.BASE, "NCCL_NET": "Socket"}
    done = local_training.run(
        task, directory, {**base, **environment}, RANKS, timeout if small else min(timeout, LAUNCH_S)
    )
    about = {"setting": setting, "seconds": round(done.seconds, 2)}
    prices = prices_of(done.answers, RANKS)
    for one in done.answers:
        if "price" in one:
            yield {**about, **{key: one[key] for key in ("price", "size_bytes", "time_us", "apart_us")}}
    for answer in done.answers:
        if "training" in answer:
            messages, steps = listed[answer["training"]], answer["steps"]
            predicted = predict(
                messages, prices, statistics.median(step["profiled_s"] - step["exposed_s"] for step in steps)
            )
            row = {
                "workload": answer["training"],
                "rank": answer["rank"],
                "steps": [{key: round(step[key], 6) for key in TIMES} for step in steps],
                "memory_mb": answer["memory_mb"],
                "predicted_s": round(predicted["seconds"], 6),
                "pattern": predicted["pattern"],
                "messages_us": [round(1e6 * seconds) for seconds in answer["messages_s"]],
                "issued": sorted(answer["issued"]),
                "listed": _counted(messages),
            }
            print(
                setting,
                {**row, "steps": row["steps"][-1:], "messages_us": "", "issued": len(row["issued"]), "listed": ""},
                flush=True,
            )
            yield {**about, **row}
    if not done.ok:
        said = [answer for answer in done.answers if "problem" in answer]
        print(setting, "FAILED", said, done.log[-1500:], flush=True)
        yield {**about, "failure": said or done.log[-600:]}


def _counted(messages: t.Sequence[t.Any]) -> list[list[t.Any]]:
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.workload import tally

    return sorted([entry["collective"], entry["size"], entry["count"]] for entry in tally(messages))


def write_record(journal: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    about = {key: value for key, value in entries[0].items() if key != "versions"}
    import nccl_torch

    return recorded.write(
        "lora_h200",
        "communication of a training step over TCP sockets: a model of 0.97 billion parameters whole, and with LoRA of rank 8 and 64, under DDP",
        {"ranks": RANKS, "environment": {**nccl_torch.BASE, "NCCL_NET": "Socket"}, **about},
        entries[1:],
        entries[0]["versions"],
        host=entries[0]["versions"]["gpus"],
        folder=folder,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--journal", type=pathlib.Path, required=True, help="rows as they are measured, a JSON object a line"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=440.0, help="no launch begins that may not end within these")
    parser.add_argument("--small", action="store_true", help="a tiny model on gloo, for a try without GPUs")
    parser.add_argument("--record-only", action="store_true", help="write the record of an existing journal")
    parser.add_argument("--out", type=pathlib.Path, default=recorded.RESULTS)
    arguments = parser.parse_args()
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "fixtures"))
    if not arguments.record_only:
        with arguments.journal.open("w") as journal:
            measure_all(journal, arguments.rounds, arguments.seconds, arguments.small)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = write_record(arguments.journal, arguments.out)
    print(json.dumps(json.loads(path.read_text())["figures"]))
    print(path)


if __name__ == "__main__":
    main()
