# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a line of a log says failed: by name, with the numbers in it. PRIVATE to the collection.

Wording: every WARN of NCCL's src/ from 2.2 to 2.31, the messages of its network plug-ins, and those of CUDA and PyTorch around them.
A name says what failed, not why: causes are judged elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
import typing as t

# In this order: what a line names first counts. An INFO line never names a failure (NCCL retries, and says so at INFO).
_NAMED: tuple[tuple[str, str], ...] = (
    ("ib_completion", r"Got completion (?:from peer \S+ )?with (?:error|status)|Got CQE with error"),
    ("duplicate_gpu", r"Duplicate GPU detected|Multiple Ranks are using the same GPU"),
    (
        "version_mismatch",
        r"Mismatched NCCL version detected|NCCL version mismatch with remote peer|library is (?:too old|not backwards compatible)",
    ),
    (
        "shm",
        r"shared memory segment|failed to extend /?\S*shm|/dev/shm/nccl\S* (?:failed|to \d+ bytes)|Unable to allocate shared memory|"
        r"Call to (?:posix_fallocate|shm_open|ftruncate|fallocate|mmap)\b.{0,60}failed|(?:shm_open|ftruncate) failed|failure in mmap|"
        r"Could not map \S*shm\S*|failed to create shared memory",
    ),
    (
        "bootstrap",
        r"no socket interface found|NET/Socket : no interface|No usable listening interface|No interface found in the same subnet|"
        r"No IP interface found|no device found (?:matching|after excluding)|NCCL_COMM_ID|Bootstrap Root : |"
        r"Call to (?:connect|bind|listen|accept|getsockname|socket|poll|getaddrinfo|setsockopt|getsockopt)\b.{0,200}(?:failed|timeout)|"
        r"[Cc]onnect(?:ing)? to \S{1,200} (?:failed|returned)|connect returned .{1,80}exceeded|exceeded (?:error )?retr(?:y|ies)|"
        r"connecting to address .{0,80}with family|socketPollConnect|socketStartConnect|[Ss]ocket creation failed|Accept failed|"
        r"error encountered when getting address info|wrong (?:magic|type) [0-9a-f]+ !=|exceeded timeouts",
    ),
    ("message_truncated", r"[Mm]essage truncated ?:"),
    ("collective_mismatch", r"collective mismatch error|posted incorrect receive info|Mismatched collective detected"),
    ("link_layer_mismatch", r"incompatible devices|incompatible with the local|different link_layer|mismatched physical devices"),
    (
        "net_plugin",
        r"\bnetwork .{0,80}not found|Failed to initialize any NET plugin|NET/OFI .{0,300}(?:failed|error|[Cc]ouldn't|Unable)",
    ),
    ("libibverbs", r"Failed to open libibverbs"),
    ("ib_device", r"NET/IB : Unable to (?:open|query)"),
    ("imex", r"MNNVL .{0,40}is (?:available but not|not supported)"),
    ("nvls", r"NVLink SHARP \(NVLS\)|NVLS Multicast"),
    ("sharp", r"sharp_\w+ (?:\w+ )?failed|SHARP coll init error|\(port is used by SM\)"),
    ("no_algorithm", r"[Nn]o algorithm/protocol|Unrecognized (?:element|prefix) token|no symmetric kernel available"),
    ("ib_async", r"[Gg]ot async (?:error )?event|async fatal event"),
    ("nvlink", r"P2P is disabled between NVLINK connected"),
    (
        "topology",
        r"Could not find (?:real path|NIC|net|any local path|a path|gpu)|XML (?:Parse|Mismatch|Topology|Graph)|Could not open XML|"
        r"NUMA domains is not supported|TOPO/NET : (?:Can't|Could|Only|Tried)",
    ),
    ("gdrcopy", r"\bgdr_\w+\(.{0,200}failed|GDRCOPY failure"),
    ("nvml", r"nvml\w+\(.{0,80}\) failed|Failed to open libnvidia-ml|[Dd]river/library version mismatch"),
    ("cuda", r"[Cc]uda failure|CUDA failure|CUDA error|cudaError\w*|failed to peer with device|CUDA [Dd]river version"),
    ("timeout", r"Watchdog caught collective operation timeout|Test timeout \("),
    ("rendezvous", r"client socket has timed out|server socket has failed to listen|TCPStore|RendezvousConnectionError"),
)  # fmt: skip
# What is seen on the others once one rank has gone: named only where nothing else was.
_CONSEQUENCE = re.compile(
    r"[Cc]onnection closed by (?:remote peer|localRank)|Call to (?:recv|send)\b.{0,200}failed|socketProgress|"
    r"Socket recv failed|Broken pipe|Connection reset by peer|Proxy Call to rank"
)
_VERB = re.compile(r"\b((?:ibv|mlx5dv)_\w+?)(?:_iova2)?(?:\([^)\n]{0,200}\))? ?:? ?(?:failed|returned)")
_PATTERN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _NAMED))
_STATUS = re.compile(r"with (?:error|status)[ =](?:(\w+)\()?(\d{1,4})")
_VENDOR = re.compile(r"vendor[ _]err[ =](\d{1,10})")
_DIRECTION = re.compile(r"\((Send|Recv|GIN \w+|Flush|Unused)\)|req_type=(\w+)")
_PEER = re.compile(r"(?:from peer|by remote peer|[Cc]onnect(?:ing)? to|recv from) (\S+?)(?:<\d+>)?(?=[\s,]|$)")
_HCA = re.compile(r"\bhca (\S+)|\bon dev ([^\s:]+):\d+")
_LOCAL_GID = re.compile(r"local ?G(?:id|ID) (?!index)(\S+?),?(?=\s|$|remote)")
_REMOTE_GID = re.compile(r"remote ?G(?:ids?|ID) ?([0-9a-fA-F:.]+)")

