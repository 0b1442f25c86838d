# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: lease
short_description: Take back what a run left on a node
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Ends a run's processes on the node and removes its key, files and guard. This is the fast path after a run; without it the node does
    the same by itself as soon as its lease ends.
  - In any case the leases of earlier runs that ended without their guard, for example at a loss of power, are taken back, too.
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
  run_id:
    description: The run to take back. Without it only ended leases are.
    type: str
    default: ''
"""

EXAMPLES = r"""
- name: Take back what the run put on the node
  gpufabric.cluster.lease:
    run_id: 20260101T120000-3fa9c1

- name: Take back what any earlier run left
  gpufabric.cluster.lease:
"""

RETURN = r"""
released:
  description: What was taken back, a run each.
  returned: success
  type: dict
  sample:
    20260101T120000-3fa9c1:
      processes: [4711]
      removed: [/root/.ssh/authorized_keys]
      left: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._lease import Lease, LeaseError, Released, sweep
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def take_back(fs: RootedFs, run_id: str) -> dict[str, Released]:
    """Release *run_id* if this node holds it, and every ended lease."""
    released = sweep(fs)
    if run_id:
        lease = Lease(fs, run_id)
        if fs.exists(lease.note) or fs.exists(lease.directory):
            released[run_id] = lease.release()
    return released


def main() -> None:
    module = AnsibleModule(argument_spec={"run_id": {"type": "str", "default": ""}}, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, released={})
    try:
        released = take_back(RootedFs("/"), module.params["run_id"])
    except (LeaseError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(released), released={name: what.as_dict() for name, what in released.items()})


if __name__ == "__main__":
    main()
