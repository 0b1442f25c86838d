# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judges what read_logs found: for each job the first failure, its likeliest causes, and what was merely unlucky afterwards."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.majority import listed

Log = t.Mapping[str, t.Any]

#: causes that are said for one job: the likeliest as what it is, the others beside it
SAID = 3


def judge_logs(nodes: t.Mapping[str, t.Mapping[str, t.Any]], settings: t.Mapping[str, t.Any]) -> list[Finding]:
    """Findings over the result of diagnose_logs. nodes: {"": {"logs": read_logs()}}, since logs may be of any nodes."""
    findings: list[Finding] = []
    for result in nodes.values():
        logs = result["logs"]
        jobs: dict[str, list[Log]] = collections.defaultdict(list)
        for file in logs["files"]:
            jobs[file["job"]].append(file)
        for job, files in jobs.items():
            findings += _job(job, files)
        findings += _unread(logs)
    return findings


def _job(job: str, files: t.Sequence[Log]) -> list[Finding]:
    failed = [file for file in files if file["first_failure"]]
    findings = [*_waiting(job, files), *_versions(job, files), *_environment(job, files)]
    if failed:
        return [*_causes(_first(failed), failed), *findings]
    told = [file for file in files if _shown(file)]
    if told:
        return [*_causes(max(told, key=_score), []), *findings]
    guessed = [file for file in files if file["causes"]]
    guesses = _causes(max(guessed, key=_score), []) if guessed else []
    lines = sum(file["lines"] for file in files)
    known = [file["transport"] for file in files if file["transport"]]
    clean = [
        Finding(
            id="log_clean",
            severity="notice",
            node="",
            subject=job,
            evidence=f"{lines} lines name no failure"
            + (f"; the network is {listed(sorted(set(known)))}" if known else ""),
            cause="" if known else "it is no log of NCCL, or NCCL_DEBUG was not INFO",
            fix="" if known else "run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV,BOOTSTRAP",
        )
    ]
    return [*(findings or clean), *guesses]


def _shown(file: Log) -> bool:
    """Whether anything in the log shows a cause; a guess is what the text around it only speaks of."""
    return any(cause["shown_by"] != "guess" for cause in file["causes"])


def _score(file: Log) -> int:
    return int(file["causes"][0]["score"]) if file["causes"] else 0


def _first(failed: t.Sequence[Log]) -> Log:
    """The log with the cause: no consequence before a consequence, the earlier before the later where times are known."""
    times = [file["first_failure"].get("time") for file in failed]
    timed = all(times) and len({len(str(moment)) for moment in times}) == 1

    def rank(file: Log) -> tuple[bool, str, int]:
        failure = file["first_failure"]
        return bool(failure["consequence"]), str(failure["time"]) if timed else "", -_score(file)

    return min(failed, key=rank)


def _causes(file: Log, failed: t.Sequence[Log]) -> list[Finding]:
    failure = file["first_failure"]
    place = f"{file['name']} line {failure['line']}" if failure else str(file["name"])
    others = [other["name"] for other in failed if other is not file]
    after = f"; {len(others)} more log(s) failed after it or with it: {listed(others)}" if others else ""
    findings = []
    if failure and not _shown(file):
        findings.append(
            Finding(
                id="log_failure",
                severity="error",
                node=str(failure["host"] or ""),
                subject=place,
                evidence=f"{_rank(failure)}{failure['text']}{after}",
                expected="no failure",
                cause="the fault catalogue has no cause for it",
                fix="run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL and look at the first rank that fails",
            )
        )
    # A guess is no cause of a failure that nothing explains: it stands after the failure itself.
    for number, cause in enumerate(file["causes"][:SAID], start=len(findings)):
        worst = (
            cause["severity"]
            if failure
            else min(cause["severity"], "warning", key=("notice", "warning", "error").index)
        )
        because = f" ({'; '.join(cause['because'])})" if cause["because"] else ""
        apart = "; ".join(f"not {other['from']} if {other['by']}" for other in cause["tell_apart"])
        findings.append(
            Finding(
                id=f"log_{cause['id']}",
                severity=worst if number == 0 else "notice",
                node=str(cause["host"] or (failure or {}).get("host") or ""),
                subject=place,
                evidence=(
                    f"{_rank(failure)}{failure['text']}{after}" if failure and number == 0 else cause["evidence"]
                ),
                expected=f"to tell it apart: {apart}" if apart else "",
                cause=f"{'' if number == 0 else 'or: '}{cause['title']}: {cause['cause']}{because}",
                fix=cause["fix"],
            )
        )
    return findings


