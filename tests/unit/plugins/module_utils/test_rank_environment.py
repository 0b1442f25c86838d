# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank gets by the way in which it is started."""

from __future__ import annotations

import os
import pathlib
import typing as t

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _rank_environment as ranks
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def put(root: pathlib.Path, path: str, text: str, mode: int = 0o644) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def process(root: pathlib.Path, pid: int, parent: int, name: str, **environment: str) -> None:
    put(root, f"/proc/{pid}/status", f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\n")
    put(root, f"/proc/{pid}/environ", "".join(f"{k}={v}\0" for k, v in environment.items()))


def test_the_session_of_a_process_behind_sudo(tmp_path: pathlib.Path) -> None:
    """sshd starts a shell, whose sudo still has the session's environment; Python behind it has lost it."""
    process(tmp_path, 10, 1, "sshd")
    process(tmp_path, 20, 10, "bash", NCCL_A="pam")
    process(tmp_path, 30, 20, "sudo", NCCL_A="bashrc", LD_LIBRARY_PATH="/opt/lib", USER="ops")
    process(tmp_path, 40, 30, "python3", USER="root")
    environment, over_ssh = ranks.session(RootedFs(str(tmp_path)), 40)
    assert over_ssh and environment == {"NCCL_A": "bashrc", "LD_LIBRARY_PATH": "/opt/lib", "USER": "ops"}


def test_the_outermost_change_of_user_counts(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 10, 1, "sshd-session")
    process(tmp_path, 20, 10, "su", USER="ops")
    process(tmp_path, 30, 20, "sudo", USER="admin")
    process(tmp_path, 40, 30, "python3", USER="root")
    assert ranks.session(RootedFs(str(tmp_path)), 40) == ({"USER": "ops"}, True)


def test_a_local_session(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 20, 1, "bash")
    process(tmp_path, 40, 20, "python3", NCCL_A="1")
    assert ranks.session(RootedFs(str(tmp_path)), 40) == ({"NCCL_A": "1"}, False)


def test_this_very_process() -> None:
    environment, _over_ssh = ranks.session(RootedFs())
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("A=1\0B=two\nlines\0", {"A": "1", "B": "two\nlines"}),
        ("A=1\nB=2\n", {"A": "1", "B": "2"}),
        ("no assignment\0=x\0BASH_FUNC_x%%=() {}\0A==b\0", {"A": "=b"}),
        ("", {}),
    ],
)
def test_parsing(text: str, parsed: dict[str, str]) -> None:
    assert ranks.parse_environment(text) == parsed


def test_a_login_shell_sees_what_profile_d_exports(tmp_path: pathlib.Path) -> None:
    """A real shell, its profile replaced by the user's own: the way in which /etc/profile would source profile.d."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.bash_profile").write_text("export NCCL_DEBUG=WARN\nNCCL_NOT_EXPORTED=1\n")
    own = ranks.find_user(RootedFs(), "")
    assert own is not None
    user = ranks.User(own.name, str(tmp_path / "home"), "/bin/bash")
    environment, problem = ranks.login(Tools(RootedFs()), user, 20)
    assert problem == ""
    assert environment["NCCL_DEBUG"] == "WARN" and "NCCL_NOT_EXPORTED" not in environment
    assert environment["HOME"] == str(tmp_path / "home")


def test_a_login_shell_starts_with_pams_environment_and_nothing_of_ours(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_OF_THE_CALLER", "1")
    put(tmp_path, "/etc/environment", 'NCCL_A="1"\n')
    put(
        tmp_path,
        "/usr/bin/env",
        '#!/bin/sh\nshift\nfor word; do case "$word" in *=*) printf "%s\\0" "$word";; esac; done\n',
        0o755,
    )
    user = ranks.User(ranks.find_user(RootedFs(), "").name, "/root", "/usr/sbin/nologin")  # type: ignore[union-attr]
    environment, problem = ranks.login(Tools(RootedFs(str(tmp_path))), user, 20)
    assert problem == "" and environment["NCCL_A"] == "1" and "NCCL_OF_THE_CALLER" not in environment


@pytest.mark.parametrize(
    ("script", "says"),
    [("exit 3", "exit status 3"), ("sleep 30", "did not end"), ("true", "no environment")],
)
def test_a_shell_that_gives_no_answer(tmp_path: pathlib.Path, script: str, says: str) -> None:
    put(tmp_path, "/usr/bin/env", f"#!/bin/sh\n{script}\n", 0o755)
    user = ranks.User(ranks.find_user(RootedFs(), "").name, "/root", "/bin/bash")  # type: ignore[union-attr]
    environment, problem = ranks.login(Tools(RootedFs(str(tmp_path))), user, 0.5)
    assert environment == {} and says in problem


def test_mpirun_gets_the_sessions_environment(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/usr/bin/mpirun", "#!/bin/sh\n", 0o755)
    put(
        tmp_path,
        "/usr/bin/env",
        '#!/bin/sh\nshift\nfor word; do case "$word" in *=*) printf "%s\\0" "$word";; esac; done\n',
        0o755,
    )
    user = ranks.User(ranks.find_user(RootedFs(), "").name, "/root", "/bin/bash")  # type: ignore[union-attr]
    environment, problem = ranks.mpirun(Tools(RootedFs(str(tmp_path))), user, {"NCCL_A": "1"}, 5)
    assert problem == "" and environment["NCCL_A"] == "1"


def test_systemd(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "/usr/bin/systemctl", "#!/bin/sh\necho LANG=C\necho NCCL_DEBUG=INFO\n", 0o755)
    assert ranks.systemd(Tools(RootedFs(str(tmp_path))), 5) == ({"LANG": "C", "NCCL_DEBUG": "INFO"}, "")


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("NCCL_A=1", {"NCCL_A": "1"}),
        ("export NCCL_A=1", {"NCCL_A": "1"}),
        ("NCCL_A='a b'", {"NCCL_A": "a b"}),
        ("# NCCL_A=1", {}),
        ("", {}),
    ],
)
def test_pam(tmp_path: pathlib.Path, line: str, given: dict[str, str]) -> None:
    put(tmp_path, "/etc/environment", f"{line}\n")
    assert ranks.pam_environment(RootedFs(str(tmp_path))) == given


@pytest.mark.parametrize(
    ("name", "found"),
    [("ops", ranks.User("ops", "/home/ops", "/bin/zsh")), ("nobody-there", None)],
)
def test_accounts(tmp_path: pathlib.Path, name: str, found: t.Any) -> None:
    put(tmp_path, "/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nops:x:1000:1000::/home/ops:/bin/zsh\n")
    assert ranks.find_user(RootedFs(str(tmp_path)), name) == found


def test_secrets_stay_on_the_node() -> None:
    everything = {"NCCL_A": "1", "NCCL_PSK": "s3cret", "SLURM_JWT": "x", "LD_LIBRARY_PATH": "/l", "AWS_KEY": "k"}
    assert ranks.relevant(everything) == {"NCCL_A": "1", "LD_LIBRARY_PATH": "/l"}
