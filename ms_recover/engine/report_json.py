"""What ``recover-ckpt worker-info`` prints; docs/schemas/ is made of these types."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final, Literal

from ms_recover.engine.nodes import NodeTree
from ms_recover.engine.workers import RootIdentity, RootReport, WorkerReport
from ms_recover.formats.codec import Count, Fields, Size, fill, to_json
from ms_recover.version import __version__

WORKER_INFO_VERSION: Final = 1


class IdentityFields(Fields):
    """By which two paths are known to be one directory."""

    machine: str
    device: Count
    inode: Count


class RootFields(Fields):
    """What a worker sees at the root."""

    root: str
    path: str
    identity: IdentityFields | None
    listing: str | None
    free_bytes: Size
    total_bytes: Size
    missing: bool
    problem: str | None


class WorkerFields(Fields):
    """One worker."""

    name: str
    address: str
    host: str
    version: str
    threads: Count
    root: RootFields | None
    problem: str | None


class WorkerInfoFields(Fields):
    """All workers that are asked, by name; without an engine this host."""

    version: Literal[1]
    host: str
    tool: str
    workers: tuple[WorkerFields, ...]


def reports_to_json(tree: NodeTree, reports: Iterable[WorkerReport]) -> dict[str, Any]:
    """Return the reports of the workers of a tree as plain JSON values."""
    meant = sorted((one for one in reports if tree.takes(one.names)), key=lambda one: (one.name, one.address))
    fields = WorkerInfoFields(
        version=WORKER_INFO_VERSION,
        host=socket.gethostname(),
        tool=f"ms_recover {__version__}",
        workers=tuple(fill(WorkerFields, one, root=_root(one.root)) for one in meant),
    )
    return to_json(fields)


def _root(root: RootReport | None) -> RootFields | None:
    return None if root is None else fill(RootFields, root, identity=_identity(root.identity))


def _identity(identity: RootIdentity | None) -> IdentityFields | None:
    return None if identity is None else fill(IdentityFields, identity)
