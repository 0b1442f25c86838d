# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Let one run at a time change or load a node
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - A run takes each of its nodes before it changes or loads any. Of two runs that share a node the second is told who holds it.
  - The lock lies on the node, so that runs of several controllers see each other. It waits for nobody, so that nothing can deadlock.
  - It ends by itself 120 seconds after the run's last sign of life, which is a module of the collection that worked on the node, a process
    that the run started there, or a lease that is renewed.
  - A lock of a run of this same controller whose process is gone counts for nothing. Its leases are ended, and what it still runs on the
    node may come to its end first.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) takes the node, or says who holds it. It never fails for that.
      - V(agreed) looks, once for all nodes of the play, whether each could be taken. It runs on the controller.
      - V(absent) gives the node back.
    type: str
    choices: [present, agreed, absent]
    default: present
  run_id:
    description: The run, as M(gpufabric.cluster.check_inputs) named it.
    type: str
    required: true
  mode:
    description:
      - V(respect) leaves a node to the run that holds it; V(break) takes it all the same; V(ignore) neither looks nor takes.
    type: str
    choices: [respect, break, ignore]
    default: respect
  observe:
    description: Whether to read what the node is as well, as M(gpufabric.cluster.node_info) does, before it is taken.
    type: bool
    default: false
  holder:
    description: Who runs, on the controller. The action part of this module fills it in.
    type: dict
    default: {}
  replaces:
    description: A run whose lock does not count. The action part of this module fills it in.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Take the node
  gpufabric.cluster.run_lock:
    run_id: "{{ __inputs_checked.run_id }}"
  become: true
  register: taken

- name: Give it back
  gpufabric.cluster.run_lock:
    run_id: "{{ __inputs_checked.run_id }}"
    state: absent
  become: true
"""

RETURN = r"""
lock:
  description: What became of it.
  returned: with O(state=present) and O(state=absent)
  type: dict
  contains:
    status:
      description: One of V(taken), V(held) (by another run), V(given_back), V(nothing), V(ignored), V(failed).
      type: str
      returned: success
    holder:
      description: The other run, as run_id, user, host and since.
      type: dict
      returned: success
    seconds_ago:
      description: When that run last renewed it, in seconds.
      type: float
      returned: success
    evidence:
      description: Why it could not be taken, where the status is V(failed).
      type: str
      returned: success
observed:
  description: What the node is, as M(gpufabric.cluster.node_info) returns it.
  returned: with O(observe=true)
  type: dict
refused:
  description: Whether the run has to leave all nodes, because another one holds some.
  returned: with O(state=agreed)
  type: bool
"""

import dataclasses
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, LeaseError, default_base
from ansible_collections.gpufabric.cluster.plugins.module_utils._node import observe_node
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import Holder, RunLock

#: how long what a dead run started on the node may take to end, in seconds
PATIENCE_S = 90.0


def outcome(
    status: str, holder: Holder | None = None, seconds_ago: float = 0.0, evidence: str = ""
) -> dict[str, t.Any]:
    who = dataclasses.asdict(holder) if holder else {}
    return {"status": status, "holder": who, "seconds_ago": round(seconds_ago, 1), "evidence": evidence}


def act(fs: RootedFs, params: t.Mapping[str, t.Any], check: bool) -> dict[str, t.Any]:
    """Take the node or give it back; in check mode only look."""
    lock = RunLock(fs)
    if params["mode"] == "ignore":
        return outcome("ignored")
    mine = Holder.from_dict({**params["holder"], "run_id": params["run_id"]})
    if params["state"] == "absent":
        return outcome("given_back" if not check and lock.give_back(mine.run_id) else "nothing")
    now = lock.holder()
    replaces = now[0].run_id if now and params["mode"] == "break" else params["replaces"]
    if check:
        held = now is not None and now[0].run_id not in (mine.run_id, replaces)
        return outcome("held", *now) if now is not None and held else outcome("nothing")
    if replaces and now is not None:
        end_leases(fs)
        if not is_over(lock, replaces) and params["mode"] != "break":
            return outcome("held", *now)
    found = lock.take(mine, replaces)
    return outcome("taken") if found is None else outcome("held", *found)


def is_over(lock: RunLock, run_id: str) -> bool:
    """Wait for what a dead controller left running on the node: two modules must not change it at once, and a package manager is not killed."""
    deadline = time.monotonic() + PATIENCE_S
    while lock.has_process(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def end_leases(fs: RootedFs) -> None:
    """Have the node take back what the run that is gone left on it, at the next look of its guards."""
    for path in fs.glob(default_base(), "*"):
        if fs.exists(f"{path}/alive"):
            Lease(fs, path.rsplit("/", 1)[1]).expire()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "state": {"type": "str", "choices": ["present", "agreed", "absent"], "default": "present"},
            "run_id": {"type": "str", "required": True},
            "mode": {"type": "str", "choices": ["respect", "break", "ignore"], "default": "respect"},
            "observe": {"type": "bool", "default": False},
            "holder": {"type": "dict", "default": {}},
            "replaces": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    fs = RootedFs(module.params["root"])
    # A node that hangs does so here, and is not taken.
    seen = {"observed": observe_node(fs, Tools(fs))} if module.params["observe"] else {}
    try:
        result = act(fs, module.params, module.check_mode)
    except (OSError, LeaseError) as error:
        result = outcome("failed", evidence=str(error))
    # Nothing of it stays, so it is no change.
    module.exit_json(changed=False, lock=result, **seen)


if __name__ == "__main__":
    main()
