#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The profile tcp, resolved and written by the role's own code, against NCCL's defaults: all_reduce over TCP sockets.

    python tests/benchmarks/nccl_env_tcp_h200.py [--rounds 5] [--out DIRECTORY]

Two ranks on one machine talk as two nodes would. Each round measures every size with NCCL's defaults, with the profile
(through an nccl.conf that NCCL_CONF_FILE names), and with the guide's own list, one after the other.
"""

from __future__ import annotations

import argparse
import pathlib
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
    for row in record["rows"]:
        if row["busbw"] is not None:
            by.setdefault((row["who"], row["size"]), []).append(row["busbw"])
    medians = {key: statistics.median(values) for key, values in by.items()}
    sizes = record["settings"]["sizes"]
    return {
        "busbw_ratio_64MiB": round(medians["tcp", JUDGED] / medians["default", JUDGED], 4),
        "guide_over_default_64MiB": round(medians["guide", JUDGED] / medians["default", JUDGED], 4),
        "worst_ratio_of_a_round_64MiB": round(
            min(
                row["busbw"] / other["busbw"]
                for row in record["rows"]
                for other in record["rows"]
                if row["round"] == other["round"]
                and (row["who"], other["who"]) == ("tcp", "default")
                and row["size"] == other["size"] == JUDGED
            ),
            4,
        ),
        "busbw_gbs": {
            who: {str(size): round(medians[who, size], 4) for size in sizes} for who in ("default", "tcp", "guide")
        },
    }


def resolved(nccl: str) -> dict[str, str]:
    """What resolve_fleet() gives a node without HCAs under the profile tcp, for this NCCL."""
    from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet

    node = {"hcas": [], "addresses": {"lo": ["127.0.0.1/8"]}, "nccl_version": nccl}
    result = resolve_fleet({"n1": node}, ["tcp"], {}, {"control_network": "127.0.0.0/8"})
    return {entry["name"]: entry["value"] for entry in result["nodes"]["n1"]["variables"]}


def measure(rounds: int, out: pathlib.Path) -> pathlib.Path:
    root = pathlib.Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "collections"), str(root / "tests/fixtures")]
    import nccl_torch

    versions = nccl_torch.versions()
    profile = resolved(versions["nccl"])
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        conf = pathlib.Path(directory) / "nccl.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in profile.items()))
        # the profile's interface comes from its file alone: what the environment has would come first
        subjects: dict[str, dict[str, str]] = {
            "default": {"NCCL_NET": "Socket"},
            "tcp": {"NCCL_CONF_FILE": str(conf)},
            "guide": {"NCCL_NET": "Socket", **GUIDE},
        }
        for number in range(rounds):
            for size in SIZES:
                for who, environment in subjects.items():
                    arguments = {"size": size, "iterations": ITERATIONS, "warmup": WARMUP}
                    done = nccl_torch.run("all_reduce", environment, arguments, timeout=120)
                    rows.append(
                        {
                            "round": number,
                            "who": who,
                            "size": size,
                            "busbw": done["result"].get("busbw"),
                            "us": done["result"].get("us"),
                            "seconds": round(done["seconds"], 3),
                            "failure": "" if done["ok"] else done["log"][-300:],
                        }
                    )
                    print(rows[-1], flush=True)
    return recorded.write(
        "nccl_env_tcp_h200",
        "all_reduce busbw (GB/s) of two ranks over TCP sockets: NCCL's defaults, the profile tcp, the guide's list",
        {
            "rounds": rounds,
            "sizes": list(SIZES),
            "iterations": ITERATIONS,
            "warmup": WARMUP,
            "environment": nccl_torch.BASE,
            "tcp": profile,
            "guide": GUIDE,
        },
        rows,
        versions,
        host=versions["gpus"],
        folder=out,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=recorded.RESULTS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(measure(arguments.rounds, arguments.out))


if __name__ == "__main__":
    main()
