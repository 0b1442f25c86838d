# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_env_resolve
short_description: Resolve the NCCL environment of all nodes of a play at once
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Runs on the controller, once, after M(gpufabric.cluster.nccl_env_info) has observed the nodes.
  - Takes each node's settings of the role C(nccl_env), what was observed of its library, HCAs, addresses and quality of
    service, and says which variable gets which value, from where and why, and what was left out.
  - Fails for nothing that a user wrote. What is wrong is returned as findings.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: N/A
    details:
      - This module does not modify state.
  idempotent:
    support: full
    details:
      - This module does not modify state.
options: {}
"""

EXAMPLES = r"""
- name: Resolve the fleet
  gpufabric.cluster.nccl_env_resolve:
  run_once: true
  register: fleet
"""

RETURN = r"""
collection_version:
  description: The version of this collection, for the files' headers.
  returned: success
  type: str
nodes:
  description: By node, what was resolved.
  returned: success
  type: dict
  contains:
    variables:
      description: In the order in which they are written, with name, value, origin, reason and scope (V(uniform) or V(node)).
      type: list
      elements: dict
      returned: success
    dropped:
      description: What was left out, with name, value, origin and reason.
      type: list
      elements: dict
      returned: success
    writable:
      description: Whether nothing speaks against writing the files.
      type: bool
      returned: success
    nccl_version:
      description: The release for which it was resolved.
      type: str
      returned: success
    transport:
      description: Any of V(ib), V(roce), V(socket), V(plugin); null where the hardware is unknown.
      type: list
      elements: str
      returned: success
    profiles:
      description: The profiles in force.
      type: list
      elements: str
      returned: success
    findings:
      description: What is wrong, as findings.
      type: list
      elements: dict
      returned: success
"""
