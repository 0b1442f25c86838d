#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiles whatever is sent to nodes (modules and module_utils) with the Python that runs this, and imports module_utils.

Importing shows what compiling does not: a name of the standard library that this Python lacks, an annotation evaluated at
run time. It needs no Ansible, because module_utils need none.
"""

from __future__ import annotations

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "ansible_collections.gpufabric.cluster.plugins.module_utils"
#: come from pip on nodes that use them
OPTIONAL = {"mpi4py", "torch", "transformers", "peft"}


def main() -> int:
    sys.path.insert(0, str(ROOT / "collections"))
    sys.dont_write_bytecode = True
    wrong = []
    utils = sorted((ROOT / "plugins/module_utils").rglob("*.py"))
    modules = sorted((ROOT / "plugins/modules").glob("*.py"))
    for path in [*modules, *utils]:
        try:
            compile(path.read_text(encoding="utf-8"), str(path), "exec")
        except SyntaxError as error:
            wrong.append(f"{path.relative_to(ROOT)}: {error}")
    for path in utils:
        name = ".".join(path.relative_to(ROOT / "plugins/module_utils").with_suffix("").parts)
        name = name[: -len(".__init__")] if name.endswith(".__init__") else name
        try:
            importlib.import_module(f"{PACKAGE}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in OPTIONAL:
                wrong.append(f"{path.relative_to(ROOT)}: {error}")
        except Exception as error:  # whatever a Python that is too old makes of it
            wrong.append(f"{path.relative_to(ROOT)}: {type(error).__name__}: {error}")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(f"Python {sys.version.split()[0]}: {len(modules)} modules, {len(utils)} module_utils, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
