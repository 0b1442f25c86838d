# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_trust
short_description: Let one node start programs on the others for the length of a run
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - C(mpirun) needs SSH from the launching node to all others. This module makes a key pair for one run on the launcher, and lets
    it into the other nodes under a lease, so that nothing of it outlives the run.
  - Before anything is installed the node is given a guard (a transient systemd timer), which takes everything back when
    the lease is no longer renewed, also after Ansible was killed.
  - The private key exists only on the launcher, in memory (C(/run)), with mode C(0600). Host keys come from the caller, which
    read them over Ansible's own connections; nothing is scanned. The user's own C(known_hosts) is not touched.
  - What earlier runs left on the node, for example because it lost its power, is taken back first.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
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
      - V(key) makes the key pair on the launcher.
      - V(present) lets the key into this node, and on the launcher writes the files that its SSH client needs.
    type: str
    choices: [key, present]
    required: true
  run_id:
    description: The run's name.
    type: str
    required: true
  user:
    description: The user as which programs are started. Without it the one that Ansible connects as.
    type: str
    default: ''
  ttl_s:
    description: How long the lease lasts without a renewal, in seconds.
    type: int
    default: 90
  max_s:
    description: How long the lease lasts at most, however often it is renewed, in seconds. The key expires then, too.
    type: int
    default: 7200
  public_key:
    description: The run's public key, as O(state=key) returned it.
    type: str
    default: ''
  sources:
    description: Addresses and networks from which the key is accepted (sshd's C(from=)).
    type: list
    elements: str
    default: []
  expires_at:
    description: When the key expires, in seconds since the epoch, as O(state=key) returned it.
    type: float
    default: 0
  authorized_keys:
    description: The file that sshd reads, if it is not C(~/.ssh/authorized_keys) of O(user).
    type: path
    default: ''
  peers:
    description: On the launcher, the nodes that it reaches.
    type: list
    elements: dict
    default: []
    suboptions:
      address:
        description: The node's address on the control network.
        type: str
        required: true
      port:
        description: The port of its sshd.
        type: int
        default: 22
      host_keys:
        description: Its public host keys, without names.
        type: list
        elements: str
        required: true
"""

EXAMPLES = r"""
- name: Make the run's key on the launcher
  gpufabric.cluster.launch_trust:
    state: key
    run_id: 20260101T120000-3fa9c1
    user: ops
  register: made

- name: Let the launcher in
  gpufabric.cluster.launch_trust:
    state: present
    run_id: 20260101T120000-3fa9c1
    user: ops
    public_key: "{{ made.public_key }}"
    expires_at: "{{ made.expires_at }}"
    sources: [192.0.2.0/28]
"""

RETURN = r"""
armed:
  description: Whether this node holds a lease of the run now.
  returned: success
  type: bool
public_key:
  description: The run's public key.
  returned: when O(state=key)
  type: str
expires_at:
  description: When the key expires, in seconds since the epoch.
  returned: when O(state=key)
  type: float
swept:
  description: What earlier runs had left and this call took back, a run each.
  returned: success
  type: dict
problems:
  description: What stands in the way although nothing failed, such as a clock that is wrong.
  returned: success
  type: list
  elements: dict
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import _lease, _node_tool
from ansible_collections.gpufabric.cluster.plugins.module_utils._authorized_keys import AuthorizedKeys, line
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life
from ansible_collections.gpufabric.cluster.plugins.module_utils._ssh_trust import SshTrust, TrustError


def trust(fs: RootedFs, params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Arm the lease, then make the key or let it in."""
    swept = {name: released.as_dict() for name, released in _lease.sweep(fs).items()}
    account = Account.behind(params["user"])
    lease = _lease.Lease(fs, params["run_id"])
    lease.arm(account, _node_tool.build, params["ttl_s"], params["max_s"])
    result: dict[str, t.Any] = {"armed": True, "swept": swept, "problems": []}
    ssh = SshTrust(fs, lease, account)
    if params["state"] == "key":
        return {**result, "public_key": ssh.make_key(Tools(fs)), "expires_at": time.time() + params["max_s"]}
    if params["expires_at"] <= time.time():
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        late = {
            "id": "clock_wrong",
            "subject": "clock",
            "evidence": f"it is {clock} UTC on this node, when the key has expired",
        }
        result["problems"].append(late)
    keys = AuthorizedKeys(fs, account, params["authorized_keys"])
    lease.add_note("authorized_keys", keys.before())
    keys.put_in(line(params["public_key"], params["sources"], params["expires_at"], params["run_id"]))
    if params["peers"]:
        ssh.write_client_files(params["peers"])
    return result


def main() -> None:
    peer = {
        "address": {"type": "str", "required": True},
        "port": {"type": "int", "default": 22},
        "host_keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["key", "present"], "required": True},
            "run_id": {"type": "str", "required": True},
            "user": {"type": "str", "default": ""},
            "ttl_s": {"type": "int", "default": 90},
            "max_s": {"type": "int", "default": 7200},
            "public_key": {"type": "str", "default": "", "no_log": False},
            "sources": {"type": "list", "elements": "str", "default": []},
            "expires_at": {"type": "float", "default": 0},
            "authorized_keys": {"type": "path", "default": "", "no_log": False},
            "peers": {"type": "list", "elements": "dict", "default": [], "options": peer},
        },
        required_if=[("state", "present", ("public_key", "sources", "expires_at"))],
        supports_check_mode=True,
    )
    show_life(RootedFs("/"))
    if module.check_mode:
        module.exit_json(changed=False, armed=False, swept={}, problems=[], public_key="", expires_at=0.0)
    try:
        result = trust(RootedFs("/"), module.params)
    except (_lease.LeaseError, TrustError, LookupError, OSError, ImportError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
