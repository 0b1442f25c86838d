# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every place that sets an NCCL variable is found, and nothing else."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.gpufabric.cluster.plugins.module_utils import _nccl_sources as sources
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs


def node(root: pathlib.Path, **files: str) -> RootedFs:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return RootedFs(str(root))


@pytest.mark.parametrize(
    ("path", "line", "kind", "value"),
    [
        ("/etc/environment", 'NCCL_DEBUG="INFO"', "PAM", "INFO"),
        ("/etc/profile.d/old.sh", "export NCCL_DEBUG=INFO", "login shell", "INFO"),
        ("/etc/profile.d/old.sh", "  export NCCL_DEBUG='INFO' # why", "login shell", "INFO"),
        ("/etc/profile.d/old.csh", "setenv NCCL_DEBUG INFO", "csh", "INFO"),
        ("/etc/bash.bashrc", "NCCL_DEBUG=INFO; export NCCL_DEBUG", "shell", "INFO"),
        ("/home/ops/.bashrc", "export NCCL_DEBUG=INFO", "shell", "INFO"),
        ("/home/ops/.ssh/environment", "NCCL_DEBUG=INFO", "SSH", "INFO"),
        ("/etc/ssh/sshd_config.d/10.conf", "SetEnv NCCL_DEBUG=INFO", "SSH", "INFO"),
        ("/etc/environment.d/nccl.conf", "NCCL_DEBUG=INFO", "systemd", "INFO"),
        ("/etc/systemd/system/slurmd.service.d/nccl.conf", 'Environment="NCCL_DEBUG=INFO"', "systemd", "INFO"),
        ("/etc/systemd/system.conf.d/nccl.conf", "DefaultEnvironment=NCCL_DEBUG=INFO", "systemd", "INFO"),
        ("/etc/default/slurmd", "NCCL_DEBUG=INFO", "Slurm", "INFO"),
        ("/etc/slurm/taskprolog.sh", "echo export NCCL_DEBUG=INFO", "Slurm", "INFO"),
        ("/etc/openmpi/openmpi-mca-params.conf", "mca_base_env_list = NCCL_DEBUG=INFO", "Open MPI", "INFO"),
        ("/etc/profile.d/old.sh", ': "${NCCL_DEBUG:=INFO}"; export NCCL_DEBUG', "login shell", "INFO"),
        ("/etc/security/pam_env.conf", "NCCL_DEBUG DEFAULT=INFO", "PAM", "INFO"),
        ("/etc/systemd/system/x.service", 'Environment=A=1 "NCCL_DEBUG=INFO"', "systemd", "INFO"),
        ("/etc/profile.d/old.sh", 'if [ "$NCCL_DEBUG" = INFO ]; then', "", ""),
        ("/etc/profile.d/old.sh", "echo NCCL_DEBUG is not set", "", ""),
        ("/etc/profile.d/old.sh", "# export NCCL_DEBUG=INFO", "", ""),
        ("/etc/profile.d/old.sh", "unset NCCL_DEBUG", "", ""),
        ("/etc/profile.d/old.sh", "export MY_NCCL_DEBUG=INFO", "", ""),
        ("/etc/motd", "export NCCL_DEBUG=INFO", "", ""),
    ],
)
def test_settings(tmp_path: pathlib.Path, path: str, line: str, kind: str, value: str) -> None:
    fs = node(tmp_path, **{path: f"# first\n{line}\n"})
    found = sources.settings(fs, "/home/ops")
    if not kind:
        assert found == []
    else:
        assert found == [{"path": path, "kind": kind, "line": 2, "name": "NCCL_DEBUG", "value": value}]


def test_several_on_one_line(tmp_path: pathlib.Path) -> None:
    fs = node(tmp_path, **{"/etc/profile.d/x.sh": "export NCCL_A=1 NCCL_B='2 3'; NCCL_C==x\n"})
    found = [(s["name"], s["value"]) for s in sources.settings(fs, "")]
    assert found == [("NCCL_A", "1"), ("NCCL_B", "2 3"), ("NCCL_C", "=x")]


def test_our_own_files_are_no_foreign_settings(tmp_path: pathlib.Path) -> None:
    fs = node(tmp_path, **{"/etc/profile.d/nccl.sh": "# Managed by gpufabric.cluster 1\nexport NCCL_DEBUG=WARN\n"})
    assert sources.settings(fs, "/root") == []


def test_secrets_are_not_listed(tmp_path: pathlib.Path) -> None:
    assert sources.settings(node(tmp_path, **{"/etc/environment": "NCCL_PSK=s3cret\n"}), "/root") == []


def test_binary_and_huge_files_are_passed_over(tmp_path: pathlib.Path) -> None:
    fs = node(tmp_path, **{"/etc/profile.d/a.sh": "NCCL_A=1\0", "/etc/profile.d/b.sh": "NCCL_A=1\n" + "x" * 300_000})
    assert sources.settings(fs, "/root") == []


def test_user_files_of_all_accounts(tmp_path: pathlib.Path) -> None:
    fs = node(
        tmp_path,
        **{
            "/etc/passwd": "root:x:0:0::/root:/bin/sh\nsvc:x:9:9::/srv/svc:/bin/sh\nbin:x:2:2::/bin:/usr/sbin/nologin\n",
            "/root/.nccl.conf": "NCCL_A=root\n",
            "/home/ops/.nccl.conf": "NCCL_A=ops\n",
            "/srv/svc/.nccl.conf": "NCCL_A=svc\n",
            "/bin/.nccl.conf": "NCCL_A=bin\n",
        },
    )
    found = sources.user_files(fs, "/home/ops/", (2, 28, 9))
    assert [(f["path"], f["variables"]["NCCL_A"]) for f in found] == [
        ("/home/ops/.nccl.conf", "ops"),
        ("/root/.nccl.conf", "root"),
        ("/srv/svc/.nccl.conf", "svc"),
    ]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("/etc/rc.local", "#!/bin/sh\necho NCCL_TOPO_FILE=/opt/t.xml > /etc/nccl.conf\n", 2),
        ("/opt/vendor/setup.sh", "cp /opt/vendor/nccl.conf /etc/nccl.conf\n", 1),
        ("/opt/vendor/hpc/boot.sh", "tee /etc/nccl.conf <<E\n", 1),
        ("/var/lib/cloud/scripts/per-boot/x", "sed -i s/a/b/ /etc/nccl.conf\n", 1),
        ("/etc/tmpfiles.d/x.conf", "f /etc/nccl.conf 0644 root root - NCCL_A=1\n", 1),
        ("/etc/cron.daily/x", "cat /etc/nccl.conf\n", 0),
        ("/etc/rc.local", "# echo > /etc/nccl.conf\n", 0),
        ("/etc/rc.local", "# Managed by gpufabric.cluster\necho > /etc/nccl.conf\n", 0),
    ],
)
def test_writers(tmp_path: pathlib.Path, path: str, text: str, line: int) -> None:
    found = sources.writers(node(tmp_path, **{path: text}))
    assert [(w["path"], w["line"]) for w in found] == ([(path, line)] if line else [])


def test_what_a_unit_starts_is_looked_at(tmp_path: pathlib.Path) -> None:
    fs = node(
        tmp_path,
        **{
            "/etc/systemd/system/topo.service": "[Service]\nExecStart=-/usr/sbin/make-topo --all\n",
            "/usr/sbin/make-topo": "#!/bin/sh\nprintf x >/etc/nccl.conf\n",
        },
    )
    assert [(w["path"], w["line"]) for w in sources.writers(fs)] == [("/usr/sbin/make-topo", 2)]
