# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lease: nothing of a run outlives it, whoever was killed."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import re
import subprocess
import sys
import time
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _lease, _node_tool, _run_processes
from ansible_collections.gpufabric.cluster.plugins.module_utils._authorized_keys import AuthorizedKeys, comment, line
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, LeaseError, sweep
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExample"
RUN = "260101120000-abc123"


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Below a root directory of the test's own, leases lie where root's do, whoever runs the test."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.setattr(_lease, "default_base", lambda: _lease.DIRECTORY)


@pytest.fixture
def account(tmp_path: pathlib.Path) -> Account:
    """The user of this process with a home below the root directory of the test."""
    me = pwd.getpwuid(os.geteuid())
    return Account(me.pw_name, me.pw_uid, me.pw_gid, "/home/user")


def keys_of(root: pathlib.Path, account: Account) -> AuthorizedKeys:
    (root / "home/user").mkdir(parents=True, exist_ok=True)
    return AuthorizedKeys(RootedFs(str(root)), account)


@pytest.mark.parametrize(
    "before", ["", "ssh-rsa AAAA somebody\n", "ssh-rsa AAAA somebody", "# \xe4\n\nssh-rsa AAAA b\n"]
)
def test_a_key_comes_and_goes_without_a_trace(tmp_path: pathlib.Path, account: Account, before: str) -> None:
    keys = keys_of(tmp_path, account)
    file = tmp_path / "home/user/.ssh/authorized_keys"
    if before:
        file.parent.mkdir()
        file.write_text(before)
    note = keys.before()
    new = line(KEY, ["192.0.2.1", "192.0.2.4/30"], time.time() + 60, RUN)
    assert keys.put_in(new)
    assert not keys.put_in(new), "a second call changes nothing"
    assert new in file.read_text().splitlines()
    assert file.read_text().startswith(before)
    assert file.stat().st_mode & 0o777 == (0o600 if not before else 0o644)
    assert keys.take_out(RUN, note)
    assert not keys.take_out(RUN, note)
    if before:
        assert file.read_text() == before
    else:
        assert not file.parent.exists(), "what the run made, it removes"


def test_only_the_runs_own_line_is_taken_out(tmp_path: pathlib.Path, account: Account) -> None:
    keys = keys_of(tmp_path, account)
    note = keys.before()
    for run in (RUN, RUN + "-2"):
        keys.put_in(line(KEY, ["192.0.2.1"], time.time() + 60, run))
    keys.put_in("ssh-ed25519 AAAA added-in-the-meantime")
    keys.take_out(RUN, note)
    left = (tmp_path / "home/user/.ssh/authorized_keys").read_text()
    assert comment(RUN + "-2") in left and "added-in-the-meantime" in left
    assert not re.search(rf"{comment(RUN)}$", left, re.MULTILINE)


def test_a_line_restricts_its_key() -> None:
    text = line(KEY + " user@host", ["192.0.2.0/30", "198.51.100.7"], 1893456000.0, RUN)
    options, kind, _, last = text.split(" ")
    assert options.startswith('restrict,from="192.0.2.0/30,198.51.100.7",expiry-time="2')
    assert re.search(r'expiry-time="\d{14}"$', options), "a time that sshd 7.7 to 9.x read alike"
    assert (kind, last) == ("ssh-ed25519", comment(RUN))
    assert "user@host" not in text


@pytest.mark.parametrize("name", ["", "ab", "../../etc", "a b c d", "x" * 65])
def test_a_lease_refuses_names_that_are_no_names(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(LeaseError, match="4 to 64"):
        Lease(RootedFs(str(tmp_path)), name)


def everything_below(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_release_leaves_nothing(tmp_path: pathlib.Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "named", classmethod(lambda cls, name: account))
    (tmp_path / "home/user/.ssh").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "var/lib").mkdir(parents=True)
    before = everything_below(tmp_path)
    fs = RootedFs(str(tmp_path))
    lease = Lease(fs, RUN)
    lease.arm(account, lambda: b"#!python", 90, 3600)
    keys = AuthorizedKeys(fs, account)
    lease.add_note("authorized_keys", keys.before())
    keys.put_in(line(KEY, ["192.0.2.1"], time.time() + 60, RUN))
    (tmp_path / f"run/gpufabric/{RUN}/work/key").write_text("secret")
    assert (tmp_path / f"run/gpufabric/{RUN}/work").stat().st_mode & 0o777 == 0o700
    released = lease.release()
    assert released.removed == ("/home/user/.ssh/authorized_keys",)
    assert released.left == ()
    assert everything_below(tmp_path) == before


def test_seconds_left(tmp_path: pathlib.Path, account: Account) -> None:
    lease = Lease(RootedFs(str(tmp_path)), RUN)
    lease.arm(account, bytes, 50, 3600)
    watch = lease.watch()
    assert 49 < (watch.seconds_left() or 0) <= 50
    os.utime(tmp_path / f"run/gpufabric/{RUN}/alive", (time.time() + 5000, time.time() + 5000))
    assert (watch.seconds_left() or 0) <= 50, "a clock that was set forward prolongs nothing beyond one renewal"
    assert lease.renew(20) and (watch.seconds_left() or 0) <= 20
    lease.expire()
    assert watch.seconds_left() == 0
    lease.release()
    assert watch.seconds_left() is None
    assert not lease.renew()


def test_a_guard_that_looks_while_the_lease_is_renewed_never_finds_it_over(
    tmp_path: pathlib.Path, account: Account
) -> None:
    lease = Lease(RootedFs(str(tmp_path)), RUN)
    lease.arm(account, bytes, 50, 3600)
    watch = lease.watch()
    looks: list[float] = []

    def look(handle: int, *arguments: t.Any) -> int:
        looks.append(watch.seconds_left() or 0.0)
        done = real(handle, *arguments)
        looks.append(watch.seconds_left() or 0.0)
        return done

    for call in ("pwrite", "ftruncate"):
        real = getattr(os, call)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_lease.os, call, look)
            assert lease.renew(600) and lease.renew(45) and lease.renew(600)
    assert len(looks) == 10 and min(looks) > 40
    assert (tmp_path / f"run/gpufabric/{RUN}/alive").read_text() == "600\n"


