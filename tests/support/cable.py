"""Two hosts in network namespaces of their own, joined by a cable that can be slow, lossy or cut.

The cable is a process: both hosts have a tun device, and it carries the packets from one to the other. The namespaces
have no name and live as long as the cable and what runs in them, so nothing is left behind, however the test ends.
Needs root, iproute2, nsenter and /dev/net/tun; no module of the kernel for queues.

This file is also the program of the cable: it is told its settings as JSON, one object per line of standard input, and
answers each with what it did so far. It ends when standard input does.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time

import pytest

ADDRESSES = ("10.213.7.1", "10.213.7.2")
TCP, UDP = 6, 17
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_DEVICE = "cable"
_PROTOCOL = 9
"""Where the header of a packet has its protocol."""
_PACKETS_AT_ONCE = 64
_MOST_WAITING = 10_000
_ANSWER_S = 60
_SEED = 4
"""With this one some of the first fifty packets are lost both ways, also at 2 %."""


def _as_new():
    return {
        "delay": 0.0,
        "jitter": 0.0,
        "in_order": False,
        "loss": 0.0,
        "cut": [False, False],
        "refuses": [[], []],
    }


class Cable:
    """The cable, as tests see it; a context manager.

    What happens to packets is set by `set`; `lost` and `carried` tell by direction, first to second host and back.
    """

    def __init__(self):
        for tool in ("ip", "nsenter"):
            if shutil.which(tool) is None:
                pytest.skip(f"hosts of our own need {tool}")
        if os.geteuid() != 0:
            pytest.skip("hosts of our own need root")
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            pytest.skip("hosts of our own need /dev/net/tun")
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._settings = _as_new()
        self.carried = self.lost = (0, 0)
        try:
            told = self._hear()
            if "cannot" in told:
                pytest.skip(f"hosts of our own cannot be made here: {told['cannot']}")
        except BaseException:
            self.close()
            raise
        self._namespaces = [f"/proc/{self._process.pid}/fd/{number}" for number in told["namespaces"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def prefix(self, host):
        """Return the words that run a command on a host."""
        return ["nsenter", f"--net={self._namespaces[host]}"]

    def set(self, **settings):
        """Change what happens to packets from now on.

        Parameters
        ----------
        delay, jitter : float
            Seconds that a packet takes, and how much more or less at random.
        in_order : bool
            Whether a packet waits for those before it.
        loss : float
            Share of the packets that get lost.
        cut : list of two bool
            Whether the cable carries nothing from the first host to the second, and back.
        refuses : list of two lists of int
            Protocols that it does not carry in these directions, as a firewall would: `TCP` or `UDP`.
        """
        assert settings.keys() <= self._settings.keys()
        self._settings |= settings
        self.look()

    def look(self):
        """Bring `carried` and `lost` up to date."""
        self._process.stdin.write(json.dumps(self._settings) + "\n")
        self._process.stdin.flush()
        told = self._hear()
        self.carried, self.lost = tuple(told["carried"]), tuple(told["lost"])

    def _hear(self):
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        assert line, "the cable says nothing"
        return json.loads(line)


def make_host(address):
    """Move into a new namespace with a tun device; return descriptors of the namespace and the device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    for words in (
        f"address add {address}/24 dev {_DEVICE}",
        f"link set {_DEVICE} up",
        "link set lo up",
    ):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=_ANSWER_S)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), device


class Carrier:
    """Carries packets between two tun devices."""

    def __init__(self, devices, seed):
        self._devices = devices
        self._jitter = random.Random(seed)
        # Which packets are lost depends on nothing but how many there were in this direction before.
        self._loss = [random.Random(seed + 1), random.Random(seed + 2)]
        self._waiting = []
        self._numbers = itertools.count()
        self._latest = [0.0, 0.0]
        self.settings = _as_new()
        self.carried, self.lost = [0, 0], [0, 0]

    def next_due(self):
        """Return the seconds until a packet has arrived, None while none is on its way."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def take(self, side):
        """Take what one host sends."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self._devices[side], 1 << 16)
            except BlockingIOError:
                return
            settings = self.settings
            dropped = self._loss[side].random() < settings["loss"]
            refused = settings["cut"][side] or packet[_PROTOCOL] in settings["refuses"][side]
            if dropped or refused or len(self._waiting) >= _MOST_WAITING:
                self.lost[side] += 1
                continue
            due = time.monotonic() + settings["delay"] + settings["jitter"] * self._jitter.uniform(-1, 1)
            if settings["in_order"]:
                due = self._latest[side] = max(due, self._latest[side])
            heapq.heappush(self._waiting, (due, next(self._numbers), side, packet))

    def give(self):
        """Hand on what has arrived; what was on its way when the cable was cut is lost, too."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, side, packet = heapq.heappop(self._waiting)
            if self.settings["cut"][side]:
                self.lost[side] += 1
                continue
            os.write(self._devices[1 - side], packet)
            self.carried[side] += 1


def say(**words):
    print(json.dumps(words), flush=True)


def main():
    try:
        hosts = [make_host(address) for address in ADDRESSES]
    except (OSError, subprocess.SubprocessError) as error:
        say(cannot=str(error))
        return
    with contextlib.suppress(OSError):  # a cable does not wait for a processor
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    carrier = Carrier([device for _, device in hosts], seed=_SEED)
    say(namespaces=[namespace for namespace, _ in hosts])
    sides = {device: side for side, (_, device) in enumerate(hosts)}
    while True:
        ready, _, _ = select.select([0, *sides], [], [], carrier.next_due())
        for descriptor in ready:
            if descriptor in sides:
                carrier.take(sides[descriptor])
            elif line := sys.stdin.buffer.raw.readline():
                carrier.settings = json.loads(line)
                say(carried=carrier.carried, lost=carrier.lost)
            else:
                return
        carrier.give()


if __name__ == "__main__":
    main()
