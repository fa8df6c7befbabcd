"""Ports for servers of tests."""

import secrets
import socket
from contextlib import suppress
from pathlib import Path

_LOWEST = 10_000


def _first_ephemeral():
    """Return the first port that the system gives to connections that name none (ip(7), ip_local_port_range)."""
    with suppress(OSError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32_768


def free_port(host="127.0.0.1"):
    """Return a port that was free a moment ago, for TCP and UDP.

    It is drawn below the ports that any connection of any process may get until the server listens.
    """
    top = _first_ephemeral()
    for _ in range(100):
        port = _LOWEST + secrets.randbelow(top - _LOWEST) if top > 2 * _LOWEST else 0
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams, suppress(OSError):
            stream.bind((host, port))
            datagrams.bind((host, stream.getsockname()[1]))
            return stream.getsockname()[1]
    raise AssertionError("no port is free")
