# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""No variable of any environment outside the allowed families appears in results/: planted wherever one could get in."""

from __future__ import annotations

import pathlib

from ansible_collections.gpufabric.cluster.tests.integration.local_cluster import LocalCluster

#: in the environment of ansible-playbook, so of every process on this machine, and in nccl-tests' own JSON
ENVIRONMENT = {
    "NCCL_PSK": "planted-psk-1f6b",
    "SLURM_JWT": "planted-jwt-2a7c",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+3b8d=",
    "HF_TOKEN": "hf_planted4c9e",
    "SITE_LICENCE": "planted-5d0f with blanks",
    "http_proxy": "http://operator:planted-6e1a@proxy.example.org:3128",
}
#: where users put things
VARIABLES = {
    "ansible_become_password": "planted-become-7f2b",
    "site_vault": {"password": "planted-vault-8a3c"},
    "nccl_tests_source": "https://build:planted-9b4d@git.example.org/nccl-tests.git",
    "nccl_tests_environment": {"FAKE_RUN": "dump", "WANDB_API_KEY": "planted-wandb-0c5e", "NCCL_IB_TIMEOUT": "22"},
}
PLANTED = [
    *(value for name, value in ENVIRONMENT.items() if name != "http_proxy"),
    "planted-6e1a", "planted-become-7f2b", "planted-vault-8a3c", "planted-9b4d", "planted-wandb-0c5e", "planted",
]  # fmt: skip


def test_no_secret_reaches_the_results(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(tmp_path, **VARIABLES)
    done = cluster.playbook("nccl_tests", **ENVIRONMENT)
    assert done.returncode == 2, done.stdout[-3000:] + done.stderr[-2000:]
    (run,) = cluster.record()["benchmark"]["runs"]
    assert (run["failure"], len(run["rows"]), run["transport"]["proven"]) == ("exit_status", 4, "IB"), run
    files = {path: path.read_text() for path in cluster.results.rglob("*") if path.is_file()}
    assert {path.name for path in files} >= {"run.json", "report.html", "01-cluster-all_reduce.stderr.txt"}
    found = [f"{value} in {path.name}" for path, text in files.items() for value in PLANTED if value in text]
    assert found == []
    dumped = "\n".join(text for path, text in files.items() if path.parent.name == "logs")
    for name in ENVIRONMENT:
        assert name in dumped, "the program did print it"
    assert "NCCL_IB_TIMEOUT=22" in dumped and dumped.count("(withheld)") >= 2 * len(ENVIRONMENT) - 1
    assert run["environment"]["NCCL_IB_TIMEOUT"] == "22"
