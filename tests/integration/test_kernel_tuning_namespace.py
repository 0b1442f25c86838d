# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""kernel_tuning against a real kernel without a virtual machine: in a network namespace of its own, where net.ipv4 may be set and
nothing else may. Its files go to file systems that only this mount namespace has. Needs root; changes nothing outside.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_profile import Profile, ProfileOnNode

fs = RootedFs("/")
entries = json.loads(sys.argv[1])
profile = Profile(entries, "/etc/sysctl.d/99-zz-gpufabric.conf")
node = lambda: ProfileOnNode(fs, Tools(fs), "kernel_tuning")
said = node().apply(profile, check=True).as_dict()
first = node().apply(profile)
text = fs.read_text(profile.home)
second = node().apply(profile)
back = node().rollback()
left = fs.listdir("/etc/sysctl.d") + fs.listdir("/var/lib")
print(json.dumps({
    "said": said["keys"], "first": first.as_dict()["keys"], "changed": [first.changed, second.changed, back.changed],
    "text": text, "back": back.as_dict()["keys_given_back"], "left": left,
}))
"""

SETUP = 'mount -t tmpfs none /etc/sysctl.d && mount -t tmpfs none /var/lib && exec "$@"'
WISHES = {
    "net.core.rmem_max": "134217728",
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_rmem": "4096 87380 134217728",
    "net.ipv4.tcp_fin_timeout": "31",
    "net.ipv4.tcp_tw_reuse": "7",
    "net.ipv4.conf.lo.arp_ignore": "1",
    "net.ipv4.nothing_of_the_kind": "1",
}


@pytest.fixture(scope="module")
def seen() -> dict[str, t.Any]:
    if os.geteuid() != 0:
        pytest.skip("only root may make namespaces here")
    entries = json.dumps([{"key": key, "value": value} for key, value in WISHES.items()])
    argv = ["unshare", "--net", "--mount", "sh", "-c", SETUP, "sh", sys.executable, "-c", PROGRAM, entries]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "collections")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return t.cast("dict[str, t.Any]", json.loads(done.stdout))


def statuses(keys: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, str]:
    return {key["key"]: key["status"] for key in keys}


def test_the_kernels_answers_are_told_apart(seen: dict[str, t.Any]) -> None:
    found = statuses(seen["first"])
    assert found.pop("net.core.rmem_max") in (
        "read_only",
        "unsupported",
    )  # by kernel: shown without write bit, or hidden
    assert found == {
        "net.ipv4.tcp_congestion_control": "applied",
        "net.ipv4.tcp_rmem": "applied",
        "net.ipv4.tcp_fin_timeout": "applied",
        "net.ipv4.tcp_tw_reuse": "failed",
        "net.ipv4.conf.lo.arp_ignore": "applied",
        "net.ipv4.nothing_of_the_kind": "unsupported",
    }
    (refused,) = [key for key in seen["first"] if key["status"] == "failed"]
    assert "Invalid argument" in refused["evidence"]


def test_values_are_read_back(seen: dict[str, t.Any]) -> None:
    for key in seen["first"]:
        if key["status"] == "applied":
            assert key["value"] == WISHES[key["key"]]


def test_check_mode_knew_all_but_what_only_the_kernel_can_refuse(seen: dict[str, t.Any]) -> None:
    assert statuses(seen["said"]) == {**statuses(seen["first"]), "net.ipv4.tcp_tw_reuse": "applied"}


def test_a_second_run_changes_nothing_and_what_was_refused_is_kept_out_of_the_file(seen: dict[str, t.Any]) -> None:
    assert seen["changed"] == [True, False, True]
    assert "left out here (failed): net.ipv4.tcp_tw_reuse = 7" in seen["text"]
    assert "\nnet.ipv4.tcp_fin_timeout = 31\n" in seen["text"]


def test_rollback_restores_the_kernels_own_values_and_leaves_no_file(seen: dict[str, t.Any]) -> None:
    before = {key["key"]: key["before"] for key in seen["first"] if key["status"] == "applied"}
    after = {key["key"]: key["value"] for key in seen["back"] if key["status"] == "restored"}
    assert after == before
    assert seen["left"] == []
