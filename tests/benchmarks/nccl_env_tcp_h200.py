#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The profile tcp, resolved and written by the role's own code, against NCCL's defaults: all_reduce over TCP sockets.

    python tests/benchmarks/nccl_env_tcp_h200.py [--rounds 5] [--out DIRECTORY]

Two ranks on one machine talk as two nodes would. Each round measures every size with NCCL's defaults, with the profile
(through an nccl.conf that NCCL_CONF_FILE names), and with the guide's own pair, one after the other. Then a training under
DistributedDataParallel is started with what the guide's whole list becomes, and with its NCCL_ALGO=Tree as it is.

Needs two GPUs (one does, for a try), PyTorch, and netaddr, which may lie in the checkout's .venv.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import statistics
import sys
import tempfile
import typing as t

import recorded

SIZES = (1 << 20, 16 << 20, 64 << 20)
JUDGED = 64 << 20
ITERATIONS, WARMUP = 20, 5

#: the guide's values that have an effect on sockets
GUIDE = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_BUFFSIZE": "1048576"}


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Medians of busbw in GB/s by size, and their ratios at 64 MiB."""
    by: dict[tuple[str, int], list[float]] = {}
    measured = [row for row in record["rows"] if row["task"] == "all_reduce" and row["busbw"] is not None]
    for row in measured:
        by.setdefault((row["who"], row["size"]), []).append(row["busbw"])
    medians = {key: statistics.median(values) for key, values in by.items()}
    sizes = record["settings"]["sizes"]
    return {
        "busbw_ratio_64MiB": round(medians["tcp", JUDGED] / medians["default", JUDGED], 4),
        "guide_over_default_64MiB": round(medians["guide", JUDGED] / medians["default", JUDGED], 4),
        "worst_ratio_of_a_round_64MiB": round(
            min(
                row["busbw"] / other["busbw"]
                for row in measured
                for other in measured
                if row["round"] == other["round"]
                and (row["who"], other["who"]) == ("tcp", "default")
                and row["size"] == other["size"] == JUDGED
            ),
            4,
        ),
        "training_starts": {row["who"]: row["ok"] for row in record["rows"] if row["task"] == "ddp"},
        "busbw_gbs": {
            who: {str(size): round(medians[who, size], 4) for size in sizes} for who in ("default", "tcp", "guide")
        },
    }


def resolved(nccl: str, profiles: t.Sequence[str], variables: t.Mapping[str, t.Any]) -> dict[str, str]:
    """What resolve_fleet() gives a node without HCAs, for this NCCL."""
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet

    node = {"hcas": [], "addresses": {"lo": ["127.0.0.1/8"]}, "nccl_version": nccl}
    result = resolve_fleet({"n1": node}, profiles, variables, {"control_network": "127.0.0.0/8", "mode": "warn"})
    return {entry["name"]: entry["value"] for entry in result["nodes"]["n1"]["variables"]}


def make_importable(directory: pathlib.Path) -> None:
    """Let Python find the collection, its fixtures, and what only the checkout's own environment has."""
    root = pathlib.Path(__file__).resolve().parents[2]
    link = directory / "ansible_collections/gpufabric/cluster"
    link.parent.mkdir(parents=True)
    link.symlink_to(root)
    sys.path[:0] = [str(directory), str(root / "tests/fixtures")]
    sys.path += [str(path) for path in root.glob(".venv/lib/python3*/site-packages")]


def measure(rounds: int, out: pathlib.Path) -> pathlib.Path:
    with tempfile.TemporaryDirectory() as text:
        directory = pathlib.Path(text)
        make_importable(directory)
        import nccl_fleet
        import nccl_torch

        versions = nccl_torch.versions()
        lists = {
            "tcp": resolved(versions["nccl"], ["tcp"], {}),
            "the guide's list, resolved": resolved(versions["nccl"], [], nccl_fleet.GUIDE),
        }
        files = {who: directory / f"{number}.conf" for number, who in enumerate(lists)}
        for who, values in lists.items():
            files[who].write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        subjects: dict[str, dict[str, str]] = {
            "default": {"NCCL_NET": "Socket"},
            "tcp": {"NCCL_CONF_FILE": str(files["tcp"])},
            "guide": {"NCCL_NET": "Socket", **GUIDE},
        }
        rows = [
            all_reduce(number, who, size, subjects[who])
            for number in range(rounds)
            for size in SIZES
            for who in subjects
        ]
        whole = "the guide's list, resolved"
        rows.append(ddp(whole, {"NCCL_NET": "Socket", "NCCL_CONF_FILE": str(files[whole])}))
        rows.append(ddp("NCCL_ALGO=Tree", {"NCCL_NET": "Socket", "NCCL_ALGO": "Tree"}))
    return recorded.write(
        "nccl_env_tcp_h200",
        "all_reduce busbw (GB/s) of two ranks over TCP sockets: NCCL's defaults, the profile tcp, the guide's list",
        {
            "rounds": rounds,
            "sizes": list(SIZES),
            "iterations": ITERATIONS,
            "warmup": WARMUP,
            "environment": nccl_torch.BASE,
            **lists,
            "guide": GUIDE,
        },
        rows,
        versions,
        host=versions["gpus"],
        folder=out,
    )


def all_reduce(number: int, who: str, size: int, environment: t.Mapping[str, str]) -> dict[str, t.Any]:
    import nccl_torch

    arguments = {"size": size, "iterations": ITERATIONS, "warmup": WARMUP}
    done = nccl_torch.run("all_reduce", environment, arguments, timeout=120)
    row = {
        "task": "all_reduce",
        "round": number,
        "who": who,
        "size": size,
        "busbw": done["result"].get("busbw"),
        "us": done["result"].get("us"),
        "seconds": round(done["seconds"], 3),
        "failure": "" if done["ok"] else done["log"][-300:],
    }
    print(row, flush=True)
    return row


def ddp(who: str, environment: t.Mapping[str, str]) -> dict[str, t.Any]:
    import nccl_torch

    done = nccl_torch.run("ddp", environment, {"steps": 5}, timeout=180)
    said = re.findall(r"no algorithm/protocol available[^\n]{0,80}", done["log"], re.IGNORECASE)
    row = {
        "task": "ddp",
        "who": who,
        "ok": done["ok"],
        "losses": done["result"].get("losses"),
        "seconds": round(done["seconds"], 3),
        "failure": "" if done["ok"] else (said or [done["log"][-300:]])[0],
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=recorded.RESULTS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(measure(arguments.rounds, arguments.out))


if __name__ == "__main__":
    main()
