# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an NCCL_DEBUG log says of transport, settings and failure. PRIVATE to the collection.

It reports what stands in the log; what that means, and whether it is a fault, is judged on the controller.
"""

from __future__ import annotations

import collections
import itertools
import re
import typing as t

from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log_failures import failure_of
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log_lines import (
    Line,
    channels_in,
    facts_in,
    line_around,
    read_line,
)
from ansible_collections.gpufabric.cluster.plugins.module_utils._nccl_log_stream import LogBlocks, Source
from ansible_collections.gpufabric.cluster.plugins.module_utils._withheld import SECRET, WITHHELD

# Up to here every line is read; behind it only those that the fast way picks. A communicator's birth fits in this.
READ_WHOLE = 1 << 20

# What is kept is bounded, so that memory does not grow with the log.
MOST_FAILURES = 200
MOST_NOTABLE = 500
MOST_PAIRS = 20_000
MOST_NAMES = 20_000
LIKE_LINES = (
    50  # of one host's lines that differ only in their numbers, this many are read in a large log; the rest are counted
)
MOST_LIKENESSES = 100_000
LONGEST_TEXT = 600

_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")
# Looked for one after the other in the lowered line: many times faster than an alternation of as many words.
_SUSPICIOUS = (
    "error", "fail", "fatal", "timeout", "timed out", "killed", "abort", "denied", "refused", "unreachable", "no such", "not found",
    "no space", "warn", "cannot", "unable", "xid", "mismatch", "cancelled", "invalid", "illegal", "uncorrectable", "segmentation",
    "bus error", "not supported", "closed by", "reset by", "insufficient", "no device found", "could not", "couldn't",
    "does not exist", "not permitted", "disabled", "not enough", "attn", "got completion", "duplicate", "multiple ranks", "exceeded",
    "truncated", "no socket", "no interface", "no usable", "no algorithm", "unrecognized", "async", "with family", "wrong ",
    "ibv_", "incompatible", "mnnvl", "returned", "broken pipe", "cq_event", "not working", "no ip interface", "different link",
)  # fmt: skip

# Said at every start by a healthy NCCL: a plug-in is an option, and names of settings and communicators sound worse than they are.
_BENIGN = re.compile(
    r"\w+/Plugin ?: (?:Could not find|No plugin found|Failed to find|Plugin load|dlerror)|NCCL_\w+ set |"
    r"comm 0x|nccl\w+ comm 0x|.{0,20}(?:MNNVL|NVLS) (?:busId|multicast)"
)

_NETWORK = re.compile(r"Using network (\S.*?)\s*$")
_OLD_NETWORK = re.compile(r"Using (?:external|internal) Network (\S.*?)\s*$")
_CHANNEL = re.compile(
    r"(\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? via "
    r"((?:NET/[^\n]*|P2P|SHM|COLLNET/[^\n]*|direct shared memory)[^\n]*)"
)
_NET = re.compile(r"NET/([^/]+?)/(\d+)(?:\(\d+\))?(.*)$")
_USING = re.compile(r"NET/(\S[^:]{0,40}?) ?: Using(?! interface)(.*)")
_HCA = re.compile(r"\[\d+\] ?([^\s:\[\]{}<>]+):(\d+)[:\d]*/(\w+)")
_HCA_TRACE = re.compile(r"NET/IB: \[\d+\] ([^\s:]+):uverbs\d+:(\d+)/(RoCE|IB)")
_INTERFACE = re.compile(
    r"(?:\[\d+\]|OOB |Bootstrap ?: Using |Using interface )([A-Za-z][\w.\-@]{0,30}):(?=[\[\]0-9a-fA-F:.]{2,45}(?:%\w{1,30})?<)"
)
_VERSION = re.compile(r"\b(?:R|N)CCL version\s?:?\s*(\d{1,4}\.\d[\w.+\-]*(?::[0-9a-f]{7,40}\b)?)")
_DRIVER = re.compile(r"cudaDriverVersion (\d+)")
_ENV = re.compile(r"\b(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.*?)\s*$")
_ENV_TYPED = re.compile(r"\b(NCCL_[A-Z0-9_]+)=([^\s'\";\\]+)")
_PLUGIN_PATH = re.compile(r"Plugin Path ?: (\S+)")
_PLUGIN_LOADED = re.compile(
    r"Successfully loaded external (?:network |net )?plugin (\S+)|NET/Plugin: Plugin name set by env to (\S+)"
)
_PLUGIN_NAME = re.compile(r"NET/Plugin: (?:Loaded|Using) (?:net plugin )?(.+?)(?: \(v(\d+)\))?$")
_PLUGIN_VERSION = re.compile(r"NET/OFI Initializing (aws-ofi-nccl \S+)|(?:Using|Initializing) (aws-ofi-nccl \S+)")
_INIT = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) n[rR]anks (\d+)(?: cudaDev (-?\d+))?(?: nvmlDev -?\d+)?(?: busId ([0-9a-f]+))?"
    r"(?: commId (0x[0-9a-f]+))?(.*?)(?:- ?(Init|Destroy|Abort) (START|COMPLETE))?$"
)
_OF_COMMUNICATOR = re.compile(r" comm 0x[0-9a-f]+ n[rR]anks \d+\s*$")  # RCCL says it behind each channel
_LAYOUT = re.compile(
    r"comm 0x[0-9a-f]+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank \d+ MNNVL (\d+)"
)
_CHANNELS = re.compile(
    r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels, (\d+) p2p channels per peer"
)
_GDR_STATE = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for")
_ALGORITHM = re.compile(r"(?:(\w+)(?: \[Symmetric\])?: )?(\d+) Bytes -> (?:Algo (\S+) proto (\S+)|Kernel (\S+))")

_CUDA = re.compile(r"\+cuda(\d+(?:\.\d+)*)")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _first(found: re.Match[str] | None) -> str | None:
    return next((group for group in found.groups() if group), None) if found else None


class _Communicator:
    """The ranks of one communicator: who began to join, who got in."""

    def __init__(self, nranks: int) -> None:
        self.nranks = nranks
        self.started: set[int] = set()
        self.complete: set[int] = set()

    def as_dict(self, identity: str) -> dict[str, t.Any]:
        seen = self.started | self.complete
        waiting = sorted(self.started - self.complete)
        return {
            "id": identity,
            "nranks": self.nranks,
            "ranks_seen": len(seen),
            "complete": len(self.complete),
            "not_complete": waiting[:100],
            "never_seen": [rank for rank in range(self.nranks) if rank not in seen][:100] if len(seen) > 1 else [],
        }


class NcclLog:
    """Reads a log line by line or block by block and keeps what it says, in memory that does not grow with the log."""

    def __init__(self) -> None:
        self.lines = 0
        self.not_read = 0
        self._alike: dict[int, int] = {}
        self.networks: collections.Counter[tuple[str | None, str]] = collections.Counter()
        self.networks_used: list[str] = []
        self.networks_via: list[str] = []
        self.networks_listed: list[str] = []
        self.transports: collections.Counter[str] = collections.Counter()
        self.pairs: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.all_pairs = True
        self.net_channels: collections.Counter[tuple[str, str, bool]] = collections.Counter()
        self.hca_rails: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.gdr_states: collections.Counter[str] = collections.Counter()
        self.hcas: dict[str, None] = {}
        self.host_hcas: dict[str, dict[str, str]] = {}
        self.interfaces: dict[str, dict[str, None]] = {}
        self.versions: collections.Counter[str] = collections.Counter()
        self.version_by_host: dict[str, str] = {}
        self.drivers: collections.Counter[int] = collections.Counter()
        self.environment: dict[str, collections.Counter[str]] = {}
        self.typed: dict[str, str] = {}
        self.plugin_path: str | None = None
        self.plugin_file: str | None = None
        self.plugin_name: str | None = None
        self.plugin_version: str | None = None
        self.hosts: dict[str, None] = {}
        self.ranks: dict[tuple[str | None, int | None, int | None], tuple[int, int]] = {}
        self.communicators: dict[str, _Communicator] = {}
        self.layout: dict[str, int] = {}
        self.channels: dict[str, int] = {}
        self.algorithms: collections.Counter[str] = collections.Counter()
        self.failures: list[dict[str, t.Any]] = []
        self.failure_count = 0
        self.first_cause: dict[str, t.Any] | None = None
        self.earliest: dict[str, t.Any] | None = None
        self.all_causes_timed = True
        self.notable: dict[str, dict[str, t.Any]] = {}
        self._broken_off: tuple[Line, int, dict[str, t.Any]] | None = None

    # -- reading -----------------------------------------------------------------------------------------------------

    def feed(self, block: bytes, whole: bool) -> None:
        """Read a block of lines: every one of them, or those that the fast way picks."""
        if whole:
            for raw in block.split(b"\n"):
                self.lines += 1
                if raw.strip():
                    self._line(read_line(raw), self.lines)
            self.lines -= block.endswith(b"\n")
            return
        counted, at = self.lines, 0
        last = -1
        for position in sorted(facts_in(block)):
            if position < last:
                continue
            start, last = line_around(block, position)
            counted += block.count(b"\n", at, start)
            at = start
            raw = block[start:last]
            if b" via " in raw and b" -> " in raw:
                continue  # counted below
            if self._seen_enough(raw):
                continue
            self._line(read_line(raw), counted + 1)
        self._channels(channels_in(block))
        self.lines += block.count(b"\n") + (not block.endswith(b"\n"))

    def _seen_enough(self, raw: bytes) -> bool:
        """Whether a line only repeats what its host has said many times: a flood of one warning must not slow the reading down."""
        host, _unused, message = raw.partition(b":")
        likeness = hash((host, message.translate(None, b"0123456789")))
        count = self._alike.get(likeness, 0)
        if count or len(self._alike) < MOST_LIKENESSES:
            self._alike[likeness] = count + 1
        self.not_read += count >= LIKE_LINES
        return count >= LIKE_LINES

    def _unglued(self, line: Line) -> Line:
        """The line with the host's own name, where a value of nccl-tests' half-printed row was glued before it ("-1node7")."""
        host = line.host
        if host is None or host in self.hosts or not (host[0].isdigit() or host[0] == "-"):
            return line
        for known in itertools.islice(self.hosts, 1000):
            if host.endswith(known) and host[: -len(known)].lstrip("-").isdigit():
                return line._replace(host=known)
        return line

    def _line(self, line: Line, number: int) -> None:
        line = self._unglued(line)
        message = line.message
        if line.host is not None and len(self.hosts) < MOST_NAMES:
            self.hosts.setdefault(line.host)
        if line.level in ("TRACE", "CALL"):
            return
        if "via " in message and "->" in message:
            match = _CHANNEL.search(message)
            if match:
                source, destination, direction, how = (group or "" for group in match.groups())
                kind = self._channel(line.host, direction, how.strip(), 1)
                self._pair(source, destination, kind, 1)
                return
        self._facts(line)
        if self._broken_off and line.level is None:
            self._go_on(line, number)
        lowered = line.text.lower()
        if line.level == "INFO" and _BENIGN.match(message):
            return
        if line.level in ("WARN", "ATTN", "ERROR") or any(word in lowered for word in _SUSPICIOUS):
            if line.level not in ("INFO", "VERSION"):
                self._fail(line, number)
            self._note(line, number)

    # -- facts -------------------------------------------------------------------------------------------------------

    def _facts(self, line: Line) -> None:
        message, text = line.message, line.text
        if "version" in message:
            self._version(line)
        if "cudaDriverVersion" in message:
            match = _DRIVER.search(message)
            if match:
                self.drivers[int(match.group(1))] += 1
        if "NCCL_" in text:
            self._environment(text)
        if "comm 0x" in message:
            self._communicator(line)
        if "Using" in message or "NET/" in message or "lugin" in message or "Bootstrap" in message:
            self._network(line)
        elif line.level is None and "/IB" in message or "/RoCE" in message:
            self._hcas(line)  # a terminal has wrapped the long list of HCAs
        if "GPU Direct RDMA" in message:
            match = _GDR_STATE.search(message)
            if match:
                self.gdr_states[match.group(1)] += 1
        if "coll channels" in message:
            match = _CHANNELS.search(message)
            if match:
                names = ("coll", "collnet", "nvls", "p2p", "p2p_per_peer")
                found = {name: int(value) for name, value in zip(names, match.groups()) if value is not None}
                self.channels = {
                    name: max(found.get(name, 0), self.channels.get(name, 0)) for name in {**found, **self.channels}
                }
        if "Bytes ->" in message:
            match = _ALGORITHM.search(message)
            if match and len(self.algorithms) < MOST_NAMES:
                collective, _bytes, algorithm, protocol, kernel = match.groups()
                how = f"{algorithm}/{protocol}" if algorithm else str(kernel)
                self.algorithms[f"{collective or 'unnamed'} {how}"] += 1

    def _version(self, line: Line) -> None:
        if len(self.versions) >= MOST_NAMES:
            return
        match = _VERSION.search(line.text)
        if match:
            version = match.group(1).rstrip(".,")
            self.versions[version] += 1
            if line.host:
                self.version_by_host[line.host] = version

    def _environment(self, text: str) -> None:
        match = _ENV.search(text)
        if match:
            name, value = match.groups()
            value = value[:-1] if value.endswith(".") and value[:-1].lstrip("-").isdigit() else value
            if len(self.environment) < MOST_NAMES:
                values = self.environment.setdefault(name, collections.Counter())
                if value in values or len(values) < 100:
                    values[WITHHELD if SECRET.search(name) else value] += 1
            return
        for name, value in _ENV_TYPED.findall(text[:LONGEST_TEXT]):
            if len(self.typed) < 1000 and not SECRET.search(name):
                self.typed.setdefault(name, value)

    def _communicator(self, line: Line) -> None:
        layout = _LAYOUT.search(line.message)
        if layout:
            rank, nranks, nodes, local, mnnvl = map(int, layout.groups())
            self._rank(line, rank, nranks)
            if nranks >= self.layout.get("nranks", 0):
                self.layout = {"nranks": nranks, "nnodes": nodes, "local_ranks": local, "mnnvl": mnnvl}
            return
        match = _INIT.search(line.message)
        if not match:
            return
        comm, rank_text, nranks_text, _device, _bus, identity, _rest, what, when = match.groups()
        rank, nranks = int(rank_text), int(nranks_text)
        self._rank(line, rank, nranks)
        if what not in (None, "Init"):
            return
        # Before 2.18 no line says which communicator it is: then all of one size are taken for one.
        identity = identity or f"of {nranks} ranks"
        if identity not in self.communicators and len(self.communicators) < 1000:
            self.communicators[identity] = _Communicator(nranks)
        communicator = self.communicators.get(identity)
        if communicator and len(communicator.started) < MOST_NAMES:
            (communicator.complete if when == "COMPLETE" else communicator.started).add(rank)

    def _rank(self, line: Line, rank: int, nranks: int) -> None:
        """A process is known by its rank in the largest communicator that it is in."""
        for key in ((line.host, line.pid, line.device), (line.host, line.pid, None)):
            known = self.ranks.get(key)
            if (known is None and len(self.ranks) < MOST_NAMES) or (known is not None and nranks > known[1]):
                self.ranks[key] = (rank, nranks)

    def _network(self, line: Line) -> None:
        message = line.message
        match = _NETWORK.search(message) or _OLD_NETWORK.search(message)
        if match:
            name = match.group(1)[:100]
            if name not in self.networks_used and len(self.networks_used) < 100:
                self.networks_used.append(name)
            self.networks[(line.host, name)] += 1
        match = _USING.search(message)
        if match:
            name, listed = match.groups()
            if "[0]" in listed and name not in self.networks_listed and len(self.networks_listed) < 100:
                self.networks_listed.append(name.strip())
        self._hcas(line)
        for interface in _INTERFACE.findall(message):
            if len(self.interfaces) < MOST_NAMES:
                self.interfaces.setdefault(line.host or "", {}).setdefault(interface)
        self._plugin(message)

    def _hcas(self, line: Line) -> None:
        for hca, port, link in _HCA.findall(line.message) or _HCA_TRACE.findall(line.message):
            if len(self.hcas) < MOST_NAMES:
                self.hcas.setdefault(hca)
                self.host_hcas.setdefault(line.host or "", {})[f"{hca}:{port}"] = link

    def _plugin(self, message: str) -> None:
        self.plugin_path = self.plugin_path or _first(_PLUGIN_PATH.search(message))
        self.plugin_file = self.plugin_file or _first(_PLUGIN_LOADED.search(message))
        self.plugin_name = self.plugin_name or _first(_PLUGIN_NAME.search(message))
        self.plugin_version = self.plugin_version or _first(_PLUGIN_VERSION.search(message))

    def _channels(self, found: list[tuple[bytes, bytes, bytes, bytes, bytes]]) -> None:
        """Count the channels of a block: by host and kind, and by pair of ranks until there are too many pairs to keep."""
        kinds: dict[bytes, str] = {}
        for (host, direction, how), count in collections.Counter((each[0], each[3], each[4]) for each in found).items():
            kinds[how] = self._channel(_text(host), _text(direction), _text(how).strip(), count)
        if len(self.pairs) < MOST_PAIRS:
            for (source, destination, how), count in collections.Counter(
                (each[1], each[2], each[4]) for each in found
            ).items():
                self._pair(_text(source), _text(destination), kinds[how], count)
        else:
            self.all_pairs = self.all_pairs and not found

    def _pair(self, source: str, destination: str, kind: str, count: int) -> None:
        pair = (source, destination, kind)
        if pair in self.pairs or len(self.pairs) < MOST_PAIRS:
            self.pairs[pair] += count
        else:
            self.all_pairs = False

    def _channel(self, host: str | None, direction: str, how: str, count: int) -> str:
        """Count a channel; the answer is its kind, such as P2P/CUMEM, SHM or NET/IB/GDRDMA."""
        if host is not None and len(self.hosts) < MOST_NAMES:
            self.hosts.setdefault(host)
        how = _OF_COMMUNICATOR.sub("", how)
        match = _NET.search(how)
        if match and "COLLNET" not in how:
            net, device, rest = match.groups()
            gdr = "GDRDMA" in rest
            kind = f"NET/{net}" + ("/GDRDMA" if gdr else "")
            if net not in self.networks_via and len(self.networks_via) < 100:
                self.networks_via.append(net)
            self.net_channels[(host or "", direction or "send", gdr)] += count
            if len(self.hca_rails) < MOST_NAMES:
                self.hca_rails[(host or "", net, device)] += count
        elif "shared memory" in how or how.startswith("SHM"):
            kind = "SHM"
        elif how.startswith("P2P/indirect"):
            kind = "P2P/indirect"
        else:
            kind = re.sub(r"/read$|/Shared$", "", how)[:60]
        if kind in self.transports or len(self.transports) < 200:
            self.transports[kind] += count
        return kind

    # -- failures ----------------------------------------------------------------------------------------------------

    def rank_of(self, line: Line) -> int | None:
        for key in ((line.host, line.pid, line.device), (line.host, line.pid, None)):
            if key in self.ranks:
                return self.ranks[key][0]
        return None

    def _fail(self, line: Line, number: int) -> None:
        failure = failure_of(line.message)
        if failure is None:
            return
        self.failure_count += 1
        entry = {
            "name": failure.name,
            "consequence": failure.consequence,
            "host": line.host,
            "pid": line.pid,
            "rank": self.rank_of(line),
            "device": line.device,
            "time": line.time,
            "line": number,
            "text": line.message.strip()[:LONGEST_TEXT],
            **failure.details,
        }
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(entry)
        if failure.name == "ib_completion" and "vendor_err" not in entry:
            self._broken_off = (line, number, entry)
        earlier = self.earliest
        if failure.consequence or line.time is None:
            self.all_causes_timed = self.all_causes_timed and failure.consequence
        elif earlier is None or (line.time, number) < (earlier["time"], earlier["line"]):
            self.earliest = entry
        if not failure.consequence and self.first_cause is None:
            self.first_cause = entry

    def _go_on(self, line: Line, number: int) -> None:
        """Take what a terminal or a mail broke off the line before: the end of a completion's numbers."""
        begun, at, entry = t.cast("tuple[Line, int, dict[str, t.Any]]", self._broken_off)
        self._broken_off = None
        whole = failure_of(f"{begun.message} {line.message}") if number == at + 1 else None
        if whole and "vendor_err" in whole.details:
            entry.update({key: value for key, value in whole.details.items() if key not in entry})

    def _note(self, line: Line, number: int) -> None:
        key = _DIGITS.sub("#", line.message[:LONGEST_TEXT])
        known = self.notable.get(key)
        if known:
            known["count"] += 1
            if line.host and line.host not in known["hosts"] and len(known["hosts"]) < 100:
                known["hosts"].append(line.host)
        elif len(self.notable) < MOST_NOTABLE:
            self.notable[key] = {
                "line": number,
                "text": line.message.strip()[:LONGEST_TEXT],
                "level": line.level,
                "hosts": [line.host] if line.host else [],
                "rank": self.rank_of(line),
                "count": 1,
            }

    def first_failure(self) -> dict[str, t.Any] | None:
        """The failure that the others follow from: no consequence if there is anything else, the earliest by time, then by line.

        Time stamps (NCCL 2.26 and later put them on WARN lines) come first because a log joined from one file a rank is not in order.
        """
        if self.earliest and self.all_causes_timed:
            return self.earliest
        first = self.first_cause or next(iter(self.failures), None)
        if first and first["name"] == "cuda":
            # NCCL reports the CUDA call by which it pins a shared segment, then the segment itself.
            later = self.failures[self.failures.index(first) + 1 :][:3] if first in self.failures else []
            return next((each for each in later if each["name"] == "shm" and each["pid"] == first["pid"]), first)
        return first

    # -- answer ------------------------------------------------------------------------------------------------------

    def _gdr(self) -> bool | str | None:
        having = sum(count for (_host, _direction, gdr), count in self.net_channels.items() if gdr)
        lacking = sum(self.net_channels.values()) - having
        if not having and not lacking:
            having, lacking = self.gdr_states["Enabled"], self.gdr_states["Disabled"]
        if having and lacking:
            return "asymmetric"
        if having or lacking:
            return having > 0
        return False if self.networks_used and set(self.networks_used) == {"Socket"} else None

    def _gdr_by_host(self) -> dict[str, dict[str, t.Any]]:
        hosts: dict[str, dict[str, t.Any]] = {}
        for (host, direction, gdr), count in self.net_channels.items():
            entry = hosts.setdefault(host, {}).setdefault(direction, {"with": 0, "without": 0})
            entry["with" if gdr else "without"] += count
        return hosts

    def _environment_in_force(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        in_force = {name: values.most_common(1)[0][0] for name, values in self.environment.items() if values}
        differing = {name: sorted(values) for name, values in self.environment.items() if len(values) > 1}
        return in_force, differing

    def _errno_text_of(self, first: t.Mapping[str, t.Any]) -> str | None:
        """What another line of the same process says of the same failure: several lines tell of one, and not all name the error."""
        return next(
            (
                each["errno_text"]
                for each in self.failures
                if each.get("errno_text") and all(each[key] == first.get(key) for key in ("name", "host", "pid"))
            ),
            None,
        )

    def summary(self) -> dict[str, t.Any]:
        """The answer of parse_nccl_log(); see there for the keys."""
        first = self.first_failure() or {}
        # A failure of another kind may come first, as an HCA's event does: the completion that follows still says how it failed.
        completion = first if "status" in first else next((each for each in self.failures if "status" in each), first)
        in_force, differing = self._environment_in_force()
        # The library's own line names the CUDA that it was built for; an error message of PyTorch has the bare number.
        version = next((each for each in self.versions if "+" in each), next(iter(self.versions), None))
        cuda = _CUDA.search(version or "")
        interface = in_force.get("NCCL_SOCKET_IFNAME", self.typed.get("NCCL_SOCKET_IFNAME"))
        # Every network that is found lists its devices, and old versions list the sockets first: they also start the others up.
        listed = sorted(self.networks_listed, key="Socket".__eq__)
        transport = next(iter([*self.networks_used, *self.networks_via, *listed]), None)
        return {
            "transport": transport,
            "gdr": self._gdr(),
            "nccl_version": version,
            "failure": first.get("name"),
            "status": completion.get("status"),
            "vendor_err": completion.get("vendor_err"),
            "direction": completion.get("direction"),
            "interface": interface,
            "errno_text": first.get("errno_text") or self._errno_text_of(first),
            "plugin": self.plugin_path or self.plugin_file,
            "hcas": list(self.hcas),
            "versions": {
                "nccl": list(self.versions),
                "nccl_by_host": self.version_by_host if len(self.versions) > 1 else {},
                "cuda": cuda.group(1) if cuda else None,
                "cuda_driver": sorted(self.drivers),
                "net_plugin": self.plugin_version or self.plugin_name,
            },
            "networks": self._by_name(),
            "environment": in_force,
            "environment_differs": differing,
            "environment_typed": self.typed,
            "channels": self.channels,
            "algorithms": dict(self.algorithms.most_common(200)),
            "transports": dict(self.transports.most_common()),
            "transports_by_pair": [
                {"source": int(source), "destination": int(destination), "transport": kind, "channels": count}
                for (source, destination, kind), count in self.pairs.most_common(1000)
            ],
            "all_pairs": self.all_pairs,
            "gdr_by_host": self._gdr_by_host(),
            "hcas_by_host": self.host_hcas,
            "net_devices_used": [
                {"host": host, "network": net, "device": int(device), "channels": count}
                for (host, net, device), count in self.hca_rails.most_common(1000)
            ],
            "interfaces_by_host": {host: list(names) for host, names in self.interfaces.items()},
            "hosts": list(self.hosts),
            "layout": self.layout,
            "communicators": [each.as_dict(name) for name, each in self.communicators.items()],
            "first_failure": first or None,
            "failures": self.failures,
            "failure_count": self.failure_count,
            "notable": list(self.notable.values()),
            "lines": self.lines,
            "alike_lines_not_read": self.not_read,
        }

    def _by_name(self) -> dict[str, list[str]]:
        named: dict[str, list[str]] = {}
        for host, name in self.networks:
            named.setdefault(name, [])
            if host:
                named[name].append(host)
        return named


def parse_nccl_log_stream(source: Source) -> dict[str, t.Any]:
    """parse_nccl_log() over a log of any size: a binary file, or an iterable of lines or pieces (str or bytes).

    gzip, bzip2, xz and UTF-16 are recognised; a log cut off in mid-stream counts up to there (``read`` says so). Memory does not grow
    with the log. Up to READ_WHOLE bytes every line is read; behind it, lines with NCCL's prefix that carry facts, channels, and
    other programs' lines that name an error.
    """
    log = NcclLog()
    blocks = LogBlocks(source)
    fed = 0
    for block in blocks:
        if fed + len(block) <= READ_WHOLE:
            log.feed(block, whole=True)
        elif fed < READ_WHOLE:
            end = block.rfind(b"\n", 0, READ_WHOLE - fed) + 1
            log.feed(block[:end], whole=True)
            log.feed(block[end:], whole=False)
        else:
            log.feed(block, whole=False)
        fed += len(block)
    answer = log.summary()
    answer["read"] = {
        "bytes": blocks.bytes_read,
        "coding": blocks.coding,
        "compression": blocks.compression,
        "problem": blocks.problem,
    }
    return answer


def parse_nccl_log(text: str | bytes) -> dict[str, t.Any]:
    """What an NCCL_DEBUG log says, whole or cut off, of one rank or of many, of one job or of several mixed; no text raises.

    transport: the network as NCCL names it (IB, Socket, IBext_v8, AWS Libfabric ...); gdr: true, false, ``asymmetric`` where only some
    channels have GPUDirect RDMA, None where nothing says; nccl_version; interface: what NCCL_SOCKET_IFNAME was set to;
    plugin: its path; hcas: in the order of their first mention, without port and link type.
    failure: what failed first (ib_completion, bootstrap, ibv_modify_qp, ibv_reg_mr, duplicate_gpu, shm ...), with status, vendor_err,
    direction and errno_text of that line; first_failure: that line with its host, rank, pid, time and line number, chosen as the one
    that the others follow from; failures: the first 200, each marked ``consequence`` where it usually follows another rank's end.
    versions, networks (by host), environment (in force), environment_differs (between ranks), channels, algorithms, transports (how
    many channels of each kind), transports_by_pair (all_pairs: whether none is left out),
    gdr_by_host ({host: {send: {with, without}, receive}}), hcas_by_host,
    net_devices_used, interfaces_by_host, hosts, layout, communicators (who joined, who never did), notable (distinct suspicious
    lines with hosts and counts), lines, alike_lines_not_read, read.
    """
    return parse_nccl_log_stream(text)
