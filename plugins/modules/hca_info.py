# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: hca_info
short_description: Read every RDMA device and port of a node
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads all devices and ports from C(/sys/class/infiniband), and puts beside it what the RDMA tools say.
  - Nothing that it finds fails the host. A tool that is missing, hangs or panics is reported and takes no data with it.
  - Needs no root, except that some counters and cable data are hidden from others.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
options:
  witnesses:
    description:
      - The tools to ask, all at the same time.
      - V(iblinkinfo) (InfiniBand) and V(mlxlink) are started once a port, the others once a node. V(lldp) is C(lldpcli).
    type: list
    elements: str
    choices: [ibstat, ibv_devinfo, rdma, ibdev2netdev, lldp, iblinkinfo, mlxlink]
    default: [ibstat, ibv_devinfo, rdma]
  witness_timeout:
    description: How long each tool may take, in seconds. What it printed until then counts.
    type: float
    default: 20
  counters:
    description:
      - Whose error and traffic counters to read.
      - Some virtual functions answer each read with a line in the kernel's log, so V(physical) leaves those out.
    type: str
    choices: [none, physical, all]
    default: physical
  since:
    description: The C(hcas) of an earlier result. By how much counters rose since then is RV(observed.moved).
    type: list
    elements: dict
    default: []
  earlier_problems:
    description: What earlier steps could not do. Returned among C(problems), so that one result holds all.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read every HCA
  gpufabric.cluster.hca_info:
  register: hcas

- name: Read how counters moved since then
  gpufabric.cluster.hca_info:
    witnesses: []
    since: "{{ hcas.observed.hcas }}"
  register: after
"""

RETURN = r"""
observed:
  description: The node's RDMA side.
  returned: success
  type: dict
  contains:
    hcas:
      description:
        - The devices in natural order, each with driver, board, firmware, GUIDs, PCIe link (as trained and as possible),
          NUMA node, nearest GPUs, and its ports.
        - A port has state, physical state, rate in Gb/s, link layer, LIDs, MTUs in bytes, the GIDs in use with type, interface and IPv4
          address, its interface, and its counters.
      type: list
      elements: dict
      returned: success
    netdevs:
      description: The ports' interfaces by name, with MTU, speed in Mb/s, state, addresses and the ARP settings in force.
      type: dict
      returned: success
    gpus:
      description: The GPUs on the PCI bus.
      type: list
      elements: dict
      returned: success
    unbound:
      description: PCI functions of HCA makers without an RDMA device.
      type: list
      elements: dict
      returned: success
    witnesses:
      description: What each tool said, by device and port, and why one that failed did.
      type: dict
      returned: success
    neighbours:
      description: ARP entries on the ports' interfaces, at most 128.
      type: list
      elements: dict
      returned: success
    stack:
      description: Vendor stack, user-space providers, tools, modules, and what of GPUDirect the kernel exposes.
      type: dict
      returned: success
    moved:
      description: By how much each counter rose since O(since), by port (C(mlx5_0 port 1)); only those that rose.
      type: dict
      returned: success
    problems:
      description: What could not be read, as C(id), C(subject) and C(evidence).
      type: list
      elements: dict
      returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_sysfs import moved_counters
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "witnesses": {
                "type": "list",
                "elements": "str",
                "choices": ["ibstat", "ibv_devinfo", "rdma", "ibdev2netdev", "lldp", "iblinkinfo", "mlxlink"],
                "default": ["ibstat", "ibv_devinfo", "rdma"],
            },
            "witness_timeout": {"type": "float", "default": 20},
            "counters": {"type": "str", "choices": ["none", "physical", "all"], "default": "physical"},
            "since": {"type": "list", "elements": "dict", "default": []},
            "earlier_problems": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    fs = RootedFs(module.params["root"])
    observed = observe_rdma(
        fs,
        Tools(fs),
        module.params["witnesses"],
        module.params["counters"],
        module.params["witness_timeout"],
    )
    observed["moved"] = moved_counters(module.params["since"], observed["hcas"])
    observed["problems"] = module.params["earlier_problems"] + observed["problems"]
    module.exit_json(changed=False, observed=observed)


if __name__ == "__main__":
    main()
