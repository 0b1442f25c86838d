# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: compare
short_description: Hold two runs against each other
version_added: 0.2.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads two run records on the controller, whatever version wrote them, and tells what changed in settings, in speed and in findings.
  - A difference in speed counts where it is outside what repeats, single iterations or two runs of an unchanged fabric differ by.
  - Writes a page with overlays, the same as Markdown and as JSON, to a directory of its own beside the runs. In check mode nothing is written.
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
  before:
    description:
      - The run to compare with. A C(run.json), a run's directory, a run's identifier or the beginning of one, V(latest), or V(previous),
        that is the last run before O(after).
    type: str
    default: previous
  after:
    description: The run that is compared, in the same forms.
    type: str
    default: latest
  results_dir:
    description: Where runs are kept, relative to the directory that ansible-playbook was started in.
    type: path
    default: results
  noise:
    description: The relative difference up to which a change of speed is noise, where neither repeats nor single iterations say more.
    type: float
    default: 0.1
"""

EXAMPLES = r"""
- name: Hold the last run against the accepted one
  gpufabric.cluster.compare:
    before: /srv/fabric/accepted/run.json
  register: told
  delegate_to: localhost
"""

RETURN = r"""
directory:
  description: Where the comparison was written.
  returned: success
  type: str
verdict:
  description: Status V(better), V(same), V(worse), V(mixed) or V(incomparable), and one line of text.
  returned: success
  type: dict
good:
  description: Whether nothing got worse.
  returned: success
  type: bool
settings:
  description: What changed in settings, as C({kind, name, before, after, nodes}).
  returned: success
  type: list
  elements: dict
speed:
  description: Each series of measurements with its status and the median ratio; single sizes are in C(compare.json).
  returned: success
  type: list
  elements: dict
findings:
  description: The findings that came and went, and how many stayed.
  returned: success
  type: dict
summary:
  description: The lines to show on a terminal.
  returned: success
  type: list
  elements: str
"""
