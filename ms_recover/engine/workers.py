"""The workers of an engine, what they report, also as JSON, and the nodes whose disks they see (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ms_recover.formats.codec import Count, Fields, Size, fill, to_json
from ms_recover.version import __version__

WORKER_INFO_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """A directory that is open on a running machine: two paths with the same identity are one directory."""

    machine: str
    """Of the machine since it was started."""
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootReport:
    """One root as a host sees it."""

    root: str
    """Absolute path, as it was asked for."""
    path: str
    """Where it lies on the host."""
    identity: RootIdentity | None = None
    """None where it cannot be opened."""
    listing: str | None = None
    """Digest of its inode, the time of its last change and the names and inodes in it: hosts that share a file system
    find the same one.
    """
    free_bytes: int = 0
    total_bytes: int = 0
    """Of the file system."""
    missing: bool = False
    """Nothing lies there."""
    problem: str | None = None
    """Why it cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What one worker says about itself."""

    address: str
    """Where the engine reaches it."""
    name: str
    """As it was started; the address where it was given none."""
    host: str = ""
    """Host name; empty where it did not answer."""
    version: str = ""
    """Of ms_recover."""
    threads: int = 1
    """Tasks that it runs at once."""
    root: RootReport | None = None
    """What it sees at the root that it was asked for."""
    problem: str | None = None
    """Why it cannot take part."""
    reached: bool = True
    """Whether it has answered at all."""

    @property
    def names(self) -> frozenset[str]:
        """Everything it may be called by."""
        return frozenset({self.name, self.address, *_hosts_of(self.address), *([self.host] if self.host else [])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker of a node."""

    address: str
    name: str
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One tree, and the workers that see it: those of one host, or of several that share a file system."""

    label: str
    """Name in messages, plans and manifests."""
    root: str
    """Absolute path, as the tree on nodes names it."""
    workers: tuple[Worker, ...]
    identities: frozenset[RootIdentity] = frozenset()
    """Of the tree, as each of its hosts sees it; empty where it is gone."""
    free_bytes: int = 0

    @property
    def names(self) -> frozenset[str]:
        """Everything that it may be called by."""
        return frozenset({self.label, *(worker.name for worker in self.workers)})

    @property
    def gone(self) -> bool:
        """Whether there is no directory at the root."""
        return not self.identities


def _hosts_of(address: str) -> tuple[str, str]:
    """Return the host of ``tcp://HOST:PORT``, with and without the port."""
    place = address.rpartition("://")[2]
    return place, place.rpartition(":")[0].strip("[]") or place


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


def reports_to_json(host: str, reports: Iterable[WorkerReport]) -> dict[str, Any]:
    """Return the reports of workers, asked from a host, as plain JSON values."""
    fields = WorkerInfoFields(
        version=WORKER_INFO_VERSION,
        host=host,
        tool=f"ms_recover {__version__}",
        workers=tuple(
            fill(WorkerFields, one, root=_root(one.root))
            for one in sorted(reports, key=lambda one: (one.name, one.address))
        ),
    )
    return to_json(fields)


def _root(root: RootReport | None) -> RootFields | None:
    return None if root is None else fill(RootFields, root, identity=_identity(root.identity))


def _identity(identity: RootIdentity | None) -> IdentityFields | None:
    return None if identity is None else fill(IdentityFields, identity)