def test_a_lease_whose_length_cannot_be_read_yet_is_not_over(tmp_path: pathlib.Path, account: Account) -> None:
    lease = Lease(RootedFs(str(tmp_path)), RUN)
    lease.arm(account, bytes, 50, 3600)
    watch = lease.watch()
    assert watch.seconds_left()
    alive = tmp_path / f"run/gpufabric/{RUN}/alive"
    alive.write_text("")
    assert 49 < (watch.seconds_left() or 0) <= 50
    os.utime(alive, (time.time() - 5000, time.time() - 5000))
    assert lease.watch().seconds_left() == 0, "one that stays so ends all the same"


def test_a_lease_is_never_longer_than_its_most(tmp_path: pathlib.Path, account: Account) -> None:
    lease = Lease(RootedFs(str(tmp_path)), RUN)
    lease.arm(account, bytes, 50, 0.2)
    watch = lease.watch()
    time.sleep(0.3)
    lease.renew()
    assert watch.seconds_left() == 0


def test_a_reboot_is_swept_by_the_next_call(
    tmp_path: pathlib.Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "named", classmethod(lambda cls, name: account))
    fs = RootedFs(str(tmp_path))
    lease = Lease(fs, RUN)
    lease.arm(account, bytes, 90, 3600)
    keys = keys_of(tmp_path, account)
    lease.add_note("authorized_keys", keys.before())
    keys.put_in(line(KEY, ["192.0.2.1"], time.time() + 60, RUN))
    subprocess.run(["rm", "-r", str(tmp_path / "run")], check=True)  # what a reboot does to a tmpfs
    assert sweep(fs) == {}, "a note that is this young may belong to a lease that is just being armed"
    note = tmp_path / f"var/lib/gpufabric/leases/{RUN}.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "armed_at": time.time() - 500}))
    assert list(sweep(fs)) == [RUN]
    assert not (tmp_path / "home/user/.ssh").exists()
    assert not note.exists()


def test_a_lease_in_force_is_not_swept(tmp_path: pathlib.Path, account: Account) -> None:
    fs = RootedFs(str(tmp_path))
    Lease(fs, RUN).arm(account, bytes, 90, 3600)
    assert sweep(fs) == {}
    assert Lease(fs, RUN).renew()


def test_the_guard_ends_what_outlived_its_controller() -> None:
    """On this machine itself: a process that ignores SIGTERM, its child without a parent, a file; nobody renews."""
    fs = RootedFs("/")
    lease = Lease(fs, f"test-{os.getpid()}")
    account = Account.behind()
    lease.arm(account, _node_tool.build, 2, 3600)
    stubborn = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); time.sleep(300)"
    environment = {**os.environ, _run_processes.MARKER: lease.run_id}
    process = subprocess.Popen([sys.executable, "-c", stubborn], env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 5
        while len(_run_processes.of_run(fs, lease.run_id, lease.directory)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(_run_processes.of_run(fs, lease.run_id, lease.directory, with_services=False)) == 2
        deadline = time.monotonic() + 30
        while _run_processes.of_run(fs, lease.run_id, lease.directory) and time.monotonic() < deadline:
            time.sleep(0.2)
            process.poll()
        assert not os.path.exists(lease.directory) and not os.path.exists(lease.note)
        assert process.wait(timeout=5) == -9
        assert _run_processes.of_run(fs, lease.run_id, lease.directory) == []
    finally:
        lease.release()


def test_the_tool_is_complete_and_the_same_each_time(tmp_path: pathlib.Path) -> None:
    archive = tmp_path / "node_tool"
    archive.write_bytes(_node_tool.build())
    assert archive.read_bytes() == _node_tool.build()
    done = subprocess.run([sys.executable, "-I", str(archive)], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage:")
    for command in ("guard", "agent", "run"):
        done = subprocess.run(
            [sys.executable, "-I", str(archive), command, "no"], capture_output=True, text=True, check=False
        )
        assert "LeaseError" in done.stderr, f"{command} imports all that it needs before it refuses the name"


def test_constants_stay_below_the_contract() -> None:
    """120 s from a kill to nothing left: the launcher's lease, then the others', with time to end processes."""
    from ansible_collections.gpufabric.cluster.plugins.modules import nccl_tests

    ttl_s = nccl_tests.argument_spec()["ttl_s"]["default"]
    assert ttl_s + (ttl_s + 15) + _lease.TICK_S + 6 <= 120