def _rank(failure: t.Mapping[str, t.Any]) -> str:
    words = [f"rank {failure['rank']}" if failure["rank"] is not None else "", failure["time"] or ""]
    return f"{' at '.join(filter(None, map(str, words)))}: " if any(words) else ""


def _waiting(job: str, files: t.Sequence[Log]) -> list[Finding]:
    """Ranks that began and never came in, which is all that a hang at the start shows. Only a log of all ranks can tell."""
    if len(files) > 1:
        return []
    findings = []
    for communicator in files[0]["waiting"]:
        missing = communicator["never_seen"] or communicator["not_complete"]
        what = "never appear" if communicator["never_seen"] else "began to join and did not finish"
        findings.append(
            Finding(
                id="log_ranks_missing",
                severity="warning",
                node="",
                subject=f"{job}, communicator {communicator['id']}",
                evidence=f"ranks {listed([str(rank) for rank in missing], 12)} of {communicator['nranks']} {what}",
                expected="every rank joins",
                cause="the log is cut off or not of all ranks; else those ranks died before, or cannot reach rank 0's port",
                fix="look whether the processes are there, and whether their nodes reach the others: "
                "ansible-playbook gpufabric.cluster.diagnose -i INVENTORY",
            )
        )
    return findings


def _versions(job: str, files: t.Sequence[Log]) -> list[Finding]:
    """Between the files of one job; within a file the catalogue sees it."""
    by_version: dict[str, set[str]] = collections.defaultdict(set)
    for file in files:
        for version in file["versions"]["nccl"]:
            by_version[version].update(file["hosts"] or [file["name"]])
    if len(by_version) < 2 or len(files) < 2:
        return []
    return [
        Finding(
            id="log_mixed_nccl",
            severity="error",
            node="",
            subject=job,
            evidence="; ".join(f"NCCL {version} on {listed(sorted(on))}" for version, on in sorted(by_version.items())),
            expected="one NCCL in all ranks",
            cause="nodes or images with different libraries; LD_LIBRARY_PATH or a wheel's own copy",
            fix="ldconfig -p | grep nccl; python3 -c 'import torch; print(torch.cuda.nccl.version())' on every node",
        )
    ]


def _environment(job: str, files: t.Sequence[Log]) -> list[Finding]:
    values: dict[str, set[str]] = collections.defaultdict(set)
    for file in files:
        for name, value in file["environment"].items():
            values[name].add(str(value))
        for name, several in file["environment_differs"].items():
            values[name].update(map(str, several))
    differing = sorted(name for name, several in values.items() if len(several) > 1 and name != "NCCL_DEBUG_FILE")
    if not differing:
        return []
    return [
        Finding(
            id="log_environment_differs",
            severity="notice",
            node="",
            subject=job,
            evidence="; ".join(f"{name} is {listed(sorted(values[name]))}" for name in differing[:10]),
            expected="the same in all ranks, but for what belongs to a node (NCCL_IB_HCA, NCCL_IB_GID_INDEX)",
            cause="nodes with different nccl.conf or profile, or a launcher that hands on only some variables",
            fix="ansible-playbook gpufabric.cluster.nccl_env",
        )
    ]


def _unread(logs: t.Mapping[str, t.Any]) -> list[Finding]:
    findings = []
    cut_off = [f"{file['name']} ({file['read']['problem']})" for file in logs["files"] if file["read"]["problem"]]
    skipped = [f"{entry['name']} ({entry['why']})" for entry in logs["skipped"]]
    for id_, names, what in (("log_cut_off", cut_off, "end early"), ("log_unread", skipped, "were not read")):
        if names:
            findings.append(
                Finding(
                    id=id_,
                    severity="notice",
                    node="",
                    subject=logs["path"],
                    evidence=f"{len(names)} file(s) {what}: {listed(names)}",
                    expected="whole logs that can be read",
                    cause="the job was killed while it wrote, or the copy broke" if id_ == "log_cut_off" else "",
                    fix="",
                )
            )
    return findings
