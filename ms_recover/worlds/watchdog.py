"""Detection of frozen and unreachable peers, with a helper process that the watchdog starts and replaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recover.errors import StartError, UsageError
from ms_recover.worlds import arguments, silence, stream

_log = logging.getLogger(__name__)
_HELPER = Path(__file__).with_name("heartbeat.py")
_MIN_HEARTBEAT_S = 0.2
_MAX_HEARTBEAT_S = (1 << 32) / 1000
_END_S = 2.0
_RESTART_S = 1.0
_FAILING_LIMITS = 5
_MAX_PACKET = 1 << 16
Look = Callable[[float, Mapping[int, int]], Mapping[int, int]]
"""Looks at the connections of a world, see `World.look`."""


@dataclass(slots=True)
class _Watch:
    order: dict[str, Any]
    sock: socket.socket
    look: Look
    passed: dict[int, int] = field(default_factory=dict)
    """Bytes that peers say they passed to their kernels for this member."""
    told: Mapping[int, int] | None = None
    """Those that this member passed for its peers, as the helper was told last."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One member of a world, whose peers are watched."""

    world: bytes
    epoch: int
    """World and epoch are those of the datagrams."""
    rank: int
    key: bytes
    """Signs the datagrams."""
    peers: Mapping[int, tuple[str, int]]
    """Addresses and ports by rank."""
    interval: float
    """Seconds between two heartbeats."""


