# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_modules
short_description: Load kernel modules now and at boot
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Loads every module in one call, and lists those that this kernel has as a file in C(/etc/modules-load.d/gpufabric-<owner>.conf).
  - A module that the kernel lacks is reported, never a failure, and is kept out of the file, since it would make
    C(systemd-modules-load.service) fail at boot.
  - Which modules were loaded before the first call is remembered below C(/var/lib/gpufabric/prior).
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
    description: Who wants the modules, usually the role's name. It names the file and the prior state.
    type: str
    required: true
  modules:
    description: The modules' names. C(-) and C(_) are the same.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) loads O(modules) and persists them.
      - V(absent) gives the file back. What is loaded stays loaded, unless O(unload=true).
    type: str
    choices: [present, absent]
    default: present
  unload:
    description: With O(state=absent), unload what was not loaded before the first call, where nothing uses it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Load the RDMA modules now and at boot
  gpufabric.cluster.kernel_modules:
    owner: rdma
    modules: [mlx5_core, mlx5_ib, ib_uverbs, ib_umad, rdma_ucm]
  register: __rdma_modules

- name: Give the file back
  gpufabric.cluster.kernel_modules:
    owner: rdma
    state: absent
"""

RETURN = r"""
modules:
  description: Every module asked for, or with O(state=absent) every module that this owner once asked for.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The name as the kernel spells it.
      type: str
      returned: success
    status:
      description: One of V(loaded), V(builtin), V(available) (on disk, not loaded), V(absent),
          V(blocked) (forbidden by modprobe.d or the kernel's command line), V(failed).
      type: str
      returned: success
    evidence:
      description: What says so.
      type: str
      returned: success
    loaded_now:
      description: Whether this call loaded it or, in check mode, would.
      type: bool
      returned: success
    unloaded_now:
      description: Whether this call unloaded it or, in check mode, would.
      type: bool
      returned: success
    loaded_before:
      description: Whether it was loaded before this owner's first call, V(null) where that was not recorded.
      type: bool
      returned: success
outcomes:
  description: What was or would be done with the file, as M(gpufabric.cluster.owned_files) returns it.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._kernel_modules import KernelModules, modules_load_file
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import OwnedFiles
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "owner": {"type": "str", "required": True},
            "modules": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "unload": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    fs = RootedFs(module.params["root"])
    owner = module.params["owner"]
    check = module.check_mode
    try:
        kernel = KernelModules(fs, Tools(fs), owner)
        # a name of its own, so that the owner's other files are not taken for retired ones
        files = OwnedFiles(fs, f"{owner}-modules-load")
        if module.params["state"] == "absent":
            outcomes = files.rollback(check=check)
            states = kernel.give_back(unload=module.params["unload"], check=check)
        else:
            states = kernel.load(module.params["modules"], check)
            kernel.give_back(keep=[state.name for state in states], check=check)
            persisted = [state.name for state in states if state.persistent]
            outcomes = files.apply([modules_load_file(owner, persisted)] if persisted else [], check=check)
    except (ValueError, OSError, CorruptStateError) as error:
        module.fail_json(msg=str(error))
    changes = [outcome for outcome in outcomes if outcome.changed]
    module.exit_json(
        changed=any(state.moved for state in states) or bool(changes),
        modules=[state.as_dict() for state in states],
        outcomes=[outcome.as_dict() for outcome in outcomes],
        diff=[{"before": o.before, "after": o.after, "before_header": o.path, "after_header": o.path} for o in changes],
    )


if __name__ == "__main__":
    main()
