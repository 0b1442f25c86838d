# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH keys and the files that carry them."""

from __future__ import annotations

import pathlib
import subprocess

import paramiko

from lab import keys


def test_openssh_and_paramiko_read_what_is_generated(tmp_path: pathlib.Path) -> None:
    pair = keys.load_or_generate(tmp_path / "id", "a comment")
    derived = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "id"], capture_output=True, text=True, check=True
    ).stdout
    assert derived.split()[:2] == pair.public.split()[:2]
    assert pair.public.endswith(" a comment\n")
    assert paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "id")).get_base64() == pair.public.split()[1]


def test_the_private_key_is_its_users_alone_and_both_are_kept(tmp_path: pathlib.Path) -> None:
    first = keys.load_or_generate(tmp_path / "id", "x")
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o600
    assert keys.load_or_generate(tmp_path / "id", "x") == first
    (tmp_path / "id.pub").unlink()
    assert keys.load_or_generate(tmp_path / "id", "x") != first


def test_no_two_keys_are_alike() -> None:
    assert keys.generate("x").public != keys.generate("x").public


def test_a_known_hosts_line_is_found_by_openssh(tmp_path: pathlib.Path) -> None:
    pair = keys.generate("root@n1")
    file = tmp_path / "known_hosts"
    file.write_text(keys.known_hosts_line("127.0.0.1", 2201, pair.public))
    done = subprocess.run(
        ["ssh-keygen", "-F", "[127.0.0.1]:2201", "-f", file], capture_output=True, text=True, check=True
    )
    assert pair.algorithm_and_key in done.stdout
    assert subprocess.run(["ssh-keygen", "-F", "127.0.0.1", "-f", file], capture_output=True).returncode != 0
