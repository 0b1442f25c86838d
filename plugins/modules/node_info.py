# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Read what a node is and whether it is busy
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads the distribution, kernel, addresses, SSH host keys, GPUs, GPU processes and Slurm jobs of a node in one call.
  - Needs no root, and loads nothing.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
"""

EXAMPLES = r"""
- name: Read what the node is
  gpufabric.cluster.node_info:
  register: node
"""

RETURN = r"""
observed:
  description: The node.
  returned: success
  type: dict
  contains:
    distribution:
      description: C(ID) of os-release(5).
      type: str
      returned: success
    os_family:
      description: One of V(debian), V(redhat), V(suse), V(other).
      type: str
      returned: success
    kernel:
      description: Kernel release.
      type: str
      returned: success
    addresses:
      description: Addresses with their prefix length, by interface.
      type: dict
      returned: success
    gpus:
      description: NVIDIA GPUs as C(nvidia-smi) prints them.
      type: list
      elements: dict
      returned: success
    busy:
      description: Whether GPU processes or Slurm jobs run.
      type: bool
      returned: success
    busy_why:
      description: Which ones.
      type: str
      returned: success
    problems:
      description: What could not be read.
      type: list
      elements: dict
      returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._node import observe_node
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    fs = RootedFs(module.params["root"])
    module.exit_json(changed=False, observed=observe_node(fs, Tools(fs)))


if __name__ == "__main__":
    main()
