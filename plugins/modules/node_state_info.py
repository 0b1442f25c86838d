# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: node_state_info
short_description: Read a node's firewall, GPUs, kernel log, shared memory, interfaces and clock
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads in one call what stops or slows collectives and is neither an HCA nor a kernel parameter.
  - Only root may read the firewall, and on most systems the kernel's log. What cannot be read is said.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
"""

EXAMPLES = r"""
- name: Read the node's state
  gpufabric.cluster.node_state_info:
  become: true
  register: state
"""

RETURN = r"""
state:
  description: The node's state.
  returned: success
  type: dict
  contains:
    firewall:
      description: Policies and rules that take packets away.
      type: dict
      returned: success
    gpus:
      description: NVIDIA GPUs with power limits, reasons for lower clocks, remapped rows, PCIe link and fabric state; and their services.
      type: dict
      returned: success
    kernel_log:
      description: Telling lines of the kernel's log by kind.
      type: dict
      returned: success
    shm:
      description: Size and free space of C(/dev/shm) in bytes.
      type: dict
      returned: success
    interfaces:
      description: Network interfaces in the kernel's order.
      type: list
      elements: dict
      returned: success
    port_range:
      description: First and last ephemeral TCP port.
      type: list
      elements: int
      returned: success
    clock:
      description: Whether a time service keeps the clock.
      type: dict
      returned: success
    versions:
      description: Kernel, GPU driver, the CUDA version that it supports, and the CUDA toolkit.
      type: dict
      returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._node_state import read_state
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    fs = RootedFs(module.params["root"])
    module.exit_json(changed=False, state=read_state(fs, Tools(fs)))


if __name__ == "__main__":
    main()
