#!/usr/bin/env python3
# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the NCCL_* names out of released libraries, and writes the table that the catalogue is tested against.

    tools/extract_nccl_names.py [--cache DIRECTORY] [--output FILE] [VERSION ...]

Each version's wheel is fetched by pip into the cache (about 300 MB), read, and removed again unless --keep is given; its
names stay there, so that a broken run goes on where it stopped. Needs an x86_64 machine, whose wheels pip then takes.
The table holds, a name each, the first and the last release of every unbroken stretch of releases that have it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_library import (
    SONAME,
    WHEEL_DIRECTORY,
    variable_names,
)

PACKAGE = "nvidia-nccl-cu12"
CATALOGUE = ROOT / "plugins/plugin_utils/data/nccl_catalogue.json"
OUTPUT = ROOT / "tests/fixtures/nccl_names_by_version.json"


def fetch(version: str, cache: pathlib.Path) -> pathlib.Path:
    """The wheel of *version* in *cache*, downloaded unless it is there already."""
    present = sorted(cache.glob(f"{PACKAGE.replace('-', '_')}-{version}-*.whl"))
    if not present:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(cache), f"{PACKAGE}=={version}"], check=True, timeout=900)
        present = sorted(cache.glob(f"{PACKAGE.replace('-', '_')}-{version}-*.whl"))
    return present[0]


def names_of(version: str, cache: pathlib.Path, keep: bool) -> list[str]:
    kept = cache / f"names-{version}.json"
    if kept.exists():
        return list(json.loads(kept.read_text()))
    wheel = fetch(version, cache)
    names = names_in(wheel)
    kept.write_text(json.dumps(names))
    if not keep:
        wheel.unlink()
    return names


def names_in(wheel: pathlib.Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=wheel.parent) as directory:
        return variable_names(archive.extract(f"{WHEEL_DIRECTORY}/{SONAME}", directory))


def stretches(have: list[bool], versions: list[str]) -> list[list[str]]:
    """[[first, last]] of each unbroken run of True."""
    found: list[list[str]] = []
    before = False
    for present, version in zip(have, versions):
        if present and before:
            found[-1][1] = version
        elif present:
            found.append([version, version])
        before = present
    return found


def table(names: dict[str, list[str]]) -> dict[str, object]:
    versions = list(names)
    sets = [set(names[version]) for version in versions]
    return {
        "package": PACKAGE,
        "releases": versions,
        "names": {n: stretches([n in s for s in sets], versions) for n in sorted(set().union(*sets))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="default: the releases that the catalogue lists")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/gpufabric/nccl")
    parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
    parser.add_argument("--keep", action="store_true", help="leave the wheels in the cache")
    arguments = parser.parse_args()
    versions = arguments.versions or json.loads(CATALOGUE.read_text())["releases"]
    arguments.cache.mkdir(parents=True, exist_ok=True)
    names = {}
    for version in versions:
        names[version] = names_of(version, arguments.cache, arguments.keep)
        print(f"{version}: {len(names[version])} names", flush=True)
    arguments.output.write_text(json.dumps(table(names), indent=1) + "\n")


if __name__ == "__main__":
    main()
