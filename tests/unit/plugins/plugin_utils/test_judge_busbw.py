# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the launcher brought back to rows, transport, verdicts and findings."""

from __future__ import annotations

import json
import pathlib
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._collective_sizes import FACTORS
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils import expectation, transport
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.benchmark_result import shape_run, shape_runs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_busbw import judge_busbw
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.line_rates import LineRates
from hypothesis import given
from hypothesis import strategies as st

HEAD = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  11 on  host-a device  0 [0000:1a:00] NVIDIA H200
#  Rank  1 Group  0 Pid  12 on  host-b device  0 [0000:1a:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n#\n"


def line(size: int, busbw: float, wrong: str = "0", collective: str = "all_reduce", ranks: int = 2) -> str:
    algbw = busbw / FACTORS[collective](ranks)
    half = f"{size / algbw / 1e3:.2f} {algbw:.6f} {busbw:.6f} {wrong}"
    return f"  {size}  {size // 4}  float  sum  -1  {half}  {half}\n"


def raw(stdout: str = "", **more: t.Any) -> dict[str, t.Any]:
    """A result as _benchmark_run makes it."""
    return {
        "backend": "nccl", "launcher": "mpirun", "collective": "all_reduce", "stage": "cluster", "rail": "", "claim": "",
        "interfaces": {}, "nodes": ["n1", "n2"], "ranks": 2, "argv": ["mpirun", "all_reduce_perf", "-n", "20"],
        "environment": {"NCCL_DEBUG": "INFO"}, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "rc": 0,
        "timed_out": False, "timeout_s": 60.0, "problem": "", "stdout": stdout, "stderr": "", "report": None, "lost": {},
        "gone": {},
        "deltas": {}, "logs": {}, **more,
    }  # fmt: skip


NAMES = {"n1": "host-a", "n2": "host-b"}
WHOLE = HEAD + line(1 << 20, 20.0) + line(1 << 30, 45.0) + FOOT


def hcas(*names: str, layer: str = "InfiniBand", gbps: float = 400.0) -> list[dict[str, t.Any]]:
    """What hca_info says of HCAs with one active port each, as far as the judge reads it."""
    port = {"port": 1, "state": "ACTIVE", "rate_gbps": gbps, "link_layer": layer, "netdev": ""}
    same = {"driver": "mlx5_core", "rdma_driver": "mlx5_core", "vf": False, "pcie": None, "board_id": "", "gpu": None}
    return [{"name": name, "ports": [port], **same} for name in names]


