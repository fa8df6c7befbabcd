"""Two hosts of our own, in network namespaces: partition, delay and loss. Needs root and iproute2."""

import os
import shutil
import subprocess

import pytest

from tests.integration.test_worlds_faults import Process

PORT = 29700
HOSTS = ("10.213.7.1", "10.213.7.2")
TOKEN = {"MS_RECOVER_WORLDS_TOKEN": "a token for these two hosts"}


def ip(*words, check=True):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=check)


@pytest.fixture
def hosts():
    """Make two hosts, connected by one cable; skip where that cannot be."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"worlds{os.getpid()}{side}" for side in "ab"]
    made = []
    try:
        for name in names:
            if ip("ip", "netns", "add", name, check=False).returncode:
                pytest.skip("network namespaces cannot be made here")
            made.append(name)
        cable = ["type", "veth", "peer", "name", "cable", "netns", names[1]]
        if ip("ip", "-n", names[0], "link", "add", "cable", *cable, check=False).returncode:
            pytest.skip("virtual cables cannot be made here")
        for name, address in zip(names, HOSTS, strict=True):
            ip("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("ip", "-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        for name in made:
            ip("ip", "netns", "delete", name, check=False)


@pytest.fixture
def pair(hosts):
    """Start a member on each host: the first receives, the second sends."""
    members = []

    def start(times):
        for rank, (name, what) in enumerate(zip(hosts, ("pump", "feed"), strict=True)):
            prefix = ["ip", "netns", "exec", name]
            options = {"name": "w", "rank": rank, "addr": HOSTS[0], "port": PORT, "what": what, "times": times}
            members.append(Process("through", prefix=prefix, env=TOKEN, **options))
        return members

    yield start
    for member in members:
        member.close()


def test_world_breaks_by_heartbeat_at_a_partition_and_is_made_again(hosts, pair):
    a, b = pair(2)
    a.hear("count")
    ip("ip", "-n", hosts[1], "link", "set", "cable", "down")
    for member in (a, b):
        assert member.hear(broken="w").items() >= {"cause": "heartbeat", "epoch": 0}.items()
    ip("ip", "-n", hosts[1], "link", "set", "cable", "up")
    for member in (a, b):
        assert member.hear("made")["made"] == 1
    a.hear("count")
    b.end()
    assert a.hear(broken="w")["cause"] == "closed"
    a.end()


@pytest.mark.parametrize("trouble", [["delay", "50ms", "20ms"], ["loss", "5%"], ["delay", "20ms", "loss", "2%"]])
def test_delay_and_loss_are_no_faults(hosts, pair, trouble):
    for name in hosts:
        if ip("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "netem", *trouble, check=False).returncode:
            pytest.skip("this kernel has no netem")
    a, b = pair(1)
    while a.hear("count")["count"] < 200:
        pass
    b.end()
    assert a.hear(broken="w")["cause"] == "closed"
    a.end()
