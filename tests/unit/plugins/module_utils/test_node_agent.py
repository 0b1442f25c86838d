# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent does when the launcher says goodbye."""

from __future__ import annotations

import json
import os
import pathlib
import pwd

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._node_agent import Agent
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import Holder, RunLock

LEASE, RUN = "260101120000-abc123", "20260101T120000Z-aaaa"


@pytest.mark.parametrize("expired", [False, True])
def test_the_lock_goes_with_the_lease_only_where_the_controller_is_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    monkeypatch.setattr(_lease, "default_base", lambda: _lease.DIRECTORY)
    fs, me = RootedFs(str(tmp_path)), pwd.getpwuid(os.geteuid())
    lease, lock = Lease(fs, LEASE), RunLock(fs)
    lock.take(Holder(RUN))
    note = tmp_path / lease.note.lstrip("/")
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"run_id": LEASE, "run": RUN, "user": me.pw_name}))
    agent = Agent(fs, lease, Account(me.pw_name, me.pw_uid, me.pw_gid, "/home/user"))
    answer = agent.handle({"do": "end", "id": 7, "expired": expired})
    assert answer is not None and answer["released"]["left"] == []
    assert (lock.holder() is None) == expired
    assert not note.exists()
