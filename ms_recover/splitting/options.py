"""The options of a splitter; invalid ones raise UsageError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ms_recover.errors import UsageError
from ms_recover.splitting.state import Policy

Split = Literal["layers", "batch"]
OnFailure = Literal["recover", "skip", "raise"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to split, and how long to wait; see `ms_recover.splitting.ModelSplitter`."""

    num_devices: int
    split: Split
    chunk_rows: int | None
    replicas: int
    heartbeat: float
    timeout: float
    start_timeout: float
    remote: int
    addr: str
    port: int
    threads: int | None

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise UsageError(f"invalid split {self.split!r}: expected 'layers' or 'batch'")
        for name in ("num_devices", "replicas"):
            _check_number(name, getattr(self, name), 1)
        for name in ("chunk_rows", "threads"):
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), 1)
        _check_number("remote", self.remote, 0)
        if self.remote > self.num_devices:
            raise UsageError(f"invalid remote {self.remote}: there are {self.num_devices} devices")
        if not 0 < self.port < (1 << 16) - self.remote:
            raise UsageError(f"invalid port {self.port}: {self.remote} remote worker(s) need ports from there to 65535")
        for name in ("heartbeat", "timeout", "start_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"invalid {name} {getattr(self, name)!r}: expected seconds, more than 0")


@dataclass(frozen=True)
class Failures:
    """How to handle lost devices; see `ms_recover.splitting.FaultTolerantModelSplitter`."""

    policy: Policy = "plain"
    max_restarts: int = 0
    spares: int = 0

    def __post_init__(self) -> None:
        _check_number("max_restarts", self.max_restarts, 0)
        _check_number("spares", self.spares, 0)


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"invalid {name} {value!r}: expected a whole number from {least}")
