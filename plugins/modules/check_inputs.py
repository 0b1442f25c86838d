# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: check_inputs
short_description: Hold all nodes' variables against the roles' specifications
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Walks the variables of every node once, on the controller, and reports misspelt names and wrong types as findings.
  - Starts a run by giving it an identifier.
  - Fails only where the inventory holds no node at all, or where the job is one slice of several, which sees a part of the nodes.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  nodes:
    description: Which hosts of the inventory are nodes, as an Ansible host pattern.
    type: str
    default: all:!localhost
  may_be_empty:
    description: Whether a run without nodes is one all the same, such as one that only reads logs.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Hold every variable against the roles' specifications
  gpufabric.cluster.check_inputs:
  run_once: true
  delegate_to: localhost
  register: inputs
"""

RETURN = r"""
run_id:
  description: Identifier of this run, a UTC time and four hexadecimal digits.
  returned: success
  type: str
started:
  description: When the run began, ISO 8601.
  returned: success
  type: str
nodes:
  description: Inventory names of the nodes.
  returned: success
  type: list
  elements: str
bad_nodes:
  description: Nodes with a variable that cannot be right.
  returned: success
  type: list
  elements: str
findings:
  description: What is wrong, in the shape of all findings of the collection.
  returned: success
  type: list
  elements: dict
"""
