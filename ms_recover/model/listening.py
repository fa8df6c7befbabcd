"""A server of a tree: that it accepts clients, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.model.units import Count, Port


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What ``serve`` lets programs know when its port is open; secrets are not in it."""

    RECORD = "event version root address port tls token token_file pid"

    event: ClassVar[Literal["started"]] = "started"
    version: ClassVar[Literal[1]] = 1
    root: str
    address: str
    port: Port
    tls: bool
    token: bool
    """Whether clients show one."""
    token_file: str | None
    pid: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What it lets them know at its end: no client for the seconds of ``--idle``, or a signal."""

    RECORD = "event version reason"

    event: ClassVar[Literal["stopped"]] = "stopped"
    version: ClassVar[Literal[1]] = 1
    reason: Literal["idle", "signal"]
