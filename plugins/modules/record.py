# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: record
short_description: Judge a run and write its record and report
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Walks what the roles registered on every node once, on the controller, judges it, and writes the run directory.
  - The run directory appears with all its files or not at all. In check mode nothing is written.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - Each run has a directory of its own.
options:
  results_dir:
    description: Where run directories are kept, relative to the directory that ansible-playbook was started in.
    type: path
    default: results
"""

EXAMPLES = r"""
- name: Judge the run and write its record and report
  gpufabric.cluster.record:
    results_dir: /srv/fabric-results
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
run_id:
  description: Identifier of the run.
  returned: success
  type: str
run_dir:
  description: The run's directory on the controller.
  returned: success
  type: str
verdict:
  description: Status V(pass), V(fail) or V(unjudged), and one line of text.
  returned: success
  type: dict
findings:
  description: All findings, errors first.
  returned: success
  type: list
  elements: dict
summary:
  description: The lines to show on a terminal.
  returned: success
  type: list
  elements: str
"""
