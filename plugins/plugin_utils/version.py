# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection's version, read from what Galaxy writes at install or from galaxy.yml in a checkout."""

from __future__ import annotations

import json

import yaml
from ansible_collections.gpufabric.cluster.plugins.plugin_utils.role_specs import COLLECTION


def _read() -> str:
    manifest = COLLECTION / "MANIFEST.json"
    if manifest.exists():
        return str(json.loads(manifest.read_text())["collection_info"]["version"])
    return str(yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"])


COLLECTION_VERSION = _read()
