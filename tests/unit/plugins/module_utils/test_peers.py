# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher's connections, to programs that stand for agents: who is lost, and who merely ended as it was asked to."""

from __future__ import annotations

import sys

from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease
from ansible_collections.gpufabric.cluster.plugins.module_utils._node_agent import Agent
from ansible_collections.gpufabric.cluster.plugins.module_utils._peers import Peers
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

AGENT = """
import json, sys
print(json.dumps({"hello": "a-node"}), flush=True)
request = json.loads(sys.stdin.readline())
if sys.argv[1] == "answers":
    print(json.dumps({"id": request["id"], "released": {"left": []}}), flush=True)
"""


def test_who_answers_that_it_ends_is_not_lost_and_who_only_goes_away_is() -> None:
    fs, account = RootedFs("/"), Account.behind()
    peers = Peers(Tools(fs), account, "n1", Agent(fs, Lease(fs, "test-peers"), account))
    try:
        peers.open({name: [sys.executable, "-c", AGENT, name] for name in ("answers", "dies")}, 30.0)
        answers = peers.end(30.0, ["answers", "dies"])
        assert set(answers) == {"answers"} and set(peers.lost) == {"dies"}
    finally:
        peers.close()
