"""Whether the connection to a peer still passes bytes while the peer's heartbeats come (pure): findings to verdict.

A connection can be cut without an end: a firewall drops its packets, a NAT forgets it, a proxy hangs. Then sends still
return and receives wait for ever, and heartbeats do not notice it, because they take another path. Two findings do:

- unanswered: the kernel repeats data or probes, and nothing confirms them;
- held: the peer has passed more bytes to its kernel than came here, and nothing comes although this member reads.

A peer that does not read, or is stopped, is neither: its kernel still answers, and its helper says what it has sent.
``TCP_USER_TIMEOUT`` is no substitute: Linux ends with it a connection whose peer does not read.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

CHECK = (
    "check firewalls, entries of NAT that expire, proxies and load balancers between the hosts, "
    "which have to pass TCP as well as UDP"
)
"""What to do about a connection that is cut."""
Verdict = Literal["", "unanswered", "held"]
INFO_SIZE = 60
_INFO = struct.Struct("=8B13I")  # the begin of struct tcp_info in linux/tcp.h, the same since Linux 2.6
_MIN_TRIES = 3
"""Repetitions without an answer: fewer may be lost by chance, or be all that a slow network had time for."""
_MIN_LIMIT_S = 2.75
_LIMIT = 2.25
_MAX_PAUSE_S = (1 << 15) - 1
_LOOK_S = 0.5


class TcpInfo(NamedTuple):
    """What the kernel says about a connection; times are seconds since then."""

    retransmits: int
    """Repetitions of data that nothing has confirmed."""
    probes: int
    """Probes of a window that is closed, or of an idle connection, since the last answer."""
    last_data: float
    last_ack: float


class Found(NamedTuple):
    """What a look at a connection finds."""

    at: float
    """Time of the look, in seconds."""
    info: TcpInfo
    reading: bool
    """Whether this member reads all that comes, and has read all that came."""
    received: int
    """Bytes that came."""
    passed: int
    """Bytes that the peer has passed to its kernel, as its heartbeats say."""


class Seen(NamedTuple):
    """What earlier looks at a connection found."""

    at: float
    answered: float
    """Time of the last look that found no repetition of data."""
    received: int = 0
    starved: float = 0.0
    """Seconds for which bytes were missing, as far as somebody looked."""


def unpack_info(data: bytes) -> TcpInfo:
    """Decode the first `INFO_SIZE` bytes of ``TCP_INFO``."""
    fields = _INFO.unpack_from(data)
    retransmits, probes, last_data, last_ack = (fields[place] for place in (2, 3, 19, 20))
    return TcpInfo(retransmits, probes, last_data / 1000, last_ack / 1000)


def look_s(heartbeat: float) -> float:
    """Return the seconds between two looks."""
    return min(_LOOK_S, heartbeat / 6)


def limit_s(heartbeat: float) -> float:
    """Return the seconds without an answer after which a connection is cut.

    A network may fail for almost a heartbeat, which is no fault. Repetitions come after pauses that double, so that the
    next one comes after another heartbeat at the latest, and the time that the first one waited.
    """
    return max(_LIMIT * heartbeat, _MIN_LIMIT_S)


def pause_s(heartbeat: float) -> int:
    """Return the whole seconds after which an idle connection is probed, and the longest between two repetitions."""
    return max(1, min(int(heartbeat / 3), _MAX_PAUSE_S))


def judge(seen: Seen, found: Found, heartbeat: float) -> tuple[Seen, Verdict]:
    """Judge a connection by one more look."""
    info = found.info
    silent = min(info.last_ack, info.last_data)
    probed = silent if info.probes >= _MIN_TRIES else 0.0
    answered = seen.answered if info.retransmits else found.at
    owed = min(silent, found.at - answered) if info.retransmits >= _MIN_TRIES else 0.0
    starving = found.reading and found.received == seen.received < found.passed
    # Where nobody looked for longer, this process was stopped or starved itself: that time does not count.
    starved = seen.starved + min(found.at - seen.at, look_s(heartbeat)) if starving else 0.0
    verdict: Verdict = ""
    if max(probed, owed) >= limit_s(heartbeat):
        verdict = "unanswered"
    elif min(starved, info.last_data) >= limit_s(heartbeat):
        verdict = "held"
    return Seen(found.at, answered, found.received, starved), verdict


def describe(verdict: Verdict, peer: int, ends: str, heartbeat: float) -> str:
    """Return the words of a verdict; `ends` says between which addresses the connection is."""
    seconds = f"{limit_s(heartbeat):g} s"
    if verdict == "held":
        return f"bytes that rank {peer} sent have not come for {seconds} over TCP{ends}: {CHECK}"
    return f"rank {peer} has not answered for {seconds} over TCP{ends}: {CHECK}"
