"""The helper process: sends heartbeats for its parent process, and reports peers whose heartbeats stop.

It runs this file alone, without importing any of ms_recover, so that it is small, starts quickly and never waits for
the interpreter lock of its parent. Its standard input is a socket to the parent, with one JSON object per packet:

- ``{"do": "watch", world, epoch, rank, key, interval, limit, peers: {rank: [host, port]}}`` with a UDP socket,
- ``{"do": "passed", world, epoch, bytes: {rank: number}}`` when more bytes were passed to the kernel for these peers,
- ``{"do": "forget", world, epoch, peer}`` when a peer left,
- ``{"do": "leave", world, epoch, cause, accused}`` when the world ended here;
- the helper answers ``{"lost": world, epoch, rank, cause, accused}`` and, periodically, ``{"alive": pid}`` and
  ``{"passed": world, epoch, bytes: {rank: number}}`` with what these peers say they passed to their kernels.

Datagrams: ``MSRB``, version, type (heartbeat, left or gone), cause, world, epoch, sender, accused, counter, bytes that
were passed to the kernel for this peer, and 16 bytes of HMAC.
Heartbeats stop while the parent is stopped or traced. When it dies, the helper reports that to the peers and ends.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any, NamedTuple

# The same as `wire.CAUSES`: this file imports nothing of ms_recover, to start quickly. A test compares the two.
CAUSES = ("eof", "reset", "heartbeat", "timeout", "protocol", "closed", "peer_reported", "cut")
VERSION = 2
HEARTBEAT, LEFT, GONE = 1, 2, 3
MAX_PACKET = 1 << 17
_DATAGRAM = struct.Struct("!4sBBB8sIIIQQ")
_MAC = 16
_FAREWELLS = 3
_ALIVE_S = 0.25


class Datagram(NamedTuple):
    """What one member lets another know."""

    kind: int
    cause: int
    world: bytes
    epoch: int
    sender: int
    accused: int = 0
    counter: int = 0
    """The time when it was sent, so that a replay is detected."""
    passed: int = 0
    """Bytes that the sender passed to its kernel for the receiver."""


def pack(key: bytes, datagram: Datagram) -> bytes:
    """Sign a datagram that is sent now."""
    data = _DATAGRAM.pack(b"MSRB", VERSION, *datagram._replace(counter=time.monotonic_ns()))
    return data + hmac.digest(key, data, "sha256")[:_MAC]


def unpack(data: bytes) -> Datagram | None:
    """Decode an unverified datagram; None if it is invalid."""
    if len(data) != _DATAGRAM.size + _MAC:
        return None
    magic, version, *fields = _DATAGRAM.unpack_from(data)
    datagram = Datagram(*fields)
    is_known = magic == b"MSRB" and version == VERSION and datagram.kind in (HEARTBEAT, LEFT, GONE)
    return datagram if is_known and datagram.cause < len(CAUSES) else None


def genuine(key: bytes, data: bytes) -> bool:
    """Whether a datagram was signed with this key."""
    return hmac.compare_digest(data[-_MAC:], hmac.digest(key, data[:-_MAC], "sha256")[:_MAC])


class Watched:
    """One world that the helper watches."""

    def __init__(self, order: dict[str, Any], sock: socket.socket, now: float) -> None:
        self.place = (bytes.fromhex(order["world"]), int(order["epoch"]))
        self.rank, self.key, self.sock = int(order["rank"]), bytes.fromhex(order["key"]), sock
        self.interval, self.limit = float(order["interval"]), float(order["limit"])
        self.peers = {int(rank): (str(host), int(port)) for rank, (host, port) in order["peers"].items()}
        self.last_received = dict.fromkeys(self.peers, now)
        self.counters = dict.fromkeys(self.peers, 0)
        self.passed: dict[int, int] = {}
        """Bytes that this member passed to its kernel for its peers."""
        self.heard: dict[int, int] = {}
        self.news: dict[int, int] = {}
        """Those that peers say they passed for this member: all, and those that it was not informed of."""
        self.next_heartbeat = now

    def send(self, kind: int, cause: int = 0, accused: int = 0, times: int = 1) -> None:
        """Send a datagram to every peer."""
        for _ in range(times):
            for peer, address in self.peers.items():
                datagram = Datagram(kind, cause, *self.place, self.rank, accused, passed=self.passed.get(peer, 0))
                with contextlib.suppress(OSError):
                    self.sock.sendto(pack(self.key, datagram), address)

    def forget(self, peer: int) -> None:
        """Stop watching a peer."""
        for table in (self.peers, self.last_received, self.counters, self.heard, self.news):
            table.pop(peer, None)

    def receive(self, data: bytes, now: float) -> tuple[int, int, int] | None:
        """Handle a datagram; return sender, cause and accused when it reports that the world is broken."""
        fields = unpack(data)
        if fields is None:
            return None
        kind, cause, world, epoch, sender, accused, counter, passed = fields
        known = (world, epoch) == self.place and sender in self.last_received and genuine(self.key, data)
        if not known or counter <= self.counters[sender]:
            return None
        self.counters[sender], self.last_received[sender] = counter, now
        if kind == HEARTBEAT and passed != self.heard.get(sender, 0):
            self.heard[sender] = self.news[sender] = passed
        if kind == LEFT:
            self.forget(sender)
        return (sender, cause, accused) if kind == GONE else None


class Helper:
    """The loop of the helper process, with a socket to its parent process."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._worlds: dict[tuple[bytes, int], Watched] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._last_check = self._next_alive = time.monotonic()
        self._next_heartbeat = self._next_silence = 0.0
        """The earliest moments at which a heartbeat is due, or a peer may have been silent for too long."""
        self._pidfd: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._pidfd = os.pidfd_open(parent)
            self._selector.register(self._pidfd, selectors.EVENT_READ)

    def run(self) -> None:
        """Send and receive heartbeats until the parent ends or closes its socket."""
        while self._serve() and os.getppid() == self._parent:
            self._check()
        if self._worlds and not _is_alive(self._parent, self._pidfd):
            for world in self._worlds.values():
                world.send(GONE, CAUSES.index("eof"), world.rank, times=_FAREWELLS)

    def _serve(self) -> bool:
        """Wait for the next event and handle it; return whether to continue."""
        for ready, _ in self._selector.select(self._wait()):
            if isinstance(ready.fileobj, int) or (ready.fileobj is self._control and not self._handle_order()):
                return False
            if isinstance(ready.data, Watched):
                self._read_datagrams(ready.data)
        return True

    def _wait(self) -> float:
        return max(0.0, min(self._next_alive, self._next_heartbeat, self._next_silence) - time.monotonic())

    def _check(self) -> None:
        now = time.monotonic()
        pause, self._last_check = now - self._last_check, now
        if pause > 2 * _ALIVE_S:  # the helper itself was stopped or starved: no peer is accused
            for world in self._worlds.values():
                for peer in world.last_received:
                    world.last_received[peer] += pause
        if now >= self._next_alive:
            self._next_alive = now + _ALIVE_S
            self._report({"alive": os.getpid()})
            self._report_passed()
        if now >= self._next_heartbeat:
            self._send_heartbeats(now)
        if now >= self._next_silence:
            self._find_silent(now)

    def _report_passed(self) -> None:
        for (identity, epoch), world in self._worlds.items():
            if world.news and self._report({"passed": identity.hex(), "epoch": epoch, "bytes": world.news}):
                world.news = {}

    def _send_heartbeats(self, now: float) -> None:
        """Send those that are due; worlds with the same interval are due at the same moments, in one wake-up."""
        due = [world for world in self._worlds.values() if now >= world.next_heartbeat]
        stopped = bool(due) and _is_stopped(self._parent)
        for world in due:
            world.next_heartbeat = (now // world.interval + 1) * world.interval
            if world.next_heartbeat - now < world.interval / 2:
                world.next_heartbeat += world.interval
            if not stopped:
                world.send(HEARTBEAT)
        self._next_heartbeat = min((world.next_heartbeat for world in self._worlds.values()), default=math.inf)

    def _find_silent(self, now: float) -> None:
        """Report peers that have been silent for too long; what comes meanwhile only puts the next such moment off."""
        self._next_silence = math.inf
        for world in self._worlds.values():
            for peer in [peer for peer, last in world.last_received.items() if now - last >= world.limit]:
                if self._report_lost(world, peer, "heartbeat", peer):
                    del world.last_received[peer]  # its address stays: it may still receive that the world broke
                else:
                    world.last_received[peer] = now - world.limit + _ALIVE_S
            self._next_silence = min([self._next_silence, *(at + world.limit for at in world.last_received.values())])

    def _read_datagrams(self, world: Watched) -> None:
        for _ in range(64):
            try:
                data = world.sock.recv(512)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # the host reports that a peer's port is closed: its silence will be noticed
            gone = world.receive(data, time.monotonic())
            if gone is not None:
                self._report_lost(world, gone[0], CAUSES[gone[1]], gone[2])

    def _report_lost(self, world: Watched, peer: int, cause: str, accused: int) -> bool:
        identity, epoch = world.place
        report = {"lost": identity.hex(), "epoch": epoch, "rank": peer, "cause": cause, "accused": accused}
        return self._report(report)

    def _report(self, report: dict[str, Any]) -> bool:
        try:
            self._control.send(json.dumps(report).encode(), socket.MSG_DONTWAIT)
        except OSError:  # the parent does not read, now or ever
            return False
        return True

    def _handle_order(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET, 1)
        except OSError:
            return False
        if not data:
            return False
        order = json.loads(data)
        place = (bytes.fromhex(order["world"]), int(order["epoch"]))
        if order["do"] == "watch":
            sock = socket.socket(fileno=descriptors[0])
            world = self._worlds[place] = Watched(order, sock, time.monotonic())
            self._next_heartbeat = world.next_heartbeat
            self._next_silence = min(self._next_silence, world.next_heartbeat + world.limit)
            self._selector.register(sock, selectors.EVENT_READ, world)
        elif place in self._worlds and order["do"] == "passed":
            self._worlds[place].passed = {int(rank): int(count) for rank, count in order["bytes"].items()}
        elif place in self._worlds and order["do"] == "forget":
            self._worlds[place].forget(int(order["peer"]))
        elif place in self._worlds:
            world = self._worlds.pop(place)
            cause = order["cause"]
            kind, code = (GONE, CAUSES.index(cause)) if cause else (LEFT, 0)
            world.send(kind, code, int(order["accused"]), times=_FAREWELLS)
            self._selector.unregister(world.sock)
            world.sock.close()
        return True


def _is_alive(process: int, descriptor: int | None) -> bool:
    """Whether the parent is alive, after its side of the socket was closed."""
    return os.getppid() == process and (descriptor is None or not select.select([descriptor], [], [], 0.2)[0])


def _is_stopped(process: int) -> bool:
    """Whether a process is stopped, stopped by a tracer, or a zombie."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"TtZX"
    except (OSError, IndexError):
        return False


def main() -> None:
    """Run the helper; the argument is the process id of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1])
    if os.getppid() == parent:
        Helper(socket.socket(fileno=0), parent).run()


if __name__ == "__main__":
    main()
