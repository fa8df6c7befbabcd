"""The helper process: tells the peers' helpers that this process lives, and hears whether theirs do.

It is started by its path with nothing of ms_recover imported, so that it is small, quick to start and never waits for
the interpreter lock of the process it speaks for. Its standard input is a socket to that process, one JSON object per
packet:

- ``{"do": "watch", world, epoch, rank, key, interval, limit, peers: {rank: [host, port]}}`` with a UDP socket,
- ``{"do": "forget", world, epoch, peer}`` when a peer left,
- ``{"do": "leave", world, epoch, cause, accused}`` when the world ended here;
- back come ``{"lost": world, epoch, rank, cause, accused}`` and, now and then, ``{"alive": pid}``.

Datagrams: ``MSRB``, version, type (beat, left, gone), cause, world, epoch, sender, accused, counter, 16 bytes of HMAC.
Beats stop while the process is stopped or traced; when it dies the helper says so and ends.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

CAUSES = ("eof", "reset", "heartbeat", "timeout", "protocol", "closed", "peer_reported")
VERSION = 1
BEAT, LEFT, GONE = 1, 2, 3
MAX_PACKET = 1 << 17
_DATAGRAM = struct.Struct("!4sBBB8sIIIQ")
_MAC = 16
_FAREWELLS = 3
_ALIVE_S = 0.25


def pack(key: bytes, kind: int, cause: int, place: tuple[bytes, int], sender: int, accused: int) -> bytes:
    """Make a datagram about a world and epoch; its counter is the time, so that none can be replayed."""
    data = _DATAGRAM.pack(b"MSRB", VERSION, kind, cause, *place, sender, accused, time.monotonic_ns())
    return data + hmac.digest(key, data, "sha256")[:_MAC]


def unpack(data: bytes) -> tuple[int, int, tuple[bytes, int], int, int, int] | None:
    """Read a datagram without believing it: type, cause, world and epoch, sender, accused, counter; None for noise."""
    if len(data) != _DATAGRAM.size + _MAC:
        return None
    magic, version, kind, cause, world, epoch, sender, accused, counter = _DATAGRAM.unpack_from(data)
    if magic != b"MSRB" or version != VERSION or kind not in (BEAT, LEFT, GONE) or cause >= len(CAUSES):
        return None
    return kind, cause, (world, epoch), sender, accused, counter


def genuine(key: bytes, data: bytes) -> bool:
    """Tell whether a datagram was made with this key."""
    return hmac.compare_digest(data[-_MAC:], hmac.digest(key, data[:-_MAC], "sha256")[:_MAC])


class Watched:
    """One world that the helper watches."""

    def __init__(self, order: dict[str, Any], sock: socket.socket, now: float) -> None:
        self.place = (bytes.fromhex(order["world"]), int(order["epoch"]))
        self.rank, self.key, self.sock = int(order["rank"]), bytes.fromhex(order["key"]), sock
        self.interval, self.limit = float(order["interval"]), float(order["limit"])
        self.peers = {int(rank): (str(host), int(port)) for rank, (host, port) in order["peers"].items()}
        self.heard = dict.fromkeys(self.peers, now)
        self.counters = dict.fromkeys(self.peers, 0)
        self.next_beat = now

    def say(self, kind: int, cause: int = 0, accused: int = 0, times: int = 1) -> None:
        """Send a datagram to every peer."""
        for _ in range(times):
            for address in self.peers.values():
                with contextlib.suppress(OSError):
                    self.sock.sendto(pack(self.key, kind, cause, self.place, self.rank, accused), address)

    def forget(self, peer: int) -> None:
        """Watch a peer no longer."""
        for table in (self.peers, self.heard, self.counters):
            table.pop(peer, None)

    def hear(self, data: bytes, now: float) -> tuple[int, int, int] | None:
        """Take in a datagram; return sender, cause and accused when it says that the world is broken."""
        read = unpack(data)
        if read is None or read[2] != self.place or read[3] not in self.heard or not genuine(self.key, data):
            return None
        kind, cause, _, sender, accused, counter = read
        if counter <= self.counters[sender]:
            return None
        self.counters[sender], self.heard[sender] = counter, now
        if kind == LEFT:
            self.forget(sender)
        return (sender, cause, accused) if kind == GONE else None


class Helper:
    """The loop of the helper process.

    Parameters
    ----------
    control : socket.socket
        To the process it speaks for.
    parent : int
        That process.
    """

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._worlds: dict[tuple[bytes, int], Watched] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._last_look = self._next_alive = time.monotonic()
        self._died: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._died = os.pidfd_open(parent)
            self._selector.register(self._died, selectors.EVENT_READ)

    def run(self) -> None:
        """Beat and listen until the process ends or closes its end."""
        while self._serve() and os.getppid() == self._parent:
            self._look()
        if self._worlds and not _is_alive(self._parent, self._died):
            for world in self._worlds.values():
                world.say(GONE, CAUSES.index("eof"), world.rank, times=_FAREWELLS)

    def _serve(self) -> bool:
        """Wait for what comes first and see to it; tell whether to go on."""
        for ready, _ in self._selector.select(self._wait()):
            if isinstance(ready.fileobj, int) or (ready.fileobj is self._control and not self._obey()):
                return False
            if isinstance(ready.data, Watched):
                self._listen(ready.data)
        return True

    def _wait(self) -> float:
        now = time.monotonic()
        moments = [now + _ALIVE_S]
        for world in self._worlds.values():
            moments.append(world.next_beat)
            moments += [heard + world.limit for heard in world.heard.values()]
        return max(0.0, min(moments) - now)

    def _look(self) -> None:
        now = time.monotonic()
        pause, self._last_look = now - self._last_look, now
        if pause > 2 * _ALIVE_S:  # the helper itself was stopped or starved: it cannot accuse anybody
            for world in self._worlds.values():
                world.heard = {peer: heard + pause for peer, heard in world.heard.items()}
        if now >= self._next_alive:
            self._next_alive = now + _ALIVE_S
            self._report({"alive": os.getpid()})
        beating = [world for world in self._worlds.values() if now >= world.next_beat]
        stopped = bool(beating) and _is_stopped(self._parent)
        for world in beating:
            world.next_beat = max(world.next_beat + world.interval, now)
            if not stopped:
                world.say(BEAT)
        for world in self._worlds.values():
            for peer in [peer for peer, heard in world.heard.items() if now - heard >= world.limit]:
                if self._report_lost(world, peer, "heartbeat", peer):
                    del world.heard[peer]  # not its address: it may be able to hear what becomes of the world
                else:
                    world.heard[peer] = now - world.limit + _ALIVE_S

    def _listen(self, world: Watched) -> None:
        for _ in range(64):
            try:
                data = world.sock.recv(512)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # a peer's port is closed, says the host: silence will tell
            gone = world.hear(data, time.monotonic())
            if gone is not None:
                self._report_lost(world, gone[0], CAUSES[gone[1]], gone[2])

    def _report_lost(self, world: Watched, peer: int, cause: str, accused: int) -> bool:
        place = {"lost": world.place[0].hex(), "epoch": world.place[1]}
        return self._report({**place, "rank": peer, "cause": cause, "accused": accused})

    def _report(self, words: dict[str, Any]) -> bool:
        try:
            self._control.send(json.dumps(words).encode(), socket.MSG_DONTWAIT)
        except OSError:  # nobody reads at the moment, or ever again
            return False
        return True

    def _obey(self) -> bool:
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
            self._selector.register(sock, selectors.EVENT_READ, world)
        elif place in self._worlds and order["do"] == "forget":
            self._worlds[place].forget(int(order["peer"]))
        elif place in self._worlds:
            world = self._worlds.pop(place)
            cause = order["cause"]
            kind, code = (GONE, CAUSES.index(cause)) if cause else (LEFT, 0)
            world.say(kind, code, int(order["accused"]), times=_FAREWELLS)
            self._selector.unregister(world.sock)
            world.sock.close()
        return True


def _is_alive(process: int, descriptor: int | None) -> bool:
    """Tell whether the parent lives, after its end of the socket closed."""
    if os.getppid() != process:
        return False
    if descriptor is None:
        return True
    return not select.select([descriptor], [], [], 0.2)[0]


def _is_stopped(process: int) -> bool:
    """Tell whether a process is stopped, traced to a halt, or a zombie."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"TtZX"
    except (OSError, IndexError):
        return False


def main() -> None:
    """Serve the process that started this one; its id is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1])
    if os.getppid() == parent:
        Helper(socket.socket(fileno=0), parent).run()


if __name__ == "__main__":
    main()
