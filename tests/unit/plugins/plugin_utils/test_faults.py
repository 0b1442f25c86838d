# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501  # lines of logs are quoted whole
"""The fault catalogue: whole, findable, ranked by what else was seen, and described by a page that is up to date."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log import parse_nccl_log
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.faults import (
    add_findings,
    catalogue,
    explain_log,
    version_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).parents[4]
THREADS = json.loads((ROOT / "tests" / "fixtures" / "fault_threads.json").read_text(encoding="utf-8"))["threads"]
MESSAGES = json.loads((ROOT / "tests" / "fixtures" / "fault_messages.json").read_text(encoding="utf-8"))["messages"]

# Lines of a job that had nothing: a thread's own lines stand among hundreds of such.
HEALTHY = """
n0:11:12 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.1<0>
n0:11:12 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation
n0:11:12 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
n0:11:12 [0] NCCL INFO Using network IB
n0:11:12 [0] NCCL INFO DMA-BUF is available on GPU device 0
n0:11:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n0:11:12 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n0:11:12 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
n0:11:12 [0] NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7 - Init COMPLETE
"""

# What names components, settings and counters and yet says nothing of any failure.
HARMLESS = [
    """
+ mpirun -np 16 --mca btl_tcp_if_include eth0 -x NCCL_DEBUG=WARN -x NCCL_IB_TIMEOUT=22 -x TORCH_NCCL_ASYNC_ERROR_HANDLING=1 ./train.sh
docker run --ulimit memlock=-1 --device /dev/infiniband/uverbs0 image
[PG 0 Rank 3] ProcessGroupNCCL initialization options: size: 16, TIMEOUT(ms): 900000, TORCH_NCCL_DUMP_ON_TIMEOUT: 0
[PG 0 Rank 3] ProcessGroupNCCL environments: NCCL version: 2.21.5, TORCH_NCCL_ASYNC_ERROR_HANDLING: 3, TORCH_NCCL_DESYNC_DEBUG: 0
n0 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07
n0:11:12 [0] NCCL INFO NVLS multicast support is not available on dev 0
""",
    """
n0:1:1 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
n0:1:1 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so.
n0:1:1 [0] NCCL INFO Comm config Blocking set to 1
n0:1:1 [0] NCCL INFO NCCL_IB_ADDR_FAMILY set by environment to AF_INET
n0:1:1 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - /lib/libmlx5.so.1: undefined symbol: mlx5dv_reg_dmabuf_mr, version MLX5_1.25
n0:1:1 [0] NCCL INFO RAS client listening socket at ::1<28028>
n0:1:9 [0] NCCL INFO NVLS Bind mem 0xac0000000 UC handle 0x7f3310ccb240 MC handle 0x7f3310ccaa20 size 1073741824
n0:1:9 [0] NCCL INFO MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0
""",
    """
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
export MASTER_ADDR=$(scontrol show hostnames | head -1) MASTER_PORT=29500
srun --mpi=pmix --container-image=nvcr.io/nvidia/pytorch:24.05-py3 python train.py --num_nodes 2
pyxis: imported docker image: nvcr.io/nvidia/pytorch:24.05-py3
initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2
initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2
distributed_backend=nccl
All distributed processes registered. Starting with 2 processes
[INFO] [launch.py:235:main] nnodes=2, num_local_procs=4, node_rank=0
""",
    """
NodeName=n1 Arch=x86_64 CPUAlloc=0 State=IDLE Gres=gpu:h100:8 Reason=(null)
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|                                         |                        |               MIG M. |
mlx5_core 0000:1b:00.0: firmware version: 28.39.1002
mlx5_core 0000:1b:00.0: Port module event: module 0, Cable plugged
gdrdrv:gdrdrv_init:loading gdrdrv version 2.5 built for proprietary NVIDIA driver
NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
NCCL INFO NET/OFI Setting NCCL_TOPO_FILE environment variable to /proc/self/fd/150
State: Active
Physical state: LinkUp
symbol_error: 0
link_downed: 0
""",
    """
