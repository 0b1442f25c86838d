#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role nccl_tests on two GPUs of one machine: builds, measures, proves the transport, judges.

    python tests/benchmarks/nccl_tests_h200.py --source nccl-tests.tar.gz [--out DIRECTORY] [--keep DIRECTORY]

Through the playbook itself, with two inventory hosts that are this machine and have one GPU each: through NVLink, over TCP sockets
as two nodes would be, and over sockets while InfiniBand is expected, which must fail.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t

import recorded

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
#: NVLink multicast stays off: it can put a shared host's GPUs out of service
ALWAYS = {"NCCL_NVLS_ENABLE": "0"}
AS_TWO_NODES = {
    **ALWAYS,
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
COMMON = {
    "nccl_tests_backend": "nccl",
    "nccl_tests_gpus_per_node": 1,
    "nccl_tests_iterations": 20,
    "nccl_tests_warmup": 5,
    "nccl_tests_step_factor": 8,
    "nccl_tests_min_bytes": "1K",
    "nccl_tests_timeout_s": 90,
    "nccl_tests_poll_s": 1,
    "gpufabric_become": False,
    "gpufabric_busy": "ignore",
}
#: one machine under two names is an error of the inventory, and here it is meant
MEANT = "duplicate_boot_id"
#: {case: (settings, errors that the verdict must name besides MEANT)}
CASES: dict[str, tuple[dict[str, t.Any], list[str]]] = {
    "nvlink": (
        {
            "nccl_tests_stages": ["cluster"],
            "nccl_tests_collectives": list(COLLECTIVES),
            "nccl_tests_max_bytes": "2G",
            "nccl_tests_environment": ALWAYS,
            "nccl_tests_expected_network": "P2P",
            "nccl_tests_line_rate_gbps": 3600,
        },
        [],
    ),
    "socket": (
        {
            "nccl_tests_stages": ["cluster"],
            "nccl_tests_collectives": ["all_reduce"],
            "nccl_tests_max_bytes": "64M",
            "nccl_tests_environment": AS_TWO_NODES,
            "nccl_tests_expected_network": "Socket",
            "nccl_tests_line_rate_gbps": 40,
        },
        [],
    ),
    "socket_said_to_be_infiniband": (
        {
            "nccl_tests_stages": ["cluster"],
            "nccl_tests_collectives": ["all_reduce"],
            "nccl_tests_max_bytes": "64M",
            "nccl_tests_environment": AS_TWO_NODES,
            "nccl_tests_expected_network": "IB",
            "nccl_tests_line_rate_gbps": 400,
        },
        ["busbw_below_expected", "transport_fallback"],
    ),
}


def figures(record: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """By case: the best busbw (GB/s) of each collective, what was proven, exit statuses, and whether JSON and text agree."""
    answer: dict[str, t.Any] = {}
    for case in record["settings"]["cases"]:
        rows = [row for row in record["rows"] if row["case"] == case and "size_bytes" in row]
        (end,) = [row for row in record["rows"] if row["case"] == case and "exit_status" in row]
        best: dict[str, float] = {}
        for row in rows:
            best[row["collective"]] = max(best.get(row["collective"], 0.0), row["busbw_gbs"])
        answer[case] = {
            "best_busbw_gbs": best,
            "proven": sorted({row["proven"] for row in rows}),
            "sizes": len(rows),
            "sizes_where_text_differs": sum(abs(row["busbw_gbs"] - row["busbw_printed"]) > 0.006 for row in rows),
            "wrong": sum(row["wrong"] or 0 for row in rows),
            "exit_status": end["exit_status"],
            "error_findings": end["errors"],
        }
    return answer


def play(
    inventory: pathlib.Path, variables: dict[str, t.Any], results: pathlib.Path
) -> tuple[int, dict[str, t.Any], str]:
    """(exit status, run.json, output) of the playbook."""
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), str(ROOT / "playbooks/nccl_tests.yml")]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "GPUFABRIC_PLANTED": "planted-secret-7c1f",
    }
    extra = {**variables, "gpufabric_results_dir": str(results)}
    done = subprocess.run(
        [*argv, "-e", json.dumps(extra)], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=500
    )
    latest = results / "latest" / "run.json"
    if not latest.exists():
        raise SystemExit(f"no run.json\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
    if any(
        "planted-secret-7c1f" in path.read_text(errors="replace") for path in latest.parent.rglob("*") if path.is_file()
    ):
        raise SystemExit("a secret of the environment is in the results")
    return done.returncode, json.loads(latest.read_text()), done.stdout


def rows_of(case: str, record: t.Mapping[str, t.Any], logs: pathlib.Path) -> list[dict[str, t.Any]]:
    from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_output import parse_nccl_tests

    rows = []
    for number, run in enumerate(record["benchmark"].get("runs", []), start=1):
        if not run["rows"]:
            raise SystemExit(f"{case}: {run['collective']} gave no rows: {json.dumps(run)[:4000]}")
        text = (logs / f"{number:02d}-{run['stage']}-{run['collective']}.stdout.txt").read_text()
        printed = {row[0]: row[6] for row in parse_nccl_tests(text)["rows"]}
        for row in run["rows"]:
            half = row["out_of_place"]
            rows.append(
                {
                    "case": case,
                    "collective": run["collective"],
                    "size_bytes": row["size_bytes"],
                    "time_us": half["time_us"],
                    "busbw_gbs": half["busbw_gbs"],
                    "busbw_printed": printed.get(row["size_bytes"], 0.0),
                    "wrong": half["wrong"],
                    "ranks": run["ranks"],
                    "proven": run["transport"]["proven"],
                    "nccl": run["transport"]["log"]["nccl_version"],
                }
            )
    return rows


def measure(source: str, out: pathlib.Path, keep: pathlib.Path | None) -> pathlib.Path:
    sys.path[:0] = [str(ROOT / "collections")]
    rows: list[dict[str, t.Any]] = []
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        inventory = work / "hosts.yml"
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory.write_text(json.dumps({"all": {"hosts": {"g1": host, "g2": host}}}))
        common = {**COMMON, "nccl_tests_source": source, "nccl_tests_build_directory": str(work / "nccl-tests")}
        for case, (settings, expected) in CASES.items():
            began = time.monotonic()
            status, record, output = play(inventory, {**common, **settings}, work / "results")
            errors = sorted({finding["id"] for finding in record["findings"] if finding["severity"] == "error"})
            changed = sum(int(part.split()[0]) for part in output.split("changed=")[1:])
            end = {"case": case, "exit_status": status, "errors": errors, "changed": changed}
            rows.append({**end, "seconds": round(time.monotonic() - began, 1)})
            rows += rows_of(case, record, work / "results/latest/logs")
            print(rows[-1], flush=True)
            if keep:
                shutil.copytree((work / "results/latest").resolve(), keep / case, dirs_exist_ok=True)
                (keep / f"{case}.txt").write_text(output)
            if [error for error in errors if error != MEANT] != expected or status != 2:
                wrong.append(f"{case} ended with {status} and {errors}, expected {expected}\n{output[-4000:]}")
    path = recorded.write(
        "nccl_tests_h200",
        "the role nccl_tests on two GPUs of one machine, as two inventory hosts with one GPU each",
        {"cases": {case: settings for case, (settings, _) in CASES.items()}, "common": COMMON},
        rows,
        {"nccl": next((str(row["nccl"]) for row in rows if "nccl" in row), "")},
        host=subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.split(" (UUID")[
            0
        ],
        folder=out,
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--out", type=pathlib.Path, default=recorded.RESULTS)
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    for folder in filter(None, (arguments.out, arguments.keep)):
        folder.mkdir(parents=True, exist_ok=True)
    print(measure(str(pathlib.Path(arguments.source).resolve()), arguments.out, arguments.keep))


if __name__ == "__main__":
    main()
