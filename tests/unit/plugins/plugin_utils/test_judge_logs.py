# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories of logs, whole and broken, and what is said of them."""

from __future__ import annotations

import gzip
import os
import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.judge_logs import judge_logs
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.read_logs import FOREIGN, jobs_of, read_logs

HEALTHY = """gpu-1:100:100 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
gpu-1:100:120 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eno1:192.0.2.1<0>
gpu-1:100:120 [0] NCCL INFO Using network IB
"""
NO_MEMORY = """gpu-1:100:120 [0] transport/net_ib.cc:100 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory
"""
CLOSED = """gpu-2:200:220 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer gpu-1<40000>
"""


def judged(directory: pathlib.Path) -> list[Finding]:
    return judge_logs({"": {"logs": read_logs(str(directory))}}, {})


def test_the_cause_is_named_and_not_its_consequence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nccl-gpu-1-100.log").write_text(HEALTHY + NO_MEMORY)
    (tmp_path / "nccl-gpu-2-200.log").write_text(HEALTHY.replace("gpu-1:100", "gpu-2:200") + CLOSED)
    findings = judged(tmp_path)
    errors = [finding for finding in findings if finding.severity == "error"]
    assert [finding.node for finding in errors] == ["gpu-1"]
    assert "Cannot allocate memory" in errors[0].evidence and "nccl-gpu-2-200.log" in errors[0].evidence
    assert "memlock" in errors[0].id and errors[0].fix
    assert errors[0].subject == "nccl-gpu-1-100.log line 4"


def test_several_causes_of_one_message_are_all_listed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY + NO_MEMORY)
    findings = judged(tmp_path)
    causes = [finding for finding in findings if finding.subject.startswith("job.log")]
    assert [finding.severity for finding in causes][:2] == ["error", "notice"]
    assert all(finding.cause.startswith("or: ") for finding in causes[1:])


def test_a_guess_is_no_cause_of_a_failure_that_nothing_explains(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY + NO_MEMORY)
    logs = read_logs(str(tmp_path))
    for file in logs["files"]:
        file["causes"] = [{**cause, "shown_by": "guess", "severity": "notice"} for cause in file["causes"]]
    findings = judge_logs({"": {"logs": logs}}, {})
    assert (findings[0].id, findings[0].severity, findings[0].node) == ("log_failure", "error", "gpu-1")
    assert {finding.severity for finding in findings[1:]} == {"notice"}
    assert "log_memlock" in [finding.id for finding in findings[1:]]


def test_a_guess_beside_a_log_without_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY + "The job crashed while it wrote to lustre\n")
    findings = judged(tmp_path)
    assert [finding.id for finding in findings][:2] == ["log_clean", "log_lustre_or_nfs_hang"]
    assert {finding.severity for finding in findings} == {"notice"}


def test_a_log_without_failure_says_its_network(tmp_path: pathlib.Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY)
    findings = judged(tmp_path)
    assert [(finding.id, finding.severity) for finding in findings] == [("log_clean", "notice")]
    assert "IB" in findings[0].evidence


def test_what_is_no_log_and_what_cannot_be_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "noise.bin").write_bytes(os.urandom(4096))
    os.mkfifo(tmp_path / "pipe")
    whole = gzip.compress((HEALTHY + NO_MEMORY).encode() * 200)
    (tmp_path / "cut.log.gz").write_bytes(whole[: len(whole) // 2])
    ids = {finding.id for finding in judged(tmp_path)}
    assert {"log_clean", "log_unread", "log_cut_off"} <= ids


@pytest.mark.parametrize(("magic", "name"), FOREIGN.items())
def test_what_another_program_packed_is_not_taken_for_a_log_without_failure(
    tmp_path: pathlib.Path, magic: bytes, name: str
) -> None:
    (tmp_path / "job.log").write_bytes(magic + os.urandom(4096))
    (finding,) = judged(tmp_path)
    assert finding.id == "log_unread" and f"packed with {name}" in finding.evidence


def test_a_directory_that_is_closed_to_us_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.log").write_text(HEALTHY)
    (tmp_path / "theirs").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("theirs"):  # a mode would not stop root
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert read_logs(str(tmp_path))["skipped"] == [{"name": "theirs", "why": "Permission denied"}]


def test_a_name_that_is_no_utf_8_can_be_shown(tmp_path: pathlib.Path) -> None:
    for name, text in ((b"bad\xff.log", HEALTHY.encode()), (b"bad\xff.zst", b"\x28\xb5\x2f\xfd")):
        (tmp_path / os.fsdecode(name)).write_bytes(text)
    found = read_logs(str(tmp_path))
    assert [entry["name"] for entry in found["files"] + found["skipped"]] == [r"bad\xff.log", r"bad\xff.zst"]
    assert all(str(finding.as_dict()).encode() for finding in judged(tmp_path))


def test_a_pipe_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_logs(str(tmp_path / "pipe"))["skipped"] == [{"name": "pipe", "why": "it is no regular file"}]


def test_compressed_and_utf_16(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress((HEALTHY + NO_MEMORY).encode()))
    (tmp_path / "b.log").write_bytes((HEALTHY + NO_MEMORY).encode("utf-16"))
    assert {file["causes"][0]["id"] for file in read_logs(str(tmp_path))["files"]} == {"memlock"}


def test_mixed_libraries_and_settings(tmp_path: pathlib.Path) -> None:
    other = HEALTHY.replace("gpu-1:100", "gpu-2:200").replace("2.21.5", "2.19.3")
    (tmp_path / "nccl-1.log").write_text(HEALTHY)
    (tmp_path / "nccl-2.log").write_text(other)
    findings = judged(tmp_path)
    assert [finding.id for finding in findings] == ["log_mixed_nccl"]
    assert "2.19.3" in findings[0].evidence and "gpu-2" in findings[0].evidence


@pytest.mark.parametrize("what", ["missing", "empty", "nobody"])
def test_nothing_to_read_is_one_sentence(tmp_path: pathlib.Path, what: str) -> None:
    path = {"missing": tmp_path / "nowhere", "empty": tmp_path, "nobody": "~nobody-of-this-name/logs"}[what]
    with pytest.raises(ValueError, match="diagnose_logs is "):
        read_logs(str(path))


def test_which_files_are_one_job() -> None:
    jobs = jobs_of(
        {"a/nccl-n1-7.log": ["n1"], "a/nccl-n2-9.log": ["n2"], "b/all.txt": ["n1", "n2"], "b/other.txt": ["n1"]}
    )
    assert jobs["a/nccl-n1-7.log"] == jobs["a/nccl-n2-9.log"]
    assert len(set(jobs.values())) == 3