WR_FLUSH_ERR = 5  # what every request still in flight ends with once a queue pair has failed for another reason


def _error_texts() -> re.Pattern[str]:
    texts = {os.strerror(code) for code in errno.errorcode if code}
    longest_first = sorted((text for text in texts if not text.startswith("Unknown error")), key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, longest_first), r"Unknown error -?\d{1,6}"]))


_ERROR_TEXT = _error_texts()


class Failure(t.NamedTuple):
    """name: what failed; consequence: whether it usually follows another rank's failure, or is harmless unless nothing else failed;
    details: the rest as far as the line says it.
    """

    name: str
    consequence: bool
    details: dict[str, t.Any]


def _details(name: str, message: str) -> dict[str, t.Any]:
    details: dict[str, t.Any] = {}
    if name == "ib_completion":
        status = _STATUS.search(message)
        if status:
            details["status"] = int(status.group(2))
            if status.group(1):
                details["status_name"] = status.group(1)
        vendor = _VENDOR.search(message)
        if vendor:
            details["vendor_err"] = int(vendor.group(1))
        direction = _DIRECTION.search(message)
        if direction:
            details["direction"] = direction.group(1) or direction.group(2)
    for key, pattern in (("peer", _PEER), ("hca", _HCA), ("local_gid", _LOCAL_GID), ("remote_gid", _REMOTE_GID)):
        match = pattern.search(message)
        if match:
            details[key] = next(group for group in match.groups() if group)
    words = _ERROR_TEXT.search(message)
    if words:
        details["errno_text"] = words.group(0)
    return details


def failure_of(message: str) -> Failure | None:
    """What the message says failed; None where it names nothing. Lines of level INFO are not to be asked about."""
    message = message[:4000]
    verb = _VERB.search(message)
    if verb:
        return Failure(verb.group(1), False, _details(verb.group(1), message))
    match = _PATTERN.search(message)
    if match and not _retried(message):
        name = str(match.lastgroup)
        details = _details(name, message)
        flushed = name == "ib_completion" and details.get("status") == WR_FLUSH_ERR
        follows = name == "bootstrap" and _CONSEQUENCE.search(message) is not None
        return Failure(name, flushed or follows or name == "libibverbs", details)
    if _CONSEQUENCE.search(message):
        return Failure("bootstrap", True, _details("bootstrap", message))
    return None


def _retried(message: str) -> bool:
    return "retrying" in message and "exceeded" not in message
