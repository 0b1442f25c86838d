# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_env_info
short_description: Read which NCCL settings reach the ranks of a node, and from where
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Finds the libraries C(libnccl.so.2) of a node and reads their versions out of the files, without running them.
  - Reads C(/etc/nccl.conf), a vendor's one that was taken over, every C(~/.nccl.conf), and every other file that sets
    C(NCCL_*) variables or rewrites C(/etc/nccl.conf).
  - Shows what a login shell, a command over SSH, a local rank of mpirun and a systemd service see, and what NCCL makes of it
    together with its configuration files.
  - Of the environments, only C(NCCL_*) variables, C(LD_LIBRARY_PATH), C(LD_PRELOAD) and C(HOME) leave the node.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
  - gpufabric.cluster._attributes.root
options:
  user:
    description: Whose ranks are asked about. By default the user that Ansible connects as.
    type: str
    default: ''
  libraries:
    description: Libraries, or directories with one, that ranks load in place of what the linker finds.
    type: list
    elements: str
    default: []
  nccl_version:
    description: The version whose rules hold, where ranks load a library that is not on this node's disk.
    type: str
    default: ''
  catalogue_version:
    description: For a library newer than this, the names of its variables are returned as well.
    type: str
    default: ''
  ways:
    description:
      - The ways in which a rank is started that are tried. Nothing runs for V(ssh), which is read from this very session.
    type: list
    elements: str
    choices: [login, ssh, mpirun, systemd]
    default: [login, ssh, systemd]
  ask_library:
    description: Whether to load the library in a child process that uses no GPU, and have it say what it was given.
    type: bool
    default: false
  hcas:
    description: Whether to read the HCAs as well, as M(gpufabric.cluster.hca_info) does without its tools and counters.
    type: bool
    default: false
  timeout:
    description: How long each program may take, in seconds.
    type: float
    default: 30
  resolved:
    description: What was resolved for this node. It is returned as it is, so that one result holds all.
    type: dict
    default: {}
  written:
    description: What became of the files. It is returned as it is, so that one result holds all.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: See what ranks see
  gpufabric.cluster.nccl_env_info:
    ways: [login, ssh, mpirun, systemd]
    ask_library: true
  register: nccl
"""

RETURN = r"""
observed:
  description: The node's NCCL environment.
  returned: success
  type: dict
  contains:
    library:
      description: The library that a rank loads first, with path, source, version and CUDA version; null without any.
      type: dict
      returned: success
    libraries:
      description: All that were found.
      type: list
      elements: dict
      returned: success
    library_names:
      description: The variables that the library knows, null unless it is newer than O(catalogue_version).
      type: list
      elements: str
      returned: success
    user:
      description: Whose ranks were asked about.
      type: str
      returned: success
    home:
      description: That user's home directory.
      type: str
      returned: success
    ways:
      description: By way, the environment, and by variable the value that NCCL ends up with and its source.
      type: dict
      returned: success
    conf:
      description: C(/etc/nccl.conf), with a remark on each line that does not do what it looks like.
      type: dict
      returned: success
    site:
      description: The variables of a vendor's C(/etc/nccl.conf), whether it lies there still or was taken over.
      type: dict
      returned: success
    user_files:
      description: The C(~/.nccl.conf) of every account.
      type: list
      elements: dict
      returned: success
    settings:
      description: Other files' lines that set C(NCCL_*), with path, kind, line, name and value.
      type: list
      elements: dict
      returned: success
    writers:
      description: Scripts and units that write C(/etc/nccl.conf).
      type: list
      elements: dict
      returned: success
    asked:
      description: What the library said that it was given, and its warnings; null unless asked.
      type: dict
      returned: success
    rdma:
      description: The HCAs, null unless O(hcas=true).
      type: dict
      returned: success
    resolved:
      description: O(resolved) as it came.
      type: dict
      returned: success
    written:
      description: O(written) as it came.
      type: dict
      returned: success
    check_mode:
      description: Whether this was a check, so that what was resolved is not written yet.
      type: bool
      returned: success
    problems:
      description: What could not be read, as C(id), C(subject) and C(evidence).
      type: list
      elements: dict
      returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_env_observe import Request, observe_nccl_env
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rdma_observe import observe_rdma
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "user": {"type": "str", "default": ""},
            "libraries": {"type": "list", "elements": "str", "default": []},
            "nccl_version": {"type": "str", "default": ""},
            "catalogue_version": {"type": "str", "default": ""},
            "ways": {
                "type": "list",
                "elements": "str",
                "choices": ["login", "ssh", "mpirun", "systemd"],
                "default": ["login", "ssh", "systemd"],
            },
            "ask_library": {"type": "bool", "default": False},
            "hcas": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 30},
            "resolved": {"type": "dict", "default": {}},
            "written": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    fs = RootedFs(module.params["root"])
    tools = Tools(fs)
    names = ("user", "libraries", "nccl_version", "catalogue_version", "ways", "ask_library", "timeout")
    observed = observe_nccl_env(fs, tools, Request(**{name: module.params[name] for name in names}))
    observed["rdma"] = observe_rdma(fs, tools, counters="none") if module.params["hcas"] else None
    observed["resolved"] = module.params["resolved"]
    observed["written"] = module.params["written"]
    observed["check_mode"] = module.check_mode
    module.exit_json(changed=False, observed=observed)


if __name__ == "__main__":
    main()
