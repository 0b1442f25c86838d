# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: owned_files
short_description: Write or give back the whole files that a role owns
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Brings all files of one owner into place in one call, each atomically, and remembers once what was there before.
  - A foreign file (one without the header C(Managed by gpufabric.cluster)) is left alone and reported, unless O(adopt=true).
  - With O(state=absent) every file that this owner ever wrote is given back as it was before the first change.
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
    description: The name under which prior state is kept below C(/var/lib/gpufabric/prior), usually the role's name.
    type: str
    required: true
  state:
    description:
      - V(present) writes O(files), and gives back those of an earlier call that are no longer listed.
      - V(absent) gives back all of them.
    type: str
    choices: [present, absent]
    default: present
  files:
    description: The files as they should be.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where the file lies, as an absolute path.
        type: str
        required: true
      content:
        description: The whole content, with the header in one of its first five lines.
        type: str
        required: true
      mode:
        description: Permission bits as an octal string.
        type: str
        default: '0644'
  adopt:
    description: Take over a foreign file that is in the way. It is restored at rollback.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Write the NCCL environment
  gpufabric.cluster.owned_files:
    owner: nccl_env
    files:
      - path: /etc/nccl.conf
        content: |
          # Managed by gpufabric.cluster, role nccl_env
          NCCL_DEBUG=WARN

- name: Give everything back
  gpufabric.cluster.owned_files:
    owner: nccl_env
    state: absent
"""

RETURN = r"""
outcomes:
  description: What was or would be done, a file each.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
      returned: success
    status:
      description: One of V(written), V(unchanged), V(foreign), V(restored), V(removed), V(changed_since).
      type: str
      returned: success
    before:
      description: The text before, empty where there was no file.
      type: str
      returned: success
    after:
      description: The text after.
      type: str
      returned: success
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import Outcome, OwnedFile, OwnedFiles
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def owned_file(entry: t.Mapping[str, str]) -> OwnedFile:
    """One entry of the option files; ValueError names a mode that is no octal number."""
    try:
        return OwnedFile(entry["path"], entry["content"], int(entry["mode"], 8))
    except ValueError:
        raise ValueError(
            f"files: the mode of {entry['path']} must be an octal number such as '0644', not {entry['mode']!r}"
        ) from None


def apply(params: t.Mapping[str, t.Any], check: bool) -> list[Outcome]:
    files = OwnedFiles(RootedFs(params["root"]), params["owner"])
    if params["state"] == "absent":
        return files.rollback(check=check)
    return files.apply([owned_file(entry) for entry in params["files"]], params["adopt"], check)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "owner": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "str", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "adopt": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    try:
        outcomes = apply(module.params, module.check_mode)
    except (ValueError, OSError, CorruptStateError) as error:
        module.fail_json(msg=str(error))
    changes = [outcome for outcome in outcomes if outcome.changed]
    module.exit_json(
        changed=bool(changes),
        outcomes=[outcome.as_dict() for outcome in outcomes],
        diff=[{"before": o.before, "after": o.after, "before_header": o.path, "after_header": o.path} for o in changes],
    )


if __name__ == "__main__":
    main()
