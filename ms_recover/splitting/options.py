"""The options of a splitter; invalid ones raise UsageError."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ms_recover.arguments import is_number, is_whole
from ms_recover.errors import UsageError
from ms_recover.splitting.state import Policy

Split = Literal["layers", "batch"]
OnFailure = Literal["recover", "skip", "raise"]
_SHORTEST_S, _LONGEST_S = 0.2, 1e6
"""Of a heartbeat."""


@dataclass(frozen=True)
class Failures:
    """How to handle lost devices; see `ms_recover.splitting.FaultTolerantModelSplitter`."""

    policy: Policy = "plain"
    max_restarts: int = 0
    spares: int = 0

    def __post_init__(self) -> None:
        _check_number("max_restarts", self.max_restarts, 0)
        _check_number("spares", self.spares, 0)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keywords of a splitter; see `ms_recover.splitting.ModelSplitter`.

    Those of a training are checked by `ms_recover.splitting.training.options`, `costs` and `sample` where the model is
    known.
    """

    num_devices: int
    split: Split
    failures: Failures = field(default_factory=Failures)
    sample: Any = None
    costs: Sequence[float] | None = None
    chunk_rows: int | None = None
    directory: str | os.PathLike[str] | None = None
    replicas: int = 2
    heartbeat: float = 3.0
    timeout: float = 600.0
    start_timeout: float = 120.0
    remote: int = 0
    addr: str = "127.0.0.1"
    port: int = 29600
    threads: int | None = None
    resume: bool | None = None
    on_event: Callable[..., None] | None = None
    stages: Sequence[Any] | None = None
    cut_at: Sequence[str | int] | None = None
    check: bool = True
    device_target: str | None = None
    device_ids: Sequence[int] | None = None
    loss_fn: Callable[..., Any] | None = None
    optimizer: Callable[[list[Any]], Any] | None = None
    snapshot_steps: int = 10
    recompute: bool = False
    save_steps: int | None = None
    clip_norm: float | None = None

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
        _check_number("port", self.port, 1)
        if self.port >= (1 << 16) - self.remote:
            raise UsageError(f"invalid port {self.port}: {self.remote} remote worker(s) need ports from there to 65535")
        for name in ("heartbeat", "timeout", "start_timeout"):
            _check_seconds(name, getattr(self, name))
        if not _SHORTEST_S <= self.heartbeat <= _LONGEST_S:
            raise UsageError(f"invalid heartbeat {self.heartbeat!r}: expected {_SHORTEST_S:g} to {_LONGEST_S:g} s")
        self._check_types()

    def _check_types(self) -> None:
        _check_type("addr", self.addr, str, "a host name or address")
        if self.directory is not None:
            _check_type("directory", self.directory, (str, os.PathLike), "a path")
        if self.on_event is not None and not callable(self.on_event):
            raise UsageError(f"invalid on_event {self.on_event!r:.60}: expected a function of one event")
        _check_type("check", self.check, bool, "True or False")
        if self.split == "batch" and (self.stages is not None or self.cut_at is not None):
            raise UsageError('stages and cut_at are for split="layers": with "batch" every device holds all')
        if self.device_target not in (None, "CPU", "GPU", "Ascend"):
            raise UsageError(f"invalid device_target {self.device_target!r:.60}: expected 'CPU', 'GPU' or 'Ascend'")
        if self.device_ids is not None:
            local = self.num_devices - self.remote
            _check_type("device_ids", self.device_ids, (list, tuple, range), "a list of whole numbers")
            if len(self.device_ids) != local:
                raise UsageError(f"invalid device_ids {self.device_ids!r:.60}: there are {local} local devices")
            for number in self.device_ids:
                _check_number("device_ids", number, 0)


def _check_type(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"invalid {name} {value!r:.60}: expected {words}, not {type(value).__name__}")


def _check_seconds(name: str, value: Any) -> None:
    if not is_number(value) or not float(value) > 0:
        raise UsageError(f"invalid {name} {value!r:.60}: expected seconds, more than 0")


def _check_number(name: str, value: Any, least: int) -> None:
    if not is_whole(value, least, int):
        raise UsageError(f"invalid {name} {value!r}: expected a whole number from {least}")
