# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import random

from ansible_collections.gpufabric.cluster.plugins.module_utils._finding import Finding, worst_first


def finding(severity: str, node: str, subject: str) -> Finding:
    return Finding("an-id", severity, node, subject, "evidence", "expected", "cause", "fix")


def test_errors_that_name_a_node_come_first_and_the_fabrics_after_them() -> None:
    wanted = [
        finding("error", "n1", "mlx5_1 port 1"),
        finding("error", "n2", "mlx5_0 port 1"),
        finding("error", "", "all_reduce"),
        finding("warning", "n1", "net.core.rmem_max"),
        finding("warning", "", "run"),
        finding("notice", "n1", "mlx5_0"),
    ]
    shuffled = random.Random(0).sample(wanted, len(wanted))
    assert worst_first(shuffled) == wanted
