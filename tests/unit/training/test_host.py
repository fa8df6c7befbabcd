"""The host that manifests name."""

import socket

import pytest

from ms_recover.training.host import this_host

BOOT = "1f2e3d4c-5b6a-4c5d-8e9f-001122334455"
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("node1.example", BOOT)),
        ({"NODE_NAME": "built-in"}, ("node1.example", BOOT)),
        (POD, ("node1.example", BOOT)),
        ({"MS_RECOVER_HOST": " rack3-7 "}, ("rack3-7", None)),
        ({"NODE_NAME": "node9"} | POD, ("node9", None)),
        ({"NODE_NAME": "node9", "MS_RECOVER_HOST": "mine"} | POD, ("mine", None)),
        ({"MS_RECOVER_HOST": "a\nb"}, (None, None)),
        ({"MS_RECOVER_HOST": "x" * 300}, ("x" * 255, None)),
    ],
)
def test_the_name_of_the_host(environ, expected):
    assert this_host(environ, lambda: "node1.example", lambda: BOOT) == expected


def test_nothing_names_it():
    def refuse():
        raise OSError("no such file")

    assert this_host({}, refuse, refuse) == (None, None)
    assert this_host({}, lambda: "", lambda: BOOT) == (None, BOOT)


def test_this_host():
    name, machine = this_host({})
    assert name == socket.gethostname()
    assert len(machine) == 36