def with_hcas(found: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    return {"rdma": {"observed": {"hcas": found, "netdevs": {}}}}


RDMA = with_hcas(hcas("mlx5_0", "mlx5_1"))
NODES = {"n1": RDMA, "n2": RDMA}


# ---- shapes and failures


def test_a_whole_run() -> None:
    run = shape_run(raw(WHOLE), NAMES)
    assert run["failure"] is None and run["completed"] and run["validated"]
    assert [row["size_bytes"] for row in run["rows"]] == [1 << 20, 1 << 30]
    assert run["rows"][1]["out_of_place"]["busbw_gbs"] == 45.0
    assert run["rows"][0] | {} == run["rows"][0] and run["rows"][0]["dtype"] == "float"


CUT = HEAD + line(1 << 20, 20.0)


#: as Open MPI 4 and 5 say it, broken where a line is full
SIGNALLED = (
    "----\n{program} noticed that process rank 1 with PID 4711 on node {node} exited on\nsignal 9 (Killed).\n----\n"
)
ADDRESSES = {"n1": "192.0.2.1", "n2": "192.0.2.2"}


@pytest.mark.parametrize(
    ("result", "failure", "hosts"),
    [
        (raw(WHOLE, rc=7), "exit_status", []),
        (raw(CUT), "incomplete", []),
        (raw(""), "no_rows", []),
        (raw(CUT, rc=None, timed_out=True), "timeout", []),
        (raw(CUT, rc=1, lost={"n2": "its connection ended"}), "node_lost", ["n2"]),
        (raw(CUT, rc=-15, problem="interrupted: nobody renewed the launcher's lease any more"), "interrupted", []),
        (raw("", rc=None, problem="the launcher has no such program"), "not_run", []),
        (raw(HEAD + line(8, 1.0, "3") + FOOT.replace("0 OK", "3 FAILED"), rc=1), "wrong_results", []),
        (raw(HEAD + "  8  2  float  sum  -1  nan nan nan 0  1.0 1.0 1.0 0\n" + FOOT), "non_finite_values", []),
        (raw(CUT + "host-b: Test CUDA failure common.cu:892 'out of memory'\n .. host-b pid 12: Test failure common.cu:401\n", rc=2),
         "cuda", ["n2"]),
        (raw(HEAD.replace("Rank  1 ", "Rank  0 ") + line(8, 1.0) + FOOT), "not_one_communicator", []),
        (raw(CUT, rc=137, stderr=SIGNALLED.format(program="mpirun", node="host-b")), "rank_died", ["n2"]),
        (raw(CUT, rc=137, stderr=SIGNALLED.format(program="prterun", node="192.0.2.2"), addresses=ADDRESSES), "rank_died", ["n2"]),
        (raw(CUT, rc=139, stderr="srun: error: host-b: task 1: Segmentation fault\nsrun: error: host-a: task 0: Terminated\n"),
         "rank_died", ["n2"]),
        (raw(CUT, rc=3, stderr="Process name: [prterun-host-a-77@1,1]\nExit code:    3\n"), "rank_died", []),
    ],
)  # fmt: skip
def test_the_exit_status_alone_says_nothing(result: dict[str, t.Any], failure: str, hosts: list[str]) -> None:
    run = shape_run(result, NAMES)
    assert (run["failure"], run["failing_hosts"]) == (failure, hosts)
    verdicts, findings = judge_busbw([run], {}, NODES)
    errors = [finding for finding in findings if finding.severity == "error"]
    assert f"benchmark_{failure}" in {finding.id for finding in errors}
    assert [finding.node for finding in errors if finding.id == f"benchmark_{failure}"] == (hosts or [""])
    assert len(verdicts) == len(run["rows"]), "what was measured before is kept and judged"


def told(result: dict[str, t.Any]) -> Finding:
    _, findings = judge_busbw([shape_run(result, NAMES)], {"nccl_tests_line_rate_gbps": 400}, NODES)
    errors = [finding for finding in findings if finding.severity == "error"]
    assert len(errors) == 1, "one failure is one error"
    return errors[0]


def test_what_is_typed_fits_what_cuda_says() -> None:
    failed = "host-b: Test CUDA failure common.cu:892 '{}'\n .. host-b pid 12: Test failure common.cu:401\n"
    memory = told(raw(HEAD + failed.format("out of memory"), rc=2))
    assert memory.node == "n2" and "another process" in memory.cause and "nccl_tests_max_bytes" in memory.fix
    ecc = told(raw(HEAD + failed.format("uncorrectable ECC error encountered"), rc=2))
    assert ecc.node == "n2" and "memory is failing" in ecc.cause and "nvidia-smi -q -d ECC" in ecc.fix
    other = told(raw(HEAD + failed.format("an illegal memory access was encountered"), rc=2))
    assert other.cause == "" and "illegal memory access" in other.evidence


def test_a_rank_that_died_is_told_with_its_signal() -> None:
    death = told(raw(HEAD, rc=137, stderr=SIGNALLED.format(program="mpirun", node="host-b")))
    assert "rank 1 was ended by signal 9 (Killed)" in death.evidence and "journalctl -k" in death.fix
    assert "SIGSEGV" in told(raw(HEAD, rc=-11)).evidence, "a program that mpirun did not start"


def test_wrong_data_are_one_finding_with_their_size() -> None:
    text = HEAD + line(1 << 30, 45.0) + line(1 << 31, 45.0, "7") + FOOT.replace("0 OK", "14 FAILED")
    finding = told(raw(text, rc=1))
    assert finding.id == "benchmark_wrong_results" and "7 element(s) at 2 GiB" in finding.evidence


def test_values_that_are_no_numbers_are_counted_and_no_row_is_shown_as_a_reason() -> None:
    rows = "".join(
        f"  {size}  2  float  sum  -1  {value} {value} 0.0 0  1.0 1.0 1.0 0\n"
        for size, value in ((8, "nan"), (16, "inf"))
    )
    finding = told(raw(HEAD + rows + FOOT))
    assert finding.id == "benchmark_non_finite_values" and "2 row(s) hold nan or inf" in finding.evidence
    last = told(raw(HEAD + line(8, 1.0), rc=1))
    assert last.evidence.endswith("exit status 1 (1 size(s) were measured before)")
    assert last.fix == "less logs/01-cluster-all_reduce.*.txt"


def test_what_collectives_have_in_common_is_told_once_with_the_worst() -> None:
    slow = {"all_reduce": 20.0, "all_gather": 10.0, "alltoall": 30.0}
    runs = [
        shape_run(raw(HEAD + line(1 << 30, busbw) + FOOT, collective=name, nodes=["n1"], stage="node"), NAMES)
        for name, busbw in slow.items()
    ]
    settings = {"nccl_tests_expect": [{"busbw_gbs": 100}], "nccl_tests_line_rate_gbps": 800}
    _, findings = judge_busbw(runs, settings, NODES)
    (finding,) = [finding for finding in findings if finding.id == "busbw_below_expected"]
    assert finding.subject.startswith("all_reduce, all_gather, alltoall (nccl, node") and finding.node == "n1"
    assert "nvidia-smi nvlink -s" in finding.fix, "isolate would not tell more: the node is known"
    assert finding.evidence.startswith("all_gather: 1 of 1 sizes are below") and "10 GB/s" in finding.evidence


def test_nodes_that_are_why_nothing_was_measured_are_one_finding() -> None:
    why = "it has no all_reduce_perf in /opt"
    left_out = [{"node": "n1", "why": why}, {"node": "n2", "why": why}, {"node": "n3", "why": "it has no GPU"}]
    _, findings = judge_busbw([], {}, NODES, left_out, why)
    assert [(finding.id, finding.node) for finding in findings] == [
        ("node_not_measured", "n3"),
        ("benchmark_not_run", ""),
    ]
    assert findings[1].evidence == f"nothing was measured: n1, n2: {why}"


def test_what_follows_from_a_lost_node_is_no_second_error() -> None:
    gone = {"n2": "its connection ended"}
    lost = shape_run(raw(CUT, rc=1, lost=gone, claim="tcp", backend="mpi"), NAMES)
    after = shape_run(
        raw("", rc=None, problem="too few nodes are left without n2 (its connection ended)", gone=gone), NAMES
    )
    _, findings = judge_busbw([lost, after], {}, NODES)
    assert [(f.id, f.severity, f.node) for f in findings] == [
        ("benchmark_node_lost", "error", "n2"),
        ("benchmark_not_run", "notice", "n2"),
    ]
    assert "its connection ended (1 size(s) were measured before)" in findings[0].evidence


def test_a_report_is_read_before_the_text_and_only_if_it_is_whole() -> None:
    half = {"time": 5.123456, "alg_bw": 1.5, "bus_bw": 1.5, "nwrong": 0}
    entry = {
        "size": 1 << 20,
        "count": 1 << 18,
        "type": "float",
        "redop": "sum",
        "root": "-1",
        "out_of_place": half,
        "in_place": half,
    }
    report = {"version": 3, "config": {}, "devices": [], "results": [entry, {**entry, "size": 1 << 30}]}
    run = shape_run(raw(WHOLE, report=report), NAMES)
    assert run["rows"][0]["out_of_place"]["time_us"] == 5.123456
    run = shape_run(raw(WHOLE, report={**report, "results": [entry]}), NAMES)
    assert run["rows"][0]["out_of_place"]["busbw_gbs"] == 20.0


def test_nodes_that_ran_alone_are_a_run_each() -> None:
    alone = {"n1": {"rc": 0, "timed_out": False, "seconds": 2.0, "stdout": WHOLE, "stderr": ""}}
    runs = shape_runs(raw("", stage="node", alone=alone), NAMES)
    assert [(run["nodes"], run["failure"]) for run in runs] == [(["n1"], None), (["n2"], "not_run")]
    assert runs[1]["failing_hosts"] == ["n2"]


def test_long_output_is_bounded() -> None:
    assert len(shape_run(raw(WHOLE + "x" * 3_000_000), NAMES)["stdout"]) <= 200_000


# ---- transport


def delta(ethernet: float = 0.0, data: float = 0.0, packets: int = 0) -> dict[str, t.Any]:
    return {
        "netdevs": {"eth1": {"tx_bytes": int(ethernet), "rx_bytes": int(ethernet)}},
        "hcas": {"mlx5_0/1": {"port_xmit_data": int(data / 4), "sent_pkts": packets}},
        "cpu_busy": 0.5,
        "seconds": 1.0,
    }


def mpi(claim: str, first: dict[str, t.Any], second: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    deltas = {"n1": first, "n2": second or first}
    interfaces = {"n1": ["eth1"], "n2": ["eth1"]}
    return shape_run(
        raw(WHOLE, backend="mpi", claim=claim, deltas=deltas, interfaces=interfaces, stderr=SELECTED), NAMES
    )


SELECTED = "[n1:1] select: component ob1 selected\n"
MOVED = 2 * 20 * ((1 << 20) + (1 << 30))


def test_bytes_that_a_run_moves() -> None:
    rows = [{"size_bytes": 1000}]
    assert transport.bytes_to_move("all_reduce", 2, 20, rows) == 40_000
    assert transport.bytes_to_move("all_gather", 4, 1, rows) == 1500


@pytest.mark.parametrize(
    ("first", "proven"),
    [
        (delta(ethernet=MOVED * 1.05), "tcp"),
        (delta(ethernet=MOVED * 1.05, packets=MOVED // 1024), "rdma"),
        (delta(data=MOVED * 1.01), "rdma"),
        (delta(ethernet=MOVED * 0.1), ""),
        (delta(), ""),
    ],
)
def test_counters_prove_the_transport(first: dict[str, t.Any], proven: str) -> None:
    run = mpi("tcp", first)
    assert run["transport"]["proven"] == proven
    assert any("ob1" in sentence for sentence in run["transport"]["evidence"])
    assert mpi("tcp", delta(ethernet=MOVED * 1.05), first)["transport"]["proven"] == ("tcp" if proven == "tcp" else "")
    _, findings = judge_busbw([run], {"nccl_tests_line_rate_gbps": 1}, NODES)
    ids = {finding.id for finding in findings}
    assert ("transport_fallback" in ids) == (proven == "rdma")
    assert ("transport_not_proven" in ids) == (proven == "")


def channels(kind: str) -> str:
    return (
        "host-a:11:11 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
        f"host-a:11:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via {kind}\n"
        f"host-b:12:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via {kind}\n"
    )


@pytest.mark.parametrize(
    ("kind", "claim", "finding"),
    [
        ("NET/IB/0/GDRDMA", "IB", ""),
        ("NET/IBext_v8/0", "IB", ""),
        ("NET/Socket/0", "IB", "transport_fallback"),
        ("NET/Socket/0", "Socket", ""),
        ("P2P/CUMEM", "P2P", ""),
        ("P2P/CUMEM", "IB", "transport_fallback"),
    ],
)
def test_a_silent_fall_back_fails(kind: str, claim: str, finding: str) -> None:
    run = shape_run(raw(WHOLE, claim=claim, logs={"n1": {"nccl-a.log": channels(kind)}}), NAMES)
    _, findings = judge_busbw([run], {}, NODES)
    found = {entry.id for entry in findings if entry.id.startswith("transport")}
    assert found == ({finding} if finding else set()), run["transport"]


def test_no_log_proves_nothing() -> None:
    run = shape_run(raw(WHOLE, claim="IB"), NAMES)
    _, findings = judge_busbw([run], {}, NODES)
    assert "transport_not_proven" in {entry.id for entry in findings}


# ---- expectations


def judged(
    busbw: float, settings: dict[str, t.Any] | None = None, size: int = 8 << 30, **more: t.Any
) -> tuple[str, str]:
    run = shape_run(raw(HEAD + line(size, busbw) + FOOT, **more), NAMES)
    run["transport"] = {"claimed": "IB", "proven": "IB", "evidence": []}
    verdicts, _ = judge_busbw([run], settings or {}, NODES)
    return verdicts[0]["status"], verdicts[0]["why"]


def test_line_rate_is_what_the_poorest_node_s_hcas_give() -> None:
    assert judged(85.0)[0] == "pass", "2 × 400 Gb/s are 100 GB/s"
    status, why = judged(60.0)
    assert status == "fail" and "2 × 400 Gb/s" in why
    one = with_hcas(hcas("mlx5_0"))
    run = shape_run(raw(HEAD + line(8 << 30, 42.0) + FOOT), NAMES)
    assert judge_busbw([run], {}, {"n1": RDMA, "n2": one})[0][0]["line_rate_gbs"] == 50.0


def test_the_user_s_own_numbers_come_first() -> None:
    assert judged(60.0, {"nccl_tests_line_rate_gbps": 560})[0] == "pass"
    assert judged(60.0, {"nccl_tests_efficiency": 0.65})[0] == "pass"
    assert judged(60.0, {"nccl_tests_tolerated_share": 0.5})[0] == "pass"
    told = [{"collective": "all_gather", "busbw_gbs": 200}, {"stage": "cluster", "min_bytes": "1G", "busbw_gbs": 61}]
    assert judged(60.0, {"nccl_tests_expect": told})[0] == "pass"
    assert judged(50.0, {"nccl_tests_expect": told}) == (
        "fail",
        "50 GB/s, 82% of the 61 GB/s expected (nccl_tests_expect)",
    )


def test_small_sizes_are_held_against_time() -> None:
    status, why = judged(0.5, size=8192)
    assert status == "pass" and why.startswith("mostly latency")
    assert judged(0.001, size=8192)[0] == "fail"


def test_a_size_of_nothing_passes_and_wrong_data_never_do() -> None:
    run = shape_run(
        raw(HEAD + "  0  0  float  none  -1  9.1 0.00 0.00 0  9.0 0.00 0.00 0\n" + line(64, 0.01, "5") + FOOT), NAMES
    )
    verdicts, _ = judge_busbw([run], {}, NODES)
    assert [verdict["status"] for verdict in verdicts] == ["pass", "fail"]


def test_without_a_line_rate_nothing_passes() -> None:
    run = shape_run(raw(WHOLE), NAMES)
    verdicts, findings = judge_busbw([run], {}, {})
    assert {verdict["status"] for verdict in verdicts} == {"unjudged"}
    assert [finding.id for finding in findings] == ["busbw_not_judged"]


def test_a_baseline_replaces_what_is_computed(tmp_path: pathlib.Path) -> None:
    accepted = shape_run(raw(HEAD + line(8 << 30, 70.0) + FOOT), NAMES)
    accepted["transport"]["claimed"] = "IB"
    path = tmp_path / "run.json"
    whole = {"schema_version": 2, "run_id": "accepted", "findings": [], "benchmark": {"runs": [accepted]}}
    path.write_text(json.dumps(whole))
    assert judged(66.0, {"nccl_tests_baseline": str(path)})[0] == "pass"
    assert judged(60.0, {"nccl_tests_baseline": str(path)})[0] == "fail"
    _, findings = judge_busbw([], {"nccl_tests_baseline": str(tmp_path / "none.json")}, {})
    assert [finding.id for finding in findings] == ["baseline_unreadable"]


def test_who_was_left_out_is_said() -> None:
    left_out = [{"node": "n3", "why": "it is busy: Slurm job(s) 7"}, {"node": "n4", "why": "mpirun is not installed"}]
    _, findings = judge_busbw(
        [], {}, {}, left_out, "a benchmark of the network needs two nodes, and only n1 can take part"
    )
    assert [(f.id, f.severity, f.node) for f in findings] == [
        ("node_not_measured", "notice", "n3"),
        ("node_not_measured", "error", "n4"),
        ("benchmark_not_run", "error", ""),
    ]


@given(st.integers(1, 1 << 40), st.integers(2, 4096), st.floats(0.01, 4000), st.floats(1, 1e5))
def test_expected_busbw_grows_with_size_and_stays_below_its_peak(
    size: int, ranks: int, peak: float, latency: float
) -> None:
    expected = expectation.Expectation(peak * 2, peak, latency, "")
    smaller, larger = (expected.busbw_gbs("all_reduce", bytes_, ranks) or 0.0 for bytes_ in (size, 2 * size))
    assert 0.0 < smaller <= larger <= peak * (1 + 1e-9)


def test_one_nic_a_rank_for_collectives_without_rings() -> None:
    run = shape_run(raw(WHOLE, collective="alltoall", ranks=16), NAMES)
    run["ranks"] = 16
    observed = dict.fromkeys(("n1", "n2"), with_hcas(hcas(*(f"mlx5_{number}" for number in range(8)))))
    rates = LineRates(observed, {})
    rate = expectation.expect(run, {}, observed, rates).line_rate_gbs
    assert rate == pytest.approx(50.0 * 15 / 8), "8 of 15 parts cross the NIC"
    assert expectation.expect({**run, "collective": "all_reduce"}, {}, observed, rates).line_rate_gbs == 400.0


def test_only_ports_that_carry_collectives_count() -> None:
    """A storage adapter beside the compute ones adds nothing; the site's own choice beats the rule."""
    node = with_hcas([*hcas("mlx5_0", "mlx5_1"), *hcas("mlx5_storage", layer="Ethernet", gbps=200.0)])
    run = shape_run(raw(WHOLE), NAMES)
    observed = dict.fromkeys(("n1", "n2"), node)
    assert judge_busbw([run], {}, observed)[0][0]["line_rate_gbs"] == 100.0
    chosen = {"rdma_select_names": ["mlx5_0"]}
    assert judge_busbw([run], chosen, observed)[0][0]["line_rate_gbs"] == 50.0
    other = {**hcas("efa_0", layer="Ethernet", gbps=100.0)[0], "driver": "efa", "rdma_driver": "efa"}
    assert judge_busbw([run], {}, dict.fromkeys(("n1", "n2"), with_hcas([other])))[0][0]["line_rate_gbs"] == 12.5


def test_every_verdict_can_be_derived_again() -> None:
    """No number of a verdict is typed in: each is the row's, or follows from settings and observations."""
    run = shape_run(raw(WHOLE), NAMES)
    verdicts, _ = judge_busbw([run], {}, NODES)
    for verdict, row in zip(verdicts, run["rows"], strict=True):
        point = expectation.Expectations(run, {}, NODES, LineRates(NODES, {})).at(row["size_bytes"])
        assert verdict["busbw_gbs"] == row["out_of_place"]["busbw_gbs"]
        assert verdict["expected_busbw_gbs"] == point.busbw_gbs
        assert verdict["margin"] == pytest.approx(verdict["busbw_gbs"] / point.busbw_gbs - 1)


def test_a_thousand_nodes_are_judged_in_seconds() -> None:
    names = [f"n{i}" for i in range(1024)]
    text = HEAD + "".join(line(1 << n, 100.0) for n in range(3, 33)) + FOOT
    runs = [shape_run(raw(text, nodes=names, ranks=8192), {}) for _ in range(7)]
    began = time.monotonic()
    verdicts, _ = judge_busbw(runs, {}, dict.fromkeys(names, RDMA))
    assert len(verdicts) == 210 and time.monotonic() - began < 2.0


@pytest.mark.parametrize(("busbw", "found"), [(455.0, False), (300.0, True)])
def test_published_figures_are_a_cross_check(busbw: float, found: bool) -> None:
    run = shape_run(raw(HEAD + line(16 << 30, busbw) + FOOT, stage="node", nodes=["n1"]), NAMES)
    run["ranks"] = 8
    gpus = {"node": {"observed": {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * 8}}}
    _, findings = judge_busbw([run], {"nccl_tests_efficiency": 0.5}, {"n1": gpus})
    assert [f.severity for f in findings if f.id == "busbw_below_published"] == ["warning"] * found


def test_published_figures_have_sources() -> None:
    figures = json.loads((expectation.DATA / "published_busbw.json").read_text())["figures"]
    assert figures and all(
        figure["source"] and figure["busbw_gbs"] > 0 and figure["min_bytes"] >= 1 << 30 for figure in figures
    )


def ib_log(send: str, receive: str, version: str = "2.28.9", device: int = 0) -> str:
    text = ""
    for host in ("host-a", "host-b"):
        prefix = f"{host}:1:1 [0] NCCL INFO"
        text += (
            f"{prefix} NCCL version {version if host == 'host-b' else '2.28.9'}+cuda13.0\n{prefix} Using network IB\n"
        )
        ranks = "0[0] -> 1[0]" if host == "host-a" else "1[0] -> 0[0]"
        back = "1[0] -> 0[0]" if host == "host-a" else "0[0] -> 1[0]"
        text += f"{prefix} Channel 00/0 : {ranks} [send] via NET/IB/{device}{send}\n"
        text += f"{prefix} Channel 00/0 : {back} [receive] via NET/IB/{device}{receive}\n"
    return text


@pytest.mark.parametrize(
    ("text", "gpu", "ids"),
    [
        (ib_log("/GDRDMA", "/GDRDMA"), "NVIDIA H100 80GB HBM3", set()),
        (ib_log("", "/GDRDMA"), "NVIDIA H100 80GB HBM3", {"gdr_off"}),
        (ib_log("", "/GDRDMA"), "NVIDIA L40S", set()),
        (ib_log("", ""), "NVIDIA L40S", {"gdr_off"}),
    ],
)
def test_gpudirect_in_the_directions_that_the_hardware_makes_right(text: str, gpu: str, ids: set[str]) -> None:
    run = shape_run(raw(WHOLE, claim="IB", logs={"n1": {"a": text}}), NAMES)
    observed = {node: {**RDMA, "node": {"observed": {"gpus": [{"name": gpu}]}}} for node in NODES}
    _, findings = judge_busbw([run], {}, observed)
    found = {f.id for f in findings if f.id in ("gdr_off", "hcas_unused", "nccl_versions_differ")}
    assert found == ids, run["transport"]["log"]
    assert {f.node for f in findings if f.id == "gdr_off"} <= {"n1", "n2"}, "nodes by their names in the inventory"


def test_versions_that_differ_and_hcas_that_idle() -> None:
    run = shape_run(raw(WHOLE, claim="IB", logs={"n1": {"a": ib_log("/GDRDMA", "/GDRDMA", version="2.27.3")}}), NAMES)
    _, findings = judge_busbw([{**run, "ranks": 4}], {}, NODES)
    ids = [f.id for f in findings]
    assert "nccl_versions_differ" in ids
    assert ids.count("hcas_unused") == 2, "one of two HCAs by two ranks a node"
