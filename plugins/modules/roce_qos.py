# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_qos
short_description: Set how RoCE interfaces treat their traffic, now and at boot
version_added: 0.1.0
author:
  - gpufabric.cluster contributors (@gpufabric)
description:
  - Sets trust, priority flow control, ECN and traffic classes of each interface, by C(mlnx_qos) or C(dcb), and in sysfs, debugfs and
    configfs.
  - Makes them last by a script and a unit that it owns, and remembers once what was there before.
  - An interface whose settings belong to its firmware or to an LLDP agent (DCBX) is refused and left alone.
  - With O(state=absent) every interface gets back what it had before the first call, and the boot files go.
extends_documentation_fragment:
  - gpufabric.cluster._attributes
  - gpufabric.cluster._attributes.root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description: V(present) sets, V(absent) gives back.
    type: str
    choices: [present, absent]
    default: present
  interfaces:
    description: The interfaces. A bond is set through the interfaces below it.
    type: list
    elements: str
    default: []
  tool:
    description: The tool to use; V(auto) takes the first one that answers.
    type: str
    choices: [auto, mlnx_qos, dcb]
    default: auto
  trust:
    description: What the adapter sorts packets by.
    type: str
    choices: [dscp, pcp]
  pfc:
    description: The lossless priorities; priority flow control is switched off for all others.
    type: list
    elements: int
  dscp_priorities:
    description: Priority by DSCP. Other entries of the table stay.
    type: dict
    default: {}
  ecn:
    description: The priorities to switch ECN on for, as notification point and as reaction point. Others stay as they are.
    type: list
    elements: int
    default: []
  cnp_dscp:
    description: DSCP of congestion notification packets.
    type: int
  cnp_priority:
    description: 802.1p priority of congestion notification packets.
    type: int
  cma_tos:
    description: Type of service that C(rdma_cm) gives new connections.
    type: int
  traffic_class:
    description: Traffic class that the adapter gives every RoCE packet, where its driver offers that.
    type: int
"""

EXAMPLES = r"""
- name: Make priority 3 lossless for RoCE
  gpufabric.cluster.roce_qos:
    interfaces: [ens1f0np0]
    trust: dscp
    pfc: [3]
    dscp_priorities: {'26': 3}
    ecn: [3]
    cma_tos: 106

- name: Give everything back
  gpufabric.cluster.roce_qos:
    state: absent
"""

RETURN = r"""
settings:
  description: What was or would be done, a setting of an interface each.
  returned: success
  type: list
  elements: dict
  contains:
    interface:
      description: The interface.
      type: str
      returned: success
    setting:
      description: The setting.
      type: str
      returned: success
    status:
      description: One of V(applied), V(already), V(failed), V(refused), V(unsupported), V(restored).
      type: str
      returned: success
    before:
      description: The value before.
      type: str
      returned: success
    after:
      description: The value after.
      type: str
      returned: success
    why:
      description: Why it was not set.
      type: str
      returned: success
outcomes:
  description: What was or would be done with the boot files, as M(gpufabric.cluster.owned_files) returns it.
  returned: success
  type: list
  elements: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.cluster.plugins.module_utils._owned_file import Outcome
from ansible_collections.gpufabric.cluster.plugins.module_utils._prior_state import CorruptStateError
from ansible_collections.gpufabric.cluster.plugins.module_utils._process import Tools
from ansible_collections.gpufabric.cluster.plugins.module_utils._roce_qos import ECN_ROLES, PRIORITIES, observe
from ansible_collections.gpufabric.cluster.plugins.module_utils._roce_qos_apply import Done, RoceQos, Wanted
from ansible_collections.gpufabric.cluster.plugins.module_utils._rooted_fs import RootedFs
from ansible_collections.gpufabric.cluster.plugins.module_utils._run_lock import show_life


def wanted(params: t.Mapping[str, t.Any]) -> Wanted:
    """The module's options as settings; ValueError names the one that cannot be."""
    return Wanted(
        trust=params["trust"],
        pfc=_priorities("pfc", params["pfc"]),
        dscp_prio={
            _number("dscp_priorities", d, 64): _number("dscp_priorities", p, 8)
            for d, p in params["dscp_priorities"].items()
        },
        ecn=dict.fromkeys(ECN_ROLES, dict.fromkeys(_priorities("ecn", params["ecn"]) or (), True)),
        cnp_dscp=None if params["cnp_dscp"] is None else _number("cnp_dscp", params["cnp_dscp"], 64),
        cnp_priority=None if params["cnp_priority"] is None else _number("cnp_priority", params["cnp_priority"], 8),
        tclass=None if params["traffic_class"] is None else _number("traffic_class", params["traffic_class"], 256),
        cma_tos=None if params["cma_tos"] is None else _number("cma_tos", params["cma_tos"], 256),
    )


def _number(option: str, value: t.Any, limit: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < limit:
        raise ValueError(f"{option}: a number from 0 to {limit - 1} is expected, not {value!r}")
    return number


def _priorities(option: str, values: t.Sequence[t.Any] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(_number(option, value, len(PRIORITIES)) for value in values)


def act(params: t.Mapping[str, t.Any], check: bool) -> tuple[list[Done], list[Outcome]]:
    fs = RootedFs(params["root"])
    tools = Tools(fs)
    qos = RoceQos(fs, tools)
    if params["state"] == "absent":
        return qos.rollback(check)
    goal = wanted(params)
    return qos.apply(observe(fs, tools, params["interfaces"], params["tool"])["interfaces"], goal, check)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "tool": {"type": "str", "choices": ["auto", "mlnx_qos", "dcb"], "default": "auto"},
            "trust": {"type": "str", "choices": ["dscp", "pcp"]},
            "pfc": {"type": "list", "elements": "int"},
            "dscp_priorities": {"type": "dict", "default": {}},
            "ecn": {"type": "list", "elements": "int", "default": []},
            "cnp_dscp": {"type": "int"},
            "cnp_priority": {"type": "int"},
            "cma_tos": {"type": "int"},
            "traffic_class": {"type": "int"},
        },
        supports_check_mode=True,
    )
    show_life(RootedFs(module.params["root"]))
    try:
        done, outcomes = act(module.params, module.check_mode)
    except (ValueError, OSError, CorruptStateError) as error:
        module.fail_json(msg=str(error))
    changes = [entry for entry in done if entry.changed]
    files = [outcome for outcome in outcomes if outcome.changed]
    module.exit_json(
        changed=bool(changes or files),
        settings=[entry.as_dict() for entry in done],
        outcomes=[outcome.as_dict() for outcome in outcomes],
        diff=[
            {
                "before_header": "RoCE interfaces",
                "after_header": "RoCE interfaces",
                "before": "".join(f"{c.interface} {c.setting}: {c.before}\n" for c in changes),
                "after": "".join(f"{c.interface} {c.setting}: {c.after}\n" for c in changes),
            },
            *({"before": o.before, "after": o.after, "before_header": o.path, "after_header": o.path} for o in files),
        ],
    )


if __name__ == "__main__":
    main()