make MPI=1 MPI_HOME=/usr/mpi NCCL_HOME=/usr CUDA_HOME=/usr/local/cuda
docker run --gpus all --ipc=host --network host image torchrun --nnodes 2 --node_rank 0 --master_addr 10.0.0.1 train.py
# Avg bus bandwidth    : 478.2
# Out of bounds values : 0 OK
""",
]


def causes(text: str, **facts: object) -> list[str]:
    return [finding["id"] for finding in explain_log(parse_nccl_log(text), {"text": text, **facts})]


def test_every_fault_is_whole():
    faults = catalogue()
    ids = [fault.id for fault in faults]
    assert len(ids) == len(set(ids)) >= 150
    for fault in faults:
        assert fault.severity in ("error", "warning", "notice"), fault.id
        assert fault.confidence in ("confirmed", "inferred", "field"), fault.id
        assert 0 < fault.base < 100, fault.id
        assert fault.signatures, fault.id
        for text in (fault.title, fault.cause, fault.fix, fault.prevent):
            assert text.strip() and text == text.strip(), fault.id
        assert all(other["from"] in ids and other["from"] != fault.id and other["by"] for other in fault.tell_apart), (
            fault.id
        )


def test_titles_are_unique_since_the_page_links_to_them():
    titles = [fault.title for fault in catalogue()]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("harmless", ["", *HARMLESS])
def test_no_signature_matches_an_empty_or_a_healthy_log(harmless):
    assert explain_log(parse_nccl_log(""), {"text": ""}) == []
    for text in (harmless, HEALTHY + harmless):
        found = explain_log(parse_nccl_log(text), {"text": text})
        assert [each for each in found if each["severity"] == "error" or "name no cause" in str(each["because"])] == []


def test_a_complaint_that_names_no_cause_is_worth_a_look_and_no_more():
    line = "n1:5:7 [0] transport/net_ib.cc:911 NCCL WARN NET/IB : the verb of this line fails in a new way"
    found = explain_log(parse_nccl_log(HEALTHY + line), {"text": HEALTHY + line})
    hinted = {each["id"]: each for each in found if any("name no cause" in because for because in each["because"])}
    assert hinted["ib_link_down"]["severity"] == "warning"
    assert hinted["ib_link_down"]["evidence"] == line
    named = f"{HEALTHY}{line}\n{COMPLETION}\n"
    assert explain_log(parse_nccl_log(named), {"text": named})[0]["severity"] == "error"


# Every third thread stands for all in a healthy log: what such a log adds is the same for each, and its lines take most of the time.
@pytest.mark.parametrize(("around", "threads"), [("", THREADS), (HEALTHY, THREADS[::3])])
def test_threads_of_the_field_find_their_cause(around, threads):
    answers = [(thread["expected"], causes(around + thread["text"])) for thread in threads]
    first = sum(bool(found) and found[0] in expected for expected, found in answers)
    third = sum(bool(set(found[:3]) & set(expected)) for expected, found in answers)
    assert first >= 0.95 * len(answers), [each for each in answers if not each[1] or each[1][0] not in each[0]]
    assert third >= 0.99 * len(answers), [each for each in answers if not set(each[1][:3]) & set(each[0])]


@pytest.mark.parametrize("tool", sorted({message["tool"] for message in MESSAGES}))
def test_what_a_tool_prints_names_its_fault(tool):
    """Each message alone, as an operator pastes it."""
    found = {message["text"]: causes(message["text"])[:3] for message in MESSAGES if message["tool"] == tool}
    expected = {message["text"]: message["expected"] for message in MESSAGES}
    assert {text: ids for text, ids in found.items() if not set(ids) & set(expected[text])} == {}


COMPLETION = "n1:5:7 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> with status=12 opcode=0 len=0 vendor err 129 (Recv)"


@pytest.mark.parametrize(
    ("also", "first"),
    [
        (
            "n1:5:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\nNCCL version 2.18.3+cuda12.2",
            "roce_gid_index",
        ),
        (
            "n1:5:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\nonly under load, no PFC on the switch",
            "roce_lossy",
        ),
        (
            "n1:5:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>\nNET/IB : mlx5_0:1 Got async event : port error",
            "ib_link_down",
        ),
        ("n2 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", "gpu_off_bus"),
    ],
)
def test_one_message_with_two_causes_is_ranked_by_what_else_was_seen(also, first):
    found = causes(f"{also}\n{COMPLETION}\n")
    assert found[0] == first
    assert {"roce_gid_index", "roce_lossy", "ib_link_down"} & set(found) or first == "gpu_off_bus"


@pytest.mark.parametrize(
    ("says", "cause", "shown_by"),
    [
        ("It stops at the first step. With NCCL_IB_GID_INDEX=3 it works.", "roce_gid_index", "signature"),
        ("Nobody knows why, but NCCL_NVLS_ENABLE=0 helped.", "nvls_bind", "cure"),
        ("The barrier never returns; NCCL_NVLS_ENABLE=0 has not helped.", "network_hang", "signature"),
    ],
)
def test_what_helped_shows_a_cause(says, cause, shown_by):
    found = explain_log(parse_nccl_log(says), {"text": says})
    assert (found[0]["id"], found[0]["shown_by"]) == (cause, shown_by)
    if shown_by == "cure":
        assert found[0]["severity"] == "error"
        assert "NCCL_NVLS_ENABLE=0" in found[0]["because"][0]


def test_a_cure_moves_its_cause_before_the_others():
    line = "n1:5:7 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
    assert causes(line)[0] != "ib_timeout_short"
    assert causes(f"{line}\nNCCL_IB_TIMEOUT=23 solved it\n")[0] == "ib_timeout_short"


def test_a_message_that_is_broken_into_lines_is_the_same_message():
    whole = "There are not enough slots available in the system"
    assert causes(whole)[0] == causes(whole.replace("slots available", "slots\navailable"))[0] == "mpi_slots"


def test_guesses_stand_after_what_is_shown_and_are_notices():
    text = "The program crashed; we use InfiniBand with a partition key"
    found = explain_log(parse_nccl_log(text), {"text": text + " and opensm"})
    guesses = [each for each in found if each["shown_by"] == "guess"]
    assert "sm_missing" in [each["id"] for each in guesses]
    assert {each["severity"] for each in guesses} == {"notice"}
    assert any("the text speaks of opensm" in because for each in guesses for because in each["because"])


def test_a_look_alike_is_named_beside_what_it_looks_like():
    found = {each["id"]: each for each in explain_log({}, {"text": "Failed to initialize NVML: Unknown Error"})}
    assert found["nvml_cgroup_lost"]["shown_by"] == "signature"
    assert found["driver_not_there"]["shown_by"] == "guess"
    assert found["driver_not_there"]["because"] == [f"looks like: {found['nvml_cgroup_lost']['title']}"]


def test_nothing_is_guessed_where_nobody_complains_or_much_is_shown():
    assert explain_log({}, {"text": "We run MPI in docker containers with opensm and NUMA binding"}) == []
    shown = explain_log({}, {"text": f"RoCE without PFC, opensm\n{COMPLETION}\n"})
    assert {each["shown_by"] for each in shown} <= {"signature", "hint"}


def test_what_no_signature_explains_is_likened_to_reports_of_a_known_cause():
    text = "Our mlx5 ports come up with half of their lanes after the new splitter cables; nothing works at full speed"
    likened = [
        each for each in explain_log({}, {"text": text}) if any("reports of it" in why for why in each["because"])
    ]
    assert likened and {each["severity"] for each in likened if each["shown_by"] == "guess"} == {"notice"}


@pytest.mark.parametrize("words, named", [("", []), ("zzyzx qwxyz", []), (HEALTHY, [])])
def test_nothing_is_likened_where_nobody_complains(words, named):
    assert causes(words) == named


def test_the_words_that_were_learnt_are_up_to_date():
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "learn_likeness.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_line_with_its_host_is_the_evidence():
    text = f"{HEALTHY}\nn4:9:9 [2] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n"
    finding = explain_log(parse_nccl_log(text), {"text": text})[0]
    assert finding["id"] == "roce_unreachable"
    assert "Network is unreachable" in finding["evidence"]
    assert "ip route" in finding["fix"]


def test_a_fact_given_beside_the_log_beats_the_log():
    text = COMPLETION
    without = {finding["id"]: finding["score"] for finding in explain_log(parse_nccl_log(text), {"text": text})}
    facts = {"hcas_by_host": {"n1": {"mlx5_0:1": "RoCE"}}, "nccl_version": "2.19.3"}
    given_facts = {
        finding["id"]: finding["score"] for finding in explain_log(parse_nccl_log(text), {"text": text, **facts})
    }
    assert given_facts["roce_gid_index"] > without["roce_gid_index"]
    finding = explain_log(parse_nccl_log(text), {"text": text, **facts})[0]
    assert "the HCAs are RoCE, where the GID index matters" in finding["because"]


def test_two_versions_in_one_log_are_a_finding_without_any_message():
    text = "n1:1:2 [0] NCCL INFO NCCL version 2.19.3+cuda12.2\nn2:1:2 [0] NCCL INFO NCCL version 2.20.5+cuda12.2\n"
    assert causes(text)[0] == "version_mixed"
    assert "version_mixed" not in causes(text.replace("2.20.5", "2.19.3"))


def test_a_log_read_as_a_stream_is_explained_by_the_lines_that_were_kept():
    parsed = parse_nccl_log(f"{HEALTHY}\n{COMPLETION}\n")
    assert "roce_lossy" in [finding["id"] for finding in explain_log(parsed)]


def test_the_filter_adds_findings_and_keeps_what_was_read():
    text = "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    answer = add_findings(parse_nccl_log(text), text)
    assert answer["failure"] == "ibv_reg_mr"
    assert answer["findings"][0]["id"] == "memlock"
    assert answer["findings"][0].keys() >= {"id", "evidence", "cause", "fix"}


def test_versions_are_compared_as_numbers():
    assert version_of("2.9.8+cuda11") < version_of("2.21.5")
    assert version_of("none") is None


def test_the_page_is_up_to_date():
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "faults_page.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([thread["text"] for thread in THREADS]) | st.text(max_size=200), max_size=6).map("\n".join)
)
def test_no_log_raises(text):
    json.dumps(explain_log(parse_nccl_log(text), {"text": text}))
    explain_log({}, {"text": text})
    explain_log({"notable": [{"text": text}], "environment": None, "first_failure": None})


@pytest.mark.parametrize(
    "line",
    [
        "hang via P2P/direct pointer ",
        "mlx5_0 bond1 vxlan ",
        "status=12 ",
        "Rank  0 Pid 1 on x\n",
        "LnkSta: Width x4 " * 9,
        COMPLETION + "\n",
        "NCCL_IB_HCA set to mlx5_1 ",
    ],
)
def test_signatures_stay_fast_on_long_text(line):
    text = line * (200_000 // len(line))
    started = time.process_time()
    explain_log({}, {"text": text})
    assert time.process_time() - started < 20
