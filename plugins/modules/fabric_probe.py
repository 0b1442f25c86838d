# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Probe the ways from a node to its peers
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - With O(state=started) a responder begins to listen on a random high port of the node, as NCCL's bootstrap does.
  - With O(state=probed) the node probes each of its peers by names, ping, packets that may not be cut, TCP, and RDMA on every rail,
    then measures loss and bandwidth while nobody else measures on either node. Peers need their responders meanwhile.
  - The responder ends with O(state=stopped), and in any case after O(max_s), with all that it started.
  - Nothing that it finds fails the host.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
attributes:
  check_mode:
    support: full
    details:
      - Nothing is started and nothing is probed in check mode.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - It measures.
options:
  state:
    description: What to do.
    type: str
    choices: [started, probed, stopped]
    required: true
  max_s:
    description: Seconds after which the responder ends by itself.
    type: float
    default: 600
  budget_s:
    description: Seconds for all probes of this node. What had no time is named in RV(mesh.out_of_time).
    type: float
    default: 240
  plan:
    description: This node's part of what M(gpufabric.cluster.mesh_plan) planned. Needed with O(state=probed).
    type: dict
    default: {}
  earlier:
    description:
      - This node's C(mesh) of an earlier look.
      - Then only loss and bandwidth of what O(plan) names are measured again, and the better of both looks counts.
    type: dict
    default: {}
  tokens:
    description: What lets this node in at the responders, by node. Needed with O(state=probed).
    type: dict
    default: {}
  pid:
    description: The responder's process, as O(state=started) gave it.
    type: int
    default: 0
  since:
    description: When that process began, in clock ticks after boot, as O(state=started) gave it.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Let the peers in
  gpufabric.cluster.fabric_probe:
    state: started
    max_s: 300
  register: responder
  no_log: true

- name: Take the responder away
  gpufabric.cluster.fabric_probe:
    state: stopped
    pid: "{{ responder.pid }}"
    since: "{{ responder.since }}"
"""

RETURN = r"""
port:
  description: The responder's TCP port.
  returned: with O(state=started)
  type: int
token:
  description: What a peer must know to get an answer.
  returned: with O(state=started)
  type: str
pid:
  description: The responder's process.
  returned: with O(state=started)
  type: int
since:
  description: When the process began, in clock ticks after boot.
  returned: with O(state=started)
  type: int
ended:
  description: Whether the responder was still there and was ended.
  returned: with O(state=stopped)
  type: bool
mesh:
  description: This node's row of the mesh.
  returned: with O(state=probed)
  type: dict
  contains:
    hostname:
      description: The node's own name for itself.
      type: str
      returned: success
    addresses:
      description: All addresses of the node.
      type: list
      elements: str
      returned: success
    control:
      description: The node's address on the control network, and the interface that has it.
      type: dict
      returned: success
    rails:
      description: This node's rails as they were planned, with device, port, interface, address and MTU.
      type: dict
      returned: success
    peers:
      description:
        - What was found by peer.
        - C(names), C(clock), C(load) (why nothing was measured, if so), and C(paths) with the probes of each path.
      type: dict
      returned: success
    own_name:
      description: What the node's own host name resolves to here.
      type: dict
      returned: success
    left_out:
      description: Why the node has no part in the mesh, if so.
      type: str
      returned: success
    out_of_time:
      description: Probes for which the time was too short.
      type: list
      elements: str
      returned: success
    seconds:
      description: How long it took.
      type: float
      returned: success
"""

import dataclasses

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import _probe_responder
from ansible_collections.gpufabric.cluster.plugins.module_utils._probe_mesh import Prober, Row
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs

#: what is returned of the plan, so that what was found can be read without it
ABOUT: dict = {"hostname": "", "addresses": [], "control": {}, "rails": {}, "left_out": ""}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "probed", "stopped"], "required": True},
            "max_s": {"type": "float", "default": 600},
            "budget_s": {"type": "float", "default": 240},
            "plan": {"type": "dict", "default": {}},
            "earlier": {"type": "dict", "default": {}},
            "tokens": {"type": "dict", "default": {}, "no_log": True},
            "pid": {"type": "int", "default": 0},
            "since": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    fs = RootedFs("/")
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, skipped=True)
    if given["state"] == "started":
        try:
            module.exit_json(changed=False, **_probe_responder.start(fs, given["max_s"]))
        except OSError as error:
            module.fail_json(msg=f"The responder does not start: {error}")
    if given["state"] == "stopped":
        module.exit_json(changed=False, ended=_probe_responder.stop(fs, given["pid"], given["since"]))
    plan, earlier = given["plan"], given["earlier"]
    prober = Prober(Tools(fs), plan, given["tokens"], given["budget_s"])
    if earlier:
        again = prober.probe_again(earlier["peers"])
        module.exit_json(changed=False, mesh={**earlier, "peers": again.peers, "again_s": again.seconds})
    row = prober.probe() if plan.get("peers") else Row()
    about = {key: plan.get(key, empty) for key, empty in ABOUT.items()}
    module.exit_json(changed=False, mesh={**about, **dataclasses.asdict(row)})


if __name__ == "__main__":
    main()
