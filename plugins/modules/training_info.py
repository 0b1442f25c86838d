# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: training_info
short_description: Tell what a node has to train a model with
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Finds a Python with PyTorch, transformers and peft, the GPUs that PyTorch can use, memory and cores. Starts no training.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  python:
    description: The interpreter that has PyTorch. Without it Ansible's own and C(/usr/bin/python3) are tried.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: See whether PyTorch is there
  gpufabric.cluster.training_info:
    python: /opt/train/bin/python
  register: means
"""

RETURN = r"""
python:
  description: The interpreter.
  returned: success
  type: str
versions:
  description: Versions of C(torch), C(transformers) and C(peft), as far as they are there.
  returned: success
  type: dict
gpus:
  description: The memory of each GPU that PyTorch can use, in MiB.
  returned: success
  type: list
  elements: int
nccl:
  description: The version of PyTorch's NCCL, or empty.
  returned: success
  type: str
memory_mb:
  description: The node's available memory in MiB.
  returned: success
  type: int
cores:
  description: Cores that a process here may use.
  returned: success
  type: int
problem:
  description: What is missing, or empty.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import _training_probe
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def main() -> None:
    module = AnsibleModule(argument_spec={"python": {"type": "path", "default": ""}}, supports_check_mode=True)
    fs = RootedFs("/")
    module.exit_json(changed=False, **_training_probe.observe(fs, Tools(fs), module.params["python"]))


if __name__ == "__main__":
    main()
