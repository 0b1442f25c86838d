# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose_logs
short_description: Read logs of NCCL jobs and hold them against the fault catalogue
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Reads a log, or all files below a directory, on the controller. Each is streamed, so its size does not matter.
  - gzip, bzip2, xz and UTF-16 are recognised, and logs that are cut off count as far as they go.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.info_module
options:
  path:
    description: The log or the directory.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read a job's logs
  gpufabric.cluster.diagnose_logs:
    path: /srv/jobs/4711
  register: read
"""

RETURN = r"""
logs:
  description: What the logs say.
  returned: success
  type: dict
  contains:
    path:
      description: What was read.
      type: str
      returned: success
    files:
      description: Each file with its transport, versions, environment, first failure, and the likeliest causes.
      type: list
      elements: dict
      returned: success
    skipped:
      description: Files that were not read, and why.
      type: list
      elements: dict
      returned: success
"""
