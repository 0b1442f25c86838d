# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_build
short_description: Build nccl-tests where it is not built already from just this
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Builds from a git repository at a fixed commit, from an archive, or from a directory, with the CUDA, NCCL and MPI that the
    node has and for the architectures of its GPUs.
  - Nothing is built again unless the source, CUDA, NCCL, MPI or the architectures changed. A build that fails leaves the
    earlier one in place.
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
  source:
    description: URL or path of a git repository, of an archive (C(.tar.gz), C(.tgz), C(.tar.xz), C(.tar)), or of a directory on the node.
    type: str
    required: true
  version:
    description: Commit, tag or branch of a repository.
    type: str
    default: ''
  sha256:
    description: The SHA-256 of an archive. One that is downloaded must have it; another one is held against it.
    type: str
    default: ''
  directory:
    description: Where it is built. The programs are in its subdirectory C(build).
    type: path
    required: true
  cuda_home:
    description: Where CUDA is. Without it C(/usr/local/cuda) and its like are tried.
    type: path
    default: ''
  nccl_home:
    description: The directory with NCCL's C(include) and C(lib). Without it the system's, CUDA's and that of the Python package are tried.
    type: path
    default: ''
  mpi_home:
    description: The directory with MPI's C(include). Without it the distribution's Open MPI and HPC-X are tried.
    type: path
    default: ''
  mpi:
    description: Build with MPI, without which no run leaves its node.
    type: bool
    default: true
  architectures:
    description: Architectures such as V(90). Without it those of the node's GPUs.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Build nccl-tests
  gpufabric.cluster.nccl_tests_build:
    source: https://github.com/NVIDIA/nccl-tests.git
    version: v2.19.6
    directory: /opt/gpufabric/nccl-tests
"""

RETURN = r"""
programs:
  description: Where the programs are.
  returned: success
  type: str
toolchain:
  description: What they are built with.
  returned: success
  type: dict
"""

import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_tests_build import Builder, BuildError, Wanted
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    text = {"type": "path", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "sha256": {"type": "str", "default": ""},
            "directory": {"type": "path", "required": True},
            "cuda_home": text,
            "nccl_home": text,
            "mpi_home": text,
            "mpi": {"type": "bool", "default": True},
            "architectures": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs("/"))
    given = {**module.params, "architectures": tuple(module.params["architectures"])}
    fs = RootedFs("/")
    builder = Builder(fs, Tools(fs), Wanted(python=sys.executable, **given), lambda url: open_url(url, timeout=60))
    try:
        chain = builder.toolchain()
        identity = builder.identity(chain)
        changed = not builder.is_current(identity)
        if changed and not module.check_mode:
            builder.build(chain, identity)
    except (BuildError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, programs=builder.programs, toolchain=chain.as_dict())


if __name__ == "__main__":
    main()
