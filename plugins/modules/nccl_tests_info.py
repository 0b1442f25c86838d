# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_info
short_description: Tell what a node has of nccl-tests, MPI and HCA interfaces
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Finds C(mpirun) and its family and version, a Python with C(mpi4py), the nccl-tests programs with the options that each
    knows and whether MPI was compiled in, and the interfaces below the HCAs' ports. Starts no benchmark and needs no GPU.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
options:
  mpirun:
    description: Name or path of mpirun. Without it the usual places are looked at, those of HPC-X included.
    type: str
    default: ''
  directory:
    description: Where the C(*_perf) programs are.
    type: path
    default: ''
  command_prefix:
    description: What stands before each program, for example a container's command.
    type: list
    elements: str
    default: []
  user:
    description: The user of the ranks, as whom a container is looked into. Without it the one that Ansible connects as.
    type: str
    default: ''
  python:
    description: The interpreter that has C(mpi4py). Without it C(/usr/bin/python3) and Ansible's own are tried.
    type: path
    default: ''
"""

EXAMPLES = r"""
- name: See what is there
  gpufabric.cluster.nccl_tests_info:
    directory: /opt/nccl-tests/build
  register: tools
"""

RETURN = r"""
mpirun:
  description: The launcher with RV(mpirun.path), RV(mpirun.version), RV(mpirun.major) and RV(mpirun.problem).
  returned: success
  type: dict
  contains:
    path: {description: Where it is., returned: success, type: str}
    version: {description: As it prints it., returned: success, type: str}
    major: {description: Open MPI's major version or 0., returned: success, type: int}
    problem: {description: Why it cannot be used or empty., returned: success, type: str}
python:
  description: An interpreter with C(mpi4py), or empty.
  returned: success
  type: str
directory:
  description: Where RV(programs) were looked for.
  returned: success
  type: str
programs:
  description: The nccl-tests programs, by collective.
  returned: success
  type: dict
container:
  description: Where a command prefix leads to; the NCCL, configuration files and variables that count there. None without a prefix.
  returned: success
  type: dict
srun:
  description: Whether Slurm's C(srun) is there.
  returned: success
  type: bool
ports:
  description: The ports of all HCAs with their interfaces.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils import _nccl_tests_probe
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Account, Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "mpirun": {"type": "str", "default": ""},
            "directory": {"type": "path", "default": ""},
            "command_prefix": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": ""},
            "python": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    given = module.params
    fs = RootedFs(given["root"])
    pythons = _nccl_tests_probe.pythons(given["python"])
    try:
        account = Account.behind(given["user"]) if given["command_prefix"] else None
    except LookupError as error:
        module.fail_json(msg=str(error))
    observed = _nccl_tests_probe.observe(
        fs, Tools(fs), given["mpirun"], given["directory"], given["command_prefix"], pythons, account
    )
    module.exit_json(changed=False, **observed)


if __name__ == "__main__":
    main()
