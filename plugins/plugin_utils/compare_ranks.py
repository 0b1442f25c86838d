# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ranks really had, held against what was resolved for their nodes."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding

#: what a test run sets itself, so that its log tells the transport
OF_THE_TEST = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def compare_rank_environments(
    ranks: t.Iterable[t.Mapping[str, t.Any]],
    expected: t.Mapping[str, t.Mapping[str, str]],
    own: t.Collection[str] = OF_THE_TEST,
) -> list[Finding]:
    """Findings over ranks that printed their environment.

    ranks: [{rank, host, environ: {name: value}}], of which NCCL_* counts. expected: {host: {NCCL_*: value}} as resolved
    for each host. own: variables that the launch itself sets. A rank's environment beats the node's nccl.conf, so that a
    value in it that is another one than resolved is an error; one that is absent comes from nccl.conf and is none.
    """
    wrong: dict[tuple[str, str, str, str], list[str]] = collections.defaultdict(list)
    for rank in ranks:
        wanted = expected.get(rank["host"], {})
        for name, value in rank["environ"].items():
            if not name.startswith("NCCL_") or name in own:
                continue
            if wanted.get(name) != value:
                wrong[rank["host"], name, value, wanted.get(name, "")].append(str(rank["rank"]))
    return [_differs(host, name, value, meant, who) for (host, name, value, meant), who in wrong.items()]


def _differs(host: str, name: str, value: str, meant: str, ranks: t.Sequence[str]) -> Finding:
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(ranks)} have"
    return Finding(
        id="nccl_rank_differs" if meant else "nccl_rank_extra",
        severity="error" if meant else "warning",
        node=host,
        subject=name,
        evidence=f"{who} {name}={value} in the environment",
        expected=f"{name}={meant}" if meant else f"no {name}",
        cause="the launcher handed on the environment of the shell that started the job, and it beats nccl.conf",
        fix=f"unset {name} before the launch, or keep it out of it: mpirun without -x {name}, srun --export=NONE",
    )


def compare_seen(
    node: str,
    seen: t.Mapping[str, str],
    expected: t.Mapping[str, str],
    where: str,
    own: t.Collection[str] = OF_THE_TEST,
) -> list[Finding]:
    """Findings over NCCL's own 'set by environment' lines: seen {name: value} in the log *where* of one node.

    NCCL logs a variable only once it reads it, so that one which is missing says nothing.
    """
    return [
        Finding(
            id="nccl_seen_differs",
            severity="error",
            node=node,
            subject=name,
            evidence=f"NCCL itself says in {where} that {name} is set to {value}",
            expected=f"{name}={expected[name]}",
            cause="another file or the launcher's environment came first",
            fix="ansible-playbook gpufabric.cluster.nccl_env, whose report names what sets it",
        )
        for name, value in seen.items()
        if name not in own and expected.get(name) not in (None, value)
    ]
