# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501  # lines of logs are quoted whole
"""NCCL's logs of every version: what they say of transport, settings and failure, in any coding, of any size."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pathlib
import random
import time
import tracemalloc

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import (
    READ_WHOLE,
    parse_nccl_log,
    parse_nccl_log_stream,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = pathlib.Path(__file__).parents[3] / "fixtures" / "nccl_log"
TWO_NODES = (FIXTURES / "two_nodes_ib_2_28.txt").read_text(encoding="utf-8")


def test_a_whole_log_is_read():
    log = parse_nccl_log(TWO_NODES)
    assert (log["transport"], log["gdr"], log["nccl_version"]) == ("IB", True, "2.28.9+cuda13.0")
    assert log["hcas"] == ["mlx5_0", "mlx5_3"]
    assert log["hcas_by_host"] == {
        "gpu-a": {"mlx5_0:1": "IB", "mlx5_3:1": "IB"},
        "gpu-b": {"mlx5_0:1": "IB", "mlx5_3:1": "IB"},
    }
    assert log["interface"] == "ib0"
    assert log["environment"] == {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_TIMEOUT": "22", "NCCL_IB_HCA": "=mlx5_0,mlx5_3"}
    assert log["versions"]["cuda"] == "13.0"
    assert log["versions"]["cuda_driver"] == [13000]
    assert log["channels"] == {"coll": 16, "collnet": 16, "nvls": 0, "p2p": 16, "p2p_per_peer": 2}
    assert log["layout"] == {"nranks": 4, "nnodes": 2, "local_ranks": 2, "mnnvl": 0}
    assert log["transports"] == {"NET/IB/GDRDMA": 4, "P2P/CUMEM": 4, "SHM": 1}
    assert {"source": 0, "destination": 1, "transport": "P2P/CUMEM", "channels": 2} in log["transports_by_pair"]
    assert log["gdr_by_host"]["gpu-b"] == {"send": {"with": 1, "without": 0}, "receive": {"with": 1, "without": 0}}
    assert log["interfaces_by_host"]["gpu-a"] == ["ib0"]
    assert log["networks"] == {"IB": ["gpu-a", "gpu-b"]}
    assert log["algorithms"] == {"AllReduce RING/SIMPLE": 2, "AllGather NVLS/SIMPLE": 1}
    assert log["hosts"] == ["gpu-a", "gpu-b"]
    assert log["communicators"] == [
        {"id": "0x5be1", "nranks": 4, "ranks_seen": 4, "complete": 4, "not_complete": [], "never_seen": []}
    ]
    assert (log["failure"], log["first_failure"], log["failure_count"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Using network AWS Libfabric", {"transport": "AWS Libfabric"}),
        ("Using network IBext_v8", {"transport": "IBext_v8"}),
        ("Using network gIB", {"transport": "gIB"}),
        ("Using network Socket", {"transport": "Socket", "gdr": False}),
        ("Using internal Network Socket", {"transport": "Socket"}),
        (
            "Channel 04/1 : 12[4] -> 2[2] [receive] via NET/AWS Libfabric/1/GDRDMA/Shared",
            {"transport": "AWS Libfabric", "gdr": True},
        ),
        ("Channel 02/1 : 1[1] -> 9[1] [send] via NET/IB/1(0)/GDRDMA(PCI)/Shared", {"transport": "IB", "gdr": True}),
        ("Ring 00 : 3 -> 8 [send] via NET/IB/0", {"transport": "IB", "gdr": False}),
        ("Channel 00/0 : 0[1000] -> 1[2000] via P2P/direct pointer/read", {"transport": None, "gdr": None}),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", {"gdr": False}),
        ("GPU Direct RDMA Enabled for GPU 1a000 / HCA 0 (distance 4 <= 4), read 1", {"gdr": True}),
        (
            "NET/IB : Using [0]mlx5_0:1:0:2/RoCE [1]mlx5_bond_0:1/RoCE [RO]; OOB bond0:10.0.0.1<0>",
            {"hcas": ["mlx5_0", "mlx5_bond_0"], "transport": "IB"},
        ),
        ("NET/IB : Using [0]mlx5_1:1/IB/SHARP ; OOB ens7:10.0.0.1<0>", {"hcas": ["mlx5_1"]}),
        ("NET/IB: [0] mlx5_2:1/IB ", {"hcas": ["mlx5_2"]}),
        ("NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>", {"hcas": [], "transport": None}),
        ("Plugin Path : /opt/hpcx/lib/libnccl-net.so", {"plugin": "/opt/hpcx/lib/libnccl-net.so"}),
        (
            "Successfully loaded external network plugin /opt/x/libnccl-net-ofi.so",
            {"plugin": "/opt/x/libnccl-net-ofi.so"},
        ),
        ("NCCL_SOCKET_IFNAME set by environment to =bond0", {"interface": "=bond0"}),
        ("NCCL version 2.21.5+cuda12.4", {"nccl_version": "2.21.5+cuda12.4"}),
    ],
)
@pytest.mark.parametrize("prefix", ["n1:10:12 [0] NCCL INFO ", "[1,3]<stdout>:n1:10:12 [0] NCCL INFO ", "3: n1:10:12 [0] NCCL INFO ", "(W pid=7) n1:10:12 [0] NCCL INFO ", ""])  # fmt: skip
def test_facts_are_read_with_and_without_a_prefix(prefix, line, expected):
    log = parse_nccl_log(prefix + line)
    assert {key: log[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", ("ib_completion", 12, 129, None, None)),
        ("NET/IB : Got completion from peer 10.0.0.2<5> with error 5, opcode 1, len 0, vendor err 249 (Send)", ("ib_completion", 5, 249, "Send", None)),
        ("NET/IB: Got completion from peer 10.0.0.2<5> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid ::1 remoteGids::2 hca mlx5_3", ("ib_completion", 12, 129, "Send", None)),
        ("Call to ibv_modify_qp failed with error Network is unreachable", ("ibv_modify_qp", None, None, None, "Network is unreachable")),
        ("Call to ibv_modify_qp failed with error Connection timed out errno 110", ("ibv_modify_qp", None, None, None, "Connection timed out")),
        ("Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_0:1, curr state INIT, next state RTR", ("ibv_modify_qp", None, None, None, "No such device")),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", ("ibv_reg_mr", None, None, None, "Cannot allocate memory")),
        ("Call to ibv_reg_dmabuf_mr failed with error Operation not supported", ("ibv_reg_dmabuf_mr", None, None, None, "Operation not supported")),
        ("Call to ibv_create_cq failed", ("ibv_create_cq", None, None, None, None)),
        ("Bootstrap : no socket interface found", ("bootstrap", None, None, None, None)),
        ("NET/Socket : no interface found", ("bootstrap", None, None, None, None)),
        ("Call to connect failed : Connection timed out", ("bootstrap", None, None, None, "Connection timed out")),
        ("Call to connect timeout : Connection refused", ("bootstrap", None, None, None, "Connection refused")),
        ("Net : Connect to 10.0.0.2<4711> failed : No route to host", ("bootstrap", None, None, None, "No route to host")),
        ("socketPollConnect: Connect to 10.0.0.2<5> returned 113(No route to host) errno 115(Operation now in progress)", ("bootstrap", None, None, None, "No route to host")),
        ("socketPollConnect: connect to 10.0.0.2<5> returned Connection refused, exceeded error retry count after 35 attempts", ("bootstrap", None, None, None, "Connection refused")),
        ("ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)", ("bootstrap", None, None, None, None)),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", ("duplicate_gpu", None, None, None, None)),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left on device (28)", ("shm", None, None, None, "No space left on device")),
        ("Call to posix_fallocate failed : No space left on device", ("shm", None, None, None, "No space left on device")),
        ("Error: failed to extend /dev/shm/nccl-x to 5967876 bytes", ("shm", None, None, None, None)),
        ("Cuda failure 2 'out of memory'", ("cuda", None, None, None, None)),
        ("Mismatched NCCL version detected : rank 1 version 22105 rank 0 version 22203", ("version_mismatch", None, None, None, None)),
        ("socketProgress: Connection closed by remote peer n9<41109>", ("bootstrap", None, None, None, None)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "prefix",
    [
        "n1:10:12 [0] misc/x.cc:187 NCCL WARN ",
        "[2026-03-13 22:26:02] n1:10:12 [0] misc/x.cc:187 (ncclThing) NCCL WARN ",
        "n1:10:12 [0] include/socket.h:360 WARN ",
        "NCCL WARN ",
        "misc/ibvwrap.cc:278 NCCL WARN ",
        "",
    ],
)
def test_failures_are_named_with_their_numbers(prefix, line, expected):
    log = parse_nccl_log(prefix + line)
    assert (log["failure"], log["status"], log["vendor_err"], log["direction"], log["errno_text"]) == expected


@pytest.mark.parametrize(
    "line",
    [
        "n1:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "n1:1:2 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, retrying 1/4 after 100 msec of sleep",
        "n1:1:2 [0] NCCL INFO NET/IB : No device found.",
        "n1:1:2 [0] NCCL INFO Failed to open libibverbs.so[.1]",
        "n1:1:2 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file",
        "TOPO/NET : Force-fusing NICs using NCCL_NET_FORCE_MERGE=mlx5_1,mlx5_3",
    ],
)
def test_what_nccl_itself_survives_is_no_failure(line):
    assert parse_nccl_log(line)["failure"] is None


def test_the_first_failing_rank_is_the_cause_not_the_consequence():
    text = (
        "n1:10:20 [0] NCCL INFO comm 0xa rank 0 nranks 3 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init START\n"
        "n2:11:21 [0] NCCL INFO comm 0xb rank 1 nranks 3 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init START\n"
        "n1:10:20 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<41109>\n"
        "n1:10:20 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=5 opcode=0 len=0 vendor err 249 (Send)\n"
        "n2:11:21 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
    )
    log = parse_nccl_log(text)
    assert (log["failure"], log["errno_text"]) == ("ibv_reg_mr", "Cannot allocate memory")
    first = log["first_failure"]
    assert (first["host"], first["rank"], first["pid"], first["line"]) == ("n2", 1, 11, 5)
    assert [failure["consequence"] for failure in log["failures"]] == [True, True, False]
    assert log["communicators"][0]["not_complete"] == [0, 1]
    assert log["communicators"][0]["never_seen"] == [2]


def test_a_host_that_a_value_is_glued_to_is_known_by_its_name():
    lines = "n7:1:2 [0] NCCL INFO Using network IB\n  8  2  float  sum  -1n7:1:2 [0] NCCL INFO Launch mode Parallel\n  1.0  2.0  3.0  0n7:1:2 [0] NCCL INFO x\n"
    assert parse_nccl_log(lines)["hosts"] == ["n7"]
    assert parse_nccl_log("10-2-0-7:1:2 [0] NCCL INFO Using network IB\n" + lines)["hosts"] == ["10-2-0-7", "n7"]


def test_what_every_healthy_start_says_is_not_notable():
    assert parse_nccl_log(TWO_NODES)["notable"] == []


def test_time_stamps_beat_the_order_of_joined_files():
    later = "[2026-03-13 22:26:09] n1:10:20 [0] x.cc:1 NCCL WARN Call to ibv_create_qp failed"
    earlier = "[2026-03-13 22:26:02] n2:11:21 [0] x.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    assert parse_nccl_log(f"{later}\n{earlier}\n")["first_failure"]["host"] == "n2"


def test_the_earliest_failure_is_found_behind_more_failures_than_are_kept():
    line = "[2026-03-13 22:26:%02d] n%d:10:20 [0] x.cc:1 NCCL WARN Call to ibv_create_qp failed\n"
    text = "".join(line % (30 + number % 20, number) for number in range(400)) + line % (2, 999)
    log = parse_nccl_log(text)
    assert (len(log["failures"]), log["failure_count"]) == (200, 401)
    assert log["first_failure"]["host"] == "n999"


def test_the_cuda_call_behind_a_shared_segment_is_not_the_failure():
    lines = "[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n[1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-N (size 9637888)\n"
    assert parse_nccl_log(lines)["failure"] == "shm"
    assert parse_nccl_log(lines.split("\n")[0])["failure"] == "cuda"


def test_the_network_in_use_is_not_the_one_that_was_listed_first():
    listed = (
        "c1:21:22 [0] NCCL INFO NET/Socket : Using [0]ens3:10.7.1.1<0>\n"
        "c1:21:22 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/IB ; OOB ens3:10.7.1.1<0>\n"
    )
    assert parse_nccl_log(listed)["transport"] == "IB"
    used = listed + "c1:21:22 [0] NCCL INFO Ring 00 : 1 -> 0 [receive] via NET/Socket/0\n"
    assert parse_nccl_log(used)["transport"] == "Socket"


def test_hcas_are_read_on_where_a_terminal_broke_their_list():
    text = "c1:21:22 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_3:1/RoCE \n[2]mlx5_4:1/RoCE [RO]; OOB eth0:10.7.1.1<0>"
    assert parse_nccl_log(text)["hcas"] == ["mlx5_2", "mlx5_3", "mlx5_4"]


def test_a_missing_libibverbs_is_the_failure_only_where_nothing_else_failed():
    missing = "c1:21:22 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    other = "c1:21:22 [0] include/socket.h:398 NCCL WARN Call to connect failed : Connection timed out\n"
    assert parse_nccl_log(missing)["failure"] == "libibverbs"
    assert parse_nccl_log(missing + other)["failure"] == "bootstrap"


def test_a_completion_tells_how_it_failed_although_an_event_came_before_it():
    log = parse_nccl_log(
        "n2:1:7 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error\n"
        "n1:1:8 [0] transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 10.3.0.2<33057> with status=9 opcode=0 "
        "len=0 vendor err 138 (Send)\n"
    )
    assert (log["failure"], log["first_failure"]["host"]) == ("ib_async", "n2")
    assert (log["status"], log["vendor_err"], log["direction"]) == (9, 138, "Send")


def test_several_lines_of_one_failure_share_the_error():
    lines = (
        "c1:77:140 [3] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-aB3 to 9637892 bytes\n"
        "{}:77:140 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    )
    assert parse_nccl_log(lines.format("c1"))["errno_text"] == "No space left on device"
    assert parse_nccl_log(lines.format("c2"))["errno_text"] is None


def test_a_rank_is_known_by_the_line_of_its_layout():
    log = parse_nccl_log(
        "g7:31:40 [2] NCCL INFO comm 0x55 rank 10 nRanks 16 nNodes 2 localRanks 8 localRank 2 MNNVL 0\n"
        "g7:31:55 [2] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
    )
    assert log["first_failure"]["rank"] == 10
    assert log["layout"]["nranks"] == 16


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-01-02T03:04:05Z"}),
        lambda line: json.dumps({"ts": 1, "msg": f'{line} in "quotes"'}),
        lambda line: line.replace(">", "&gt;").replace("<", "&lt;"),
    ],
    ids=["docker", "json", "html"],
)
def test_a_line_is_taken_out_of_what_carries_it(wrap):
    lines = [
        "g7:31:40 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB bond0:10.0.0.7<0>",
        "g7:31:40 [2] NCCL INFO Channel 00/0 : 10[2] -> 18[2] [send] via NET/IB/1/GDRDMA",
        "g7:31:55 [2] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.8<41000> with status=12 opcode=0 len=0 vendor err 129 (Send)",
    ]
    log = parse_nccl_log("\n".join(map(wrap, lines)))
    assert (log["hosts"], log["hcas"], log["transport"], log["gdr"]) == (["g7"], ["mlx5_0"], "IB", True)
    assert (log["failure"], log["status"]) == ("ib_completion", 12)


def test_channels_of_rccl_name_their_communicator():
    log = parse_nccl_log(
        "m1:9:13 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA comm 0x55aa nRanks 16\n"
        "m1:9:13 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x55aa nRanks 16\n"
    )
    assert log["transports"] == {"NET/IB/GDRDMA": 1, "P2P/IPC": 1}


def test_gdr_in_one_direction_is_asymmetric_and_told_by_host():
    lines = (
        "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        "n2:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/0\n"
    )
    log = parse_nccl_log(lines)
    assert log["gdr"] == "asymmetric"
    assert log["gdr_by_host"] == {
        "n1": {"send": {"with": 1, "without": 0}},
        "n2": {"receive": {"with": 0, "without": 1}},
    }


def test_jobs_that_are_mixed_are_told_apart():
    other = TWO_NODES.replace("0x5be1", "0x77aa").replace("gpu-", "dgx-").replace("22.", "20.")
    mixed = "\n".join(line for pair in zip(TWO_NODES.split("\n"), other.split("\n")) for line in pair)
    log = parse_nccl_log(mixed)
    assert [each["id"] for each in log["communicators"]] == ["0x5be1", "0x77aa"]
    assert log["hosts"] == ["gpu-a", "dgx-a", "gpu-b", "dgx-b"]
    assert log["environment_differs"] == {"NCCL_IB_TIMEOUT": ["20", "22"]}


def test_secrets_are_not_handed_on():
    log = parse_nccl_log(
        "n1:1:1 [0] NCCL INFO NCCL_PSK set by environment to planted-secret\nexport NCCL_API_TOKEN=planted-secret\n"
    )
    assert "planted-secret" not in json.dumps(log)


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text,
        lambda text: text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: gzip.compress(text.encode()),
        lambda text: bz2.compress(text.encode()),
        lambda text: lzma.compress(text.encode()),
        lambda text: gzip.compress(text.encode("utf-16")),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: io.BytesIO(text.encode()),
        lambda text: text.splitlines(keepends=True),
        lambda text: (text[start : start + 7] for start in range(0, len(text), 7)),
        lambda text: (text.encode()[start : start + 7] for start in range(0, len(text.encode()), 7)),
        lambda text: io.BytesIO(gzip.compress(text.encode())),
    ],
)
def test_every_coding_says_the_same(encode):
    expected = parse_nccl_log(TWO_NODES)
    answer = parse_nccl_log_stream(encode(TWO_NODES))
    for log in (expected, answer):
        log.pop("read")
    assert answer == expected


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_that_was_cut_off_counts_up_to_there(compress):
    packed = compress(TWO_NODES.encode() * 50)
    for end in range(0, len(packed), max(1, len(packed) // 23)):
        log = parse_nccl_log_stream(packed[:end])
        assert "2.28.9+cuda13.0".startswith(log["nccl_version"] or "2.")
    packed = gzip.compress(TWO_NODES.encode() + random.Random(1).randbytes(200_000).hex().encode())
    log = parse_nccl_log_stream(packed[:-5000])
    assert log["transport"] == "IB"
    assert "ended early" in log["read"]["problem"]


# -- large logs ----------------------------------------------------------------------------------------------------------


def large_log(blocks: int = 3):
    """A log of some MiB: its facts in the first lines and in the last, what a verbose job prints between them."""
    rng = random.Random(7)
    yield TWO_NODES.encode()
    for block in range(blocks):
        lines = []
        for step in range(12_000):
            node = f"node{rng.randrange(40):03d}:{4000 + rng.randrange(8)}:5000 [{step % 8}]"
            lines.append(
                f"{node} NCCL INFO AllReduce: opCount {step:x} sendbuff 0x7f recvbuff 0x7f count 2097152 datatype 7 op 0 root 0 comm 0x55 [nranks=320] stream 0x56"
            )
            if step % 40 == 0:
                lines.append(
                    f"{node} NCCL INFO Channel {step % 32:02d}/0 : {step % 320}[0] -> {(step + 8) % 320}[0] [send] via NET/IB/{step % 8}/GDRDMA"
                )
        yield ("\n".join(lines) + "\n").encode()
        yield f"iteration {block} loss 2.1 took 3.2 s\n".encode() * 50
    yield b"late:77:78 [3] NCCL INFO NCCL_IB_RETRY_CNT set by environment to 6.\n"
    yield b"\nlate:77:78 [3] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.9.9.9<1> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
    yield b"torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error\n"


def test_a_large_log_is_read_the_fast_way_with_the_same_facts():
    text = b"".join(large_log())
    assert len(text) > 4 * READ_WHOLE
    fast = parse_nccl_log_stream(large_log())
    slow = parse_nccl_log_stream(line for line in text.splitlines(keepends=True))
    reference = parse_nccl_log(text[: READ_WHOLE // 2])
    assert fast == slow
    assert fast["lines"] == text.count(b"\n")
    assert fast["environment"] == {**reference["environment"], "NCCL_IB_RETRY_CNT": "6"}
    assert fast["transports"]["NET/IB/GDRDMA"] == text.count(b"via NET/IB")
    assert (fast["failure"], fast["status"], fast["first_failure"]["host"]) == ("ib_completion", 12, "late")
    line = text[: text.index(b"status=12")].count(b"\n") + 1
    assert fast["first_failure"]["line"] == line
    assert any("DistBackendError" in note["text"] for note in fast["notable"])


def test_memory_does_not_grow_with_the_log():
    def peak(blocks: int) -> int:
        tracemalloc.start()
        parse_nccl_log_stream(large_log(blocks))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(8) < peak(4) * 1.2 + 1_000_000


def test_a_flood_of_one_warning_does_not_slow_it_down():
    flood = b"n1:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<%d> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
    log = parse_nccl_log_stream(flood % number for number in range(60_000))
    assert log["failure"] == "ib_completion"
    assert log["alike_lines_not_read"] > 40_000
    assert len(log["failures"]) <= 1000


def test_a_file_without_line_ends_stays_within_bounds():
    log = parse_nccl_log_stream(b"x" * 65_536 for _ in range(200))
    assert log["read"]["bytes"] == 200 * 65_536


PIECES = st.sampled_from(
    [
        "n1:1:2 [0] NCCL INFO ", "n1:1:2 [0] x.cc:1 NCCL WARN ", "\n", "via NET/IB/0/GDRDMA", " -> ", "0[0]", "Channel 00/0 : ",
        "NET/IB : Using [0]mlx5_0:1/IB", "comm 0x1 rank 1 nranks 2 - Init START", "Got completion with error 12, vendor err 129",
        "NCCL_X set by environment to ", "Using network ", "\x1f\x8b", "\x00", "Call to connect failed : ", "[2026-03-13 22:26:02] ",
    ]
)  # fmt: skip


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES | st.text(max_size=40), max_size=30).map("".join))
def test_no_text_raises(text):
    json.dumps(parse_nccl_log(text))
    json.dumps(parse_nccl_log_stream(text.encode("utf-8", "replace")))


@settings(max_examples=60)
@given(st.binary(max_size=400))
def test_no_bytes_raise(raw):
    for head in (b"", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\x00", b"\xff\xfe"):
        json.dumps(parse_nccl_log_stream(head + raw))


@pytest.mark.parametrize(
    "line",
    [b"n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/IPC\n", b"a:1:2 [0] x NCCL WARN " + b"x" * 3000 + b"\n", b"(" * 4000 + b"\n", b"ibv_" * 900 + b"\n", b"Connect to " * 300 + b"\n", b"NCCL_A=" * 500 + b"\n"],
)  # fmt: skip
def test_time_is_linear(line):
    def seconds(size: int) -> float:
        started = time.process_time()
        parse_nccl_log(line * (size // len(line)))
        return time.process_time() - started

    small = min(seconds(20_000) for _ in range(3))
    assert seconds(160_000) < 8 * small * 3 + 0.2


def test_the_end_of_a_completion_that_a_terminal_broke_off() -> None:
    text = (
        "gpu-2:71:93 [0] net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer 10.9.0.4<4711> with error 12, opcode 0, len\n"
        "0, vendor err 129 (Recv)\n"
        "gpu-2:71:93 [0] NCCL INFO transport/net.cc:1134 -> 6\n"
    )
    found = parse_nccl_log(text)
    assert [found[key] for key in ("failure", "status", "vendor_err", "direction")] == [
        "ib_completion",
        12,
        129,
        "Recv",
    ]
    apart = parse_nccl_log(text.replace("len\n", "len\nanother line\n"))
    assert (apart["status"], apart["vendor_err"]) == (12, None)


def test_lines_that_ray_says_once_for_all() -> None:
    tail = " [repeated 15x across cluster]"
    head = "(RayWorker pid=71, ip=10.9.0.4) gpu-2:71:93 [0] NCCL INFO "
    found = parse_nccl_log(
        f"{head}NCCL_SOCKET_IFNAME set by environment to ens1{tail}\n{head}Using network IB{tail}\n"
        f"{head}Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA{tail} (Ray deduplicates logs by default.)\n"
    )
    assert [found[key] for key in ("interface", "transport", "gdr")] == ["ens1", "IB", True]


def test_an_error_without_a_name_and_a_version_with_its_commit() -> None:
    found = parse_nccl_log(
        "gpu-2:71:93 [0] NCCL INFO RCCL version : 2.27.3-HEAD:1a2b3c4\n"
        "gpu-2:71:93 [0] NCCL WARN Call to ibv_create_qp failed with error Unknown error -12\n"
    )
    assert [found[key] for key in ("nccl_version", "failure", "errno_text")] == [
        "2.27.3-HEAD:1a2b3c4",
        "ibv_create_qp",
        "Unknown error -12",
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{{"log": "{}\\n", "stream": "stdout"}}',
        '2026-11-02 10:00:00.5\t{{"stream": "stdout", "log": "{}"}}',
        "| {}           |",
        "\u2502{}      \u2502",
        "{}<br>",
        "    '{}',",
        "2026-11-02 10:00:00,123 - probe - INFO - {}",
    ],
)
def test_what_stores_and_pages_put_around_a_line(line: str) -> None:
    head = "gpu-2:71:93 [0] NCCL INFO "
    lines = [f"{head}NCCL_SOCKET_IFNAME set by environment to ens1", f"{head}Using network IB"]
    found = parse_nccl_log("".join(line.format(each) + "\n" for each in lines))
    assert (found["interface"], found["transport"]) == ("ens1", "IB")


def test_marks_that_markdown_escapes() -> None:
    found = parse_nccl_log(
        r"gpu-2:71:93 \[0\] NCCL INFO NET/IB : Using \[0\]mlx5\_bond\_0:1/RoCE \[RO\]; OOB ens1:10.0.0.2\<0\>" + "  \n"
    )
    assert found["hcas"] == ["mlx5_bond_0"]
