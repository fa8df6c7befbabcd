"""The host that manifests name."""

import socket

import pytest

from ms_recover.training.host import host_name

BOOT = "1f2e3d4c-5b6a-4c5d-8e9f-001122334455"
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("environ", "in_container", "expected"),
    [
        ({}, False, "node1.example"),
        ({"MS_RECOVER_HOST": " rack3-7 "}, False, "rack3-7"),
        ({"NODE_NAME": "built-in"}, False, "node1.example"),
        ({"NODE_NAME": "node9"} | POD, False, "node9"),
        ({"NODE_NAME": "node9", "MS_RECOVER_HOST": "mine"} | POD, True, "mine"),
        (POD, False, "machine-1f2e3d4c-5b6a"),
        ({}, True, "machine-1f2e3d4c-5b6a"),
        ({"MS_RECOVER_HOST": "a\nb"}, False, None),
        ({"MS_RECOVER_HOST": "x" * 300}, False, "x" * 255),
    ],
)
def test_the_name_of_the_host(environ, in_container, expected):
    found = host_name(environ, lambda: "node1.example", lambda: BOOT, in_container)
    assert found == expected


def test_nothing_names_it():
    def refuse():
        raise OSError("no such file")

    assert host_name({}, lambda: "", in_container=False) is None
    assert host_name(POD, boot_id=refuse) is None


def test_this_host():
    assert host_name({}, in_container=False) == socket.gethostname()
    assert host_name({}, in_container=True).startswith("machine-")
