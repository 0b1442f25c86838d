# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sysctl_profile
short_description: Set, read back, verify or give back a whole set of kernel parameters in one call
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Sets every key by way of C(/proc/sys), reads it back, and keeps the keys that this node can have in one file of its own,
    written atomically. Keys that nobody asked for are neither read, set nor reloaded, so they cannot make the call fail.
  - Loads the kernel modules without which a value does not exist (C(tcp_bbr) for V(bbr), C(sch_fq) for V(fq)), now and at boot.
  - Says what the next boot will make of each key, and which line of which file decides it.
  - What a key, file or module was before the first call is remembered once below C(/var/lib/gpufabric/prior);
    O(state=absent) restores exactly that, also after another profile and after a reboot.
  - A key that cannot be set is reported with its reason, and never fails the call.
  - Where nobody read the node before, the same call does, so that it is the only one that a node sees.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  owner:
    description: The name under which prior state is kept, usually the role's name. It names the file in C(/etc/modules-load.d) too.
    type: str
    default: kernel_tuning
  state:
    description:
      - V(present) sets and persists O(settings), and gives back what an earlier call set and this one does not.
      - V(verify) only reads.
      - V(absent) gives everything back.
    type: str
    choices: [present, verify, absent]
    default: present
  settings:
    description: The keys, in the order in which they are set. Of two entries for one key the last one counts.
    type: list
    elements: dict
    default: []
    suboptions:
      key:
        description:
          - The key, in dots or slashes as in C(sysctl.d(5)).
          - C(<rdma>) in it stands for each of O(interfaces), as in C(net.ipv4.conf.<rdma>.arp_ignore).
        type: str
        required: true
      value:
        description:
          - A number, a text, or a list of them.
          - A boolean is refused, since YAML makes one of V(on), V(off), V(yes) and V(no).
        type: raw
        required: true
      reason:
        description: Why, as a comment in the file.
        type: str
        default: ''
  path:
    description:
      - The file for the keys. One in C(/etc/sysctl.d) is owned as a whole; in V(/etc/sysctl.conf) a marked block is.
      - The default sorts after C(99-sysctl.conf), which on many distributions is a link to C(/etc/sysctl.conf).
    type: path
    default: /etc/sysctl.d/99-zz-gpufabric.conf
  modules:
    description: Kernel modules to load besides those that a value needs.
    type: list
    elements: str
    default: []
  interfaces:
    description: What C(<rdma>) stands for. V(auto) is every interface that carries RoCE on this node.
    type: list
    elements: str
    default: [auto]
  memlock:
    description:
      - The limit on locked memory for sessions and services, V(unlimited) or a number of KiB. Empty leaves it alone.
    type: str
    default: ''
  problem:
    description:
      - What was found on the controller to be wrong with the wishes. The call fails with this sentence and changes nothing.
      - It is the result of P(gpufabric.cluster.sysctl_settings#filter).
    type: str
    default: ''
  hold:
    description:
      - A reason to change nothing, empty where there is none. With one O(state=present) and O(state=absent) only read, and the
        reason is returned as RV(held).
      - Where it is not given, the node is read as M(gpufabric.cluster.node_info) reads it, and the work that runs on it is the reason.
    type: str
  busy:
    description: With V(respect) a reason to change nothing is one. With V(ignore) the node is changed all the same.
    type: str
    choices: [respect, ignore]
    default: respect
"""

EXAMPLES = r"""
- name: Set a few keys and see what became of each
  gpufabric.cluster.sysctl_profile:
    settings:
      - {key: net.core.rmem_max, value: 134217728}
      - {key: net.ipv4.tcp_rmem, value: [4096, 131072, 134217728]}
      - {key: net.ipv4.tcp_congestion_control, value: bbr}
      - {key: net.ipv4.conf.<rdma>.arp_ignore, value: 1}

- name: Put everything back
  gpufabric.cluster.sysctl_profile:
    state: absent
"""

RETURN = r"""
keys:
  description: Every key asked for. Empty with O(state=absent).
  returned: success
  type: list
  elements: dict
  contains:
    key:
      description: The key in dots.
      type: str
      returned: success
    wanted:
      description: The value asked for.
      type: str
      returned: success
    status:
      description:
        - V(already); V(applied), that is set and read back (in check mode, it would be); V(differs) where it was only read;
          V(unsupported), no such key here; V(value_not_available), the kernel has no such value; V(read_only); V(failed).
      type: str
      returned: success
    value:
      description: The value as read last, V(null) where it cannot be read.
      type: str
      returned: success
    before:
      description: The value as read first.
      type: str
      returned: success
    effective:
      description: What counts for an interface where C(net.ipv4.conf.all) says more than the key, else V(null).
      type: str
      returned: success
    evidence:
      description: What says so.
      type: str
      returned: success
keys_given_back:
  description: Keys that an earlier call set and that got their first value back, in the same form. Their status may be V(restored).
  returned: success
  type: list
  elements: dict
modules:
  description: The kernel modules, as M(gpufabric.cluster.kernel_modules) returns them.
  returned: success
  type: list
  elements: dict
modules_given_back:
  description: Kernel modules that an earlier call loaded, in the same form.
  returned: success
  type: list
  elements: dict
files:
  description:
    - What was or would be done with each file, as C({path, status}) with the statuses of M(gpufabric.cluster.owned_files).
    - With O(state=verify), V(differs) and V(left_over) say what is wrong with it.
  returned: success
  type: list
  elements: dict
home:
  description: O(path).
  returned: with O(state=present) and O(state=verify)
  type: str
boot:
  description:
    - What the next boot does. C(by) is who reads the files, C(masked_by) the path that keeps it from running,
      C(reads_sysctl_conf) whether C(/etc/sysctl.conf) is among them.
    - C(keys) holds for each key the C(status) V(kept), V(lost) or V(unset), and the last one to set it as C(value), C(path),
      C(line) and C(setter).
  returned: with O(state=present) and O(state=verify)
  type: dict
interfaces:
  description: What C(<rdma>) stood for.
  returned: with O(state=present) and O(state=verify)
  type: list
  elements: str
memlock:
  description: The limit that a service started now got, measured in one, as C(hard) and C(soft) in KiB or V(unlimited).
  returned: with O(state=present) and O(state=verify)
  type: dict
platform:
  description: IOMMU domain types of GPUs and HCAs, bridges that redirect peer traffic (ACS), and CPU frequency governors.
  returned: with O(state=present) and O(state=verify)
  type: dict
held:
  description: O(hold), or the node's running work, where it kept this call from changing something.
  returned: success
  type: str
observed:
  description: What the node is, as M(gpufabric.cluster.node_info) returns it.
  returned: where O(hold) was not given
  type: dict
checked:
  description: Whether this was check mode, so that nothing was really done.
  returned: success
  type: bool
problems:
  description: What could not be read or done, as C({id, subject, evidence}).
  returned: success
  type: list
  elements: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._memlock import normal_limit
from ansible_collections.gpufabric.cluster.plugins.module_utils._node import observe_node
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life
from ansible_collections.gpufabric.cluster.plugins.module_utils._sysctl_profile import Profile, ProfileOnNode, Result

ARGUMENTS = {
    "root": {"type": "path", "default": "/"},
    "owner": {"type": "str", "default": "kernel_tuning"},
    "state": {"type": "str", "choices": ["present", "verify", "absent"], "default": "present"},
    "settings": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "key": {"type": "str", "required": True, "no_log": False},
            "value": {"type": "raw", "required": True},
            "reason": {"type": "str", "default": ""},
        },
    },
    "path": {"type": "path", "default": "/etc/sysctl.d/99-zz-gpufabric.conf"},
    "modules": {"type": "list", "elements": "str", "default": []},
    "interfaces": {"type": "list", "elements": "str", "default": ["auto"]},
    "memlock": {"type": "str", "default": ""},
    "problem": {"type": "str", "default": ""},
    "hold": {"type": "str"},
    "busy": {"type": "str", "choices": ["respect", "ignore"], "default": "respect"},
}


