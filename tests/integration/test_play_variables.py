# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's own playbook: what it says under `vars` of a role, or of an imported playbook, is what the report judges by."""

from __future__ import annotations

import json
import pathlib

from ansible_collections.gpufabric.cluster.tests.integration.local_cluster import ROOT, LocalCluster

#: the role's own variable beats the inventory's line rate of 400 Gb/s; the report's playbook is told the share to be reached
PLAYBOOK = [
    {"hosts": "localhost", "gather_facts": False, "roles": ["gpufabric.cluster.inputs"]},
    {
        "hosts": "all:!localhost",
        "gather_facts": False,
        "vars": {"mine": 800},
        "roles": [{"role": "gpufabric.cluster.nccl_tests", "vars": {"nccl_tests_line_rate_gbps": "{{ mine }}"}}],
    },
    {"import_playbook": str(ROOT / "playbooks/report.yml"), "vars": {"fabric_report_gate": False}},
]


def test_variables_of_a_play_and_of_a_role_are_judged_by(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(tmp_path)
    playbook = tmp_path / "mine.yml"
    playbook.write_text(json.dumps(PLAYBOOK))
    done = cluster.playbook(str(playbook))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    record = cluster.record()
    assert {verdict["line_rate_gbs"] for verdict in record["verdicts"]} == {100.0}, (
        "800 Gb/s, and not the inventory's 400"
    )
    (group,) = record["settings"]["benchmark"]
    assert group["values"]["nccl_tests_line_rate_gbps"] == 800 and group["nodes"] == ["n1", "n2"]
    assert list(cluster.results.glob("*.unfinished.jsonl")) == [], "a play on localhost has another run identifier"
