"""A server of a tree that accepts clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What ``serve`` lets programs know when its port is open; secrets are not in it."""

    root: str
    address: str
    port: int
    tls: bool
    token: bool
    """Whether clients show one."""
    token_file: str | None
    pid: int
