# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role writes starts a real training, and what it leaves out would have stopped it. Needs a GPU and PyTorch."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.resolve_env import resolve_fleet
from ansible_collections.gpufabric.cluster.tests.fixtures import nccl_torch
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_fleet import GUIDE
from ansible_collections.gpufabric.cluster.tests.fixtures.nccl_templates import render

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

STEPS = 5


def test_the_guides_list_becomes_files_that_start_a_ddp_job(tmp_path: pathlib.Path) -> None:
    node = {"hcas": [], "addresses": {"lo": ["127.0.0.1/8"]}, "nccl_version": nccl_torch.versions()["nccl"]}
    result = resolve_fleet({"n1": node}, [], GUIDE, {"mode": "warn"})
    conf = tmp_path / "nccl.conf"
    conf.write_text(render("nccl.conf.j2", result["nodes"]["n1"]["variables"]))
    done = nccl_torch.run("ddp", {"NCCL_NET": "Socket", "NCCL_CONF_FILE": str(conf)}, {"steps": STEPS}, timeout=180)
    assert done["ok"], done["log"]
    losses = done["result"]["losses"]
    assert len(losses) == STEPS and losses[-1] < losses[0]


def test_the_guides_algorithm_alone_stops_it() -> None:
    done = nccl_torch.run("ddp", {"NCCL_NET": "Socket", "NCCL_ALGO": "Tree"}, {"steps": STEPS}, timeout=180)
    assert not done["ok"] and "no algorithm/protocol available" in done["log"].lower()


def test_the_form_that_the_finding_shows_does_not() -> None:
    done = nccl_torch.run("ddp", {"NCCL_NET": "Socket", "NCCL_ALGO": "allreduce:tree"}, {"steps": STEPS}, timeout=180)
    assert done["ok"], done["log"]