class WatchDog:
    """Watches the peers of all worlds of this process.

    The death of a peer closes its connection, which is noticed at once. A frozen or unreachable peer is noticed because
    its helper process sends no more heartbeats. Helpers exchange UDP datagrams. The helper is a child of this process,
    and the only process that the watchdog ever ends.

    Parameters
    ----------
    heartbeat : float
        Seconds of silence after which a peer is lost; at least 0.2, and less than 2**32 ms.
    lost : callable
        Called with the world (eight bytes), its epoch, the rank of the peer, the cause, and the rank at fault. With
        this member's own rank when no helper keeps running, so that peers are not watched.

    Raises
    ------
    UsageError
        When `heartbeat` is too short, too long or no number.
    """

    def __init__(self, heartbeat: float, lost: Callable[[bytes, int, int, str, int], None]) -> None:
        self.heartbeat = heartbeat = arguments.seconds("heartbeat", heartbeat)
        if not _MIN_HEARTBEAT_S <= heartbeat < _MAX_HEARTBEAT_S:
            limits = f"the minimum is {_MIN_HEARTBEAT_S} s, the maximum {_MAX_HEARTBEAT_S:.0f} s"
            raise UsageError(f"heartbeat is {heartbeat} s, {limits}")
        self.replaced = 0
        """Number of times that the helper was replaced."""
        self._check_s = silence.look_s(heartbeat)
        self._silent_s = max(0.5, min(1.5, heartbeat / 2))
        self._lost = lost
        self._watches: dict[tuple[bytes, int], _Watch] = {}
        self._helper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._last_report = 0.0
        self._last_check = 0.0
        self._last_start = 0.0
        self._failing_since: float | None = None
        """When the first of the last helpers failed that did not live for a whole heartbeat limit."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the helper; None while there is none."""
        return self._helper.pid if self._helper else None

    def start(self) -> None:
        """Start the helper, unless it runs; raises `StartError` when this host cannot."""
        if self._helper is None:
            try:
                self._start()
            except (OSError, TypeError, ValueError) as error:  # there may be no `sys.executable` either
                raise StartError(f"the heartbeat helper cannot be started: {error}") from error

    def watch(self, member: Membership, sock: socket.socket, look: Look) -> None:
        """Start to watch the peers of a world.

        The watchdog owns the UDP socket from now on, so that a new helper continues with the same one. `look` is called
        again and again with the time and the bytes that the peers passed to their kernels, and returns those that this
        member passed; they go out with the heartbeats.
        """
        world, epoch, key = member.world, member.epoch, member.key.hex()
        order = _order("watch", world, epoch, rank=member.rank, key=key, interval=member.interval, limit=self.heartbeat)
        order["peers"] = {peer: list(address) for peer, address in member.peers.items()}
        self.start()
        self._watches[world, epoch] = _Watch(order, sock, look)
        self._send(order, sock)

    def forget(self, world: bytes, epoch: int, peer: int) -> None:
        """Stop watching a peer that left in good order."""
        watch = self._watches.get((world, epoch))
        if watch is not None:
            watch.order["peers"].pop(peer, None)
            self._send(_order("forget", world, epoch, peer=peer))

    def leave(self, world: bytes, epoch: int, cause: str = "", accused: int = 0) -> None:
        """Stop watching a world; inform its members of the cause when it is broken."""
        watch = self._watches.pop((world, epoch), None)
        if watch is not None:
            self._send(_order("leave", world, epoch, cause=cause, accused=accused))
            watch.sock.close()

    async def close(self) -> None:
        """Stop watching all worlds and end the helper."""
        for world, epoch in list(self._watches):
            self.leave(world, epoch)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        helper, self._helper = self._helper, None
        self._disconnect()
        if helper is not None:
            try:
                for _ in range(int(_END_S / 0.01)):
                    if helper.poll() is not None:
                        break
                    await asyncio.sleep(0.01)
            finally:
                _end(helper)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with stream.closed_on_error(ours), theirs:
            self._helper = subprocess.Popen(  # noqa: S603 (our own file)
                [sys.executable, "-I", "-S", str(_HELPER), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._read_reports)
        self._last_report = self._last_check = self._last_start = loop.time()
        for watch in self._watches.values():
            self._send(watch.order, watch.sock)
            watch.told = None
        if self._timer is None:
            self._timer = loop.call_later(self._check_s, self._check)

    def _send(self, order: dict[str, Any], sock: socket.socket | None = None) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [sock.fileno()] if sock else [])
        except OSError as error:
            _log.warning("sending to the heartbeat helper failed: %s", error)
            asyncio.get_running_loop().call_soon(self._replace, self._helper)

    def _read_reports(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(_MAX_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._replace(self._helper)
                return
            self._last_report = asyncio.get_running_loop().time()
            try:
                report = json.loads(data)
                if "passed" in report:
                    self._peers_passed(bytes.fromhex(report["passed"]), report["epoch"], report["bytes"])
                elif "lost" in report:
                    world, epoch = bytes.fromhex(report["lost"]), report["epoch"]
                    self._lost(world, epoch, report["rank"], report["cause"], report["accused"])
            except Exception:
                _log.exception("a report of the heartbeat helper cannot be handled")
                self._replace(self._helper)
                return

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # After a stall of this process, reports that arrived meanwhile must be read first.
        stalled, self._last_check = now - self._last_check > 2 * self._check_s, now
        if stalled:
            self._last_report = now
        self._timer = loop.call_later(self._check_s, self._check)
        if self._helper is not None and now - self._last_start > self.heartbeat:
            self._failing_since = None
        if self._failing_since is not None and now - self._failing_since > _FAILING_LIMITS * self.heartbeat:
            self._failing_since = None
            for (world, epoch), watch in list(self._watches.items()):
                rank = watch.order["rank"]
                self._lost(world, epoch, rank, "closed", rank)
        elif self._helper is None:
            self._restart()
        elif now - self._last_report > self._silent_s:
            self._replace(self._helper)
        self._read_reports()  # that a peer is dead is the better reason why its connection is silent
        for (world, epoch), watch in list(self._watches.items()):
            passed = watch.look(now, watch.passed)
            if (world, epoch) in self._watches and passed != watch.told:
                self._tell_passed(watch, _order("passed", world, epoch, bytes=passed))

    def _tell_passed(self, watch: _Watch, order: dict[str, Any]) -> None:
        """Tell the helper how many bytes were passed for each peer; when it is behind, again at the next look."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # a helper that died is noticed, and replaced, as its socket is read
                self._control.send(json.dumps(order).encode())
                watch.told = order["bytes"]

    def _peers_passed(self, world: bytes, epoch: int, passed: Mapping[str, int]) -> None:
        watch = self._watches.get((world, epoch))
        if watch is not None:
            watch.passed.update({int(rank): count for rank, count in passed.items()})

    def _replace(self, helper: subprocess.Popen[bytes] | None) -> None:
        """Replace a helper that died or froze."""
        if helper is None or helper is not self._helper:
            return
        _log.warning("the heartbeat helper %d is dead or frozen: replacing it", helper.pid)
        self._disconnect()
        self._helper = None
        _end(helper)
        self.replaced += 1
        now = asyncio.get_running_loop().time()
        self._failing_since = self._failing_since or now
        if now - self._last_start > _RESTART_S:
            self._restart()  # a helper that fails at once is restarted at the next check

    def _restart(self) -> None:
        try:
            self.start()
        except StartError as error:
            _log.warning("%s", error)

    def _disconnect(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(control.fileno())
            control.close()


def _order(do: str, world: bytes, epoch: int, **fields: Any) -> dict[str, Any]:
    return {"do": do, "world": world.hex(), "epoch": epoch, **fields}


def _end(helper: subprocess.Popen[bytes]) -> None:
    """End a child of this process."""
    if helper.poll() is None:
        helper.kill()
    helper.wait(_END_S)