def run(params: t.Mapping[str, t.Any], fs: RootedFs, tools: Tools, hold: str, check: bool) -> Result:
    if params["problem"]:
        raise ValueError(params["problem"])
    node = ProfileOnNode(fs, tools, params["owner"])
    if params["state"] == "absent":
        return node.rollback(check=check or bool(hold))
    profile = Profile(
        entries=params["settings"],
        home=params["path"],
        modules=params["modules"],
        interfaces=params["interfaces"],
        memlock=normal_limit(params["memlock"]),
    )
    if params["state"] == "verify" or hold:
        return node.verify(profile)
    return node.apply(profile, check)


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    fs = RootedFs(params["root"])
    tools = Tools(fs)
    show_life(fs)
    seen = {"observed": observe_node(fs, tools)} if params["hold"] is None else {}
    reason = seen["observed"]["busy_why"] if seen else params["hold"]
    hold = "" if params["busy"] == "ignore" or params["state"] == "verify" else reason
    try:
        result = run(params, fs, tools, hold, module.check_mode)
    except (ValueError, OSError, CorruptStateError) as error:
        module.fail_json(msg=str(error), **seen)
    reads_only = params["state"] == "verify" or bool(hold)
    module.exit_json(
        changed=result.changed and not reads_only,
        held=hold,
        checked=module.check_mode,
        diff=[] if reads_only else result.diff(),
        **result.as_dict(),
        **seen,
    )


if __name__ == "__main__":
    main()
