# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Python packages of the controller: a missing one is said in one sentence with the command that installs it."""

from __future__ import annotations

import importlib
import sys
import typing as t

from ansible.errors import AnsibleError


def need(module: str) -> t.Any:
    """Import *module*. AnsibleError with what to type where its package is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise AnsibleError(
            f"The Python package {package} is missing on the controller: {sys.executable} -m pip install {package}"
        ) from None


class _Lazy:
    """Stands for a module and imports it at its first use."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> t.Any:
        return getattr(need(self._module), name)


def lazy(module: str) -> t.Any:
    """*module*, imported at its first use: a plugin must load, and say in one sentence what is missing, without it."""
    return _Lazy(module)
