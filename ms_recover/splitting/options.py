"""What a splitter can be told."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.errors import UsageError
from ms_recover.splitting.state import Policy


@dataclass(frozen=True)
class Options:
    """How to split, and how long to wait; see `ms_recover.splitting.ModelSplitter`."""

    num_devices: int
    split: str
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
        if self.split not in ("layers", "batch"):
            raise UsageError(f"split {self.split!r}: it is 'layers' or 'batch'")
        for name in ("num_devices", "replicas"):
            check_number(name, getattr(self, name), 1)
        for name in ("chunk_rows", "threads"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1)
        check_number("remote", self.remote, 0)
        if self.remote > self.num_devices or not 0 < self.port < (1 << 16) - self.remote:
            raise UsageError(f"{self.remote} remote workers of {self.num_devices} devices, from port {self.port}")
        for name in ("heartbeat", "timeout", "start_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} {getattr(self, name)!r}: these are seconds, more than 0")


@dataclass(frozen=True)
class Failures:
    """What to do about lost devices; see `ms_recover.splitting.FaultTolerantModelSplitter`."""

    policy: Policy = "plain"
    max_restarts: int = 0
    spares: int = 0

    def __post_init__(self) -> None:
        if self.policy not in ("plain", "recover", "skip", "raise"):
            raise UsageError(f"on_failure {self.policy!r}: it is 'recover', 'skip' or 'raise'")
        check_number("max_restarts", self.max_restarts, 0)
        check_number("spares", self.spares, 0)


def check_number(name: str, value: object, least: int) -> None:
    """Refuse what is no whole number, or a smaller one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} {value!r}: it is a whole number from {least}")
