"""Options of a splitter: invalid values are refused before anything is started."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ms_recover.errors import UsageError
from ms_recover.splitting.options import Failures, Options

VALID: dict[str, Any] = {"num_devices": 2, "split": "layers"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_devices", 0),
        ("num_devices", True),
        ("num_devices", 2.0),
        ("split", "rows"),
        ("chunk_rows", 0),
        ("replicas", 0),
        ("heartbeat", 0),
        ("timeout", -1.0),
        ("start_timeout", float("nan")),
        ("remote", -1),
        ("remote", 3),
        ("port", 0),
        ("port", 65536),
        ("threads", 0),
        ("num_devices", "2"),
        ("split", None),
        ("split", ["layers"]),
        ("chunk_rows", "8"),
        ("replicas", None),
        ("heartbeat", "3"),
        ("heartbeat", None),
        ("heartbeat", True),
        ("heartbeat", 0.1),
        ("heartbeat", float("inf")),
        ("timeout", [1]),
        ("start_timeout", "x"),
        ("remote", "1"),
        ("port", "29600"),
        ("port", 29600.0),
        ("threads", 1.5),
        ("addr", 7),
        ("addr", None),
        ("directory", 5),
        ("on_event", "print"),
        ("check", 1),
        ("check", None),
        ("device_target", 0),
        ("device_target", "cpu"),
        ("device_ids", 3),
        ("device_ids", [0]),
        ("device_ids", "01"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(name: str, value: object) -> None:
    Options(**VALID)
    with pytest.raises(UsageError, match=re.escape(f"invalid {name} {value!r}")):
        Options(**{**VALID, name: value})


def test_every_remote_worker_needs_a_port() -> None:
    Options(**{**VALID, "remote": 2, "port": 65533})
    with pytest.raises(UsageError, match="invalid port 65534"):
        Options(**{**VALID, "remote": 2, "port": 65534})


@pytest.mark.parametrize("options", [{"max_restarts": -1}, {"spares": -1}, {"spares": 0.5}])
def test_invalid_numbers_of_restarts_and_spares_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected a whole number from 0"):
        Failures("recover", **options)


def test_devices_of_other_hosts_need_no_number_here() -> None:
    assert Options(**{**VALID, "device_ids": (4,), "remote": 1}).device_ids == (4,)
    assert Options(**{**VALID, "device_ids": range(6, 8)}).device_ids == range(6, 8)
    for number in (-1, "0", 1.0, True):
        with pytest.raises(UsageError, match="invalid device_ids"):
            Options(**{**VALID, "device_ids": [0, number]})


@pytest.mark.parametrize("options", [{"stages": []}, {"cut_at": ["head"]}])
def test_a_batch_is_split_without_stages(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match='for split="layers"'):
        Options(**{**VALID, "split": "batch", **options})
