# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_qos_info
short_description: Read how RoCE interfaces treat their traffic
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads trust, priority flow control, ECN, traffic classes and global pause of each interface, by C(mlnx_qos) or C(dcb), and from
    sysfs, debugfs and configfs.
  - Nothing that it finds fails the host. A value that nothing shows is V(null), which is not the same as switched off.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
options:
  interfaces:
    description: The interfaces. A bond is looked at through the interfaces below it.
    type: list
    elements: str
    required: true
  tool:
    description: The tool to ask; V(auto) takes the first one that answers.
    type: str
    choices: [auto, mlnx_qos, dcb]
    default: auto
  traffic_class:
    description: The traffic class of NCCL's packets; whether every interface carries it without loss is RV(observed.verified_tc).
    type: int
  nccl_final:
    description: Whether C(/etc/nccl.conf) is as it will stay. Where it is written later in the same run nobody judges it by this observation.
    type: bool
    default: true
  apply_results:
    description: What an earlier M(gpufabric.cluster.roce_qos) did, as its RV(gpufabric.cluster.roce_qos#module:settings). Returned with the
      observation, so that one result holds all.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read the quality of service of two interfaces
  gpufabric.cluster.roce_qos_info:
    interfaces: [ens1f0np0, ens2f0np0]
  register: qos
"""

RETURN = r"""
observed:
  description: The node's RoCE interfaces.
  returned: success
  type: dict
  contains:
    interfaces:
      description: One entry an interface, with C(trust), C(pfc), C(dscp_prio), C(dcbx), C(ecn), C(tclass), C(cma_tos) and C(pause).
      type: list
      elements: dict
      returned: success
    nccl_tc:
      description: What C(/etc/nccl.conf) sets NCCL_IB_TC to, V(null) where it does not.
      type: str
      returned: success
    verified_tc:
      description: O(traffic_class), if every interface carries it on a priority with flow control, else V(null).
      type: int
      returned: success
    applied:
      description: What was handed in as O(apply_results).
      type: list
      elements: dict
      returned: success
    problems:
      description: What could not be read, as C(id), C(subject) and C(evidence).
      type: list
      elements: dict
      returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._roce_qos import observe
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "interfaces": {"type": "list", "elements": "str", "required": True},
            "tool": {"type": "str", "choices": ["auto", "mlnx_qos", "dcb"], "default": "auto"},
            "traffic_class": {"type": "int"},
            "nccl_final": {"type": "bool", "default": True},
            "apply_results": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    fs = RootedFs(module.params["root"])
    params = module.params
    observed = observe(fs, Tools(fs), params["interfaces"], params["tool"], params["traffic_class"])
    module.exit_json(
        changed=False, observed={**observed, "nccl_final": params["nccl_final"], "applied": params["apply_results"]}
    )


if __name__ == "__main__":
    main()
