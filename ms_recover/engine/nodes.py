"""Trees that are spread over the disks of nodes, as ``node://*/data/ckpt``, and which nodes there are (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ms_recover.engine.workers import Node, RootReport, Worker, WorkerReport
from ms_recover.errors import InputError, MissingInputError, UsageError
from ms_recover.model.texts import list_some

SCHEME = "node://"
_MOST_NAMED = 5
_EXAMPLE = "write node://*/data/ckpt, node://node3/data/ckpt or node://{node1,node2}/data/ckpt"
_URL = re.compile(r"node://(\{[^{}/]+\}|[^{}/]+)(/.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NodeTree:
    """One path on several nodes, whose trees together are one tree."""

    hosts: tuple[str, ...]
    """Names or shell patterns; ``*`` for all workers."""
    root: str
    """Absolute path, the same on all of them."""

    @classmethod
    def parse(cls, text: str) -> NodeTree:
        """Read ``node://HOSTS/PATH``; HOSTS is a name, a shell pattern, or several with commas in braces.

        Raises
        ------
        UsageError
            When the text is none of these.
        """
        match = _URL.match(text)
        if match is None:
            raise UsageError(f"{text!r} names no tree on nodes: {_EXAMPLE}")
        hosts = tuple(dict.fromkeys(host.strip() for host in match[1].strip("{}").split(",")))
        parts = match[2].split("/")[1:]
        root = "/" + "/".join(part for part in parts if part)
        if not all(hosts) or root == "/" or not {".", ".."}.isdisjoint(parts) or "\0" in root:
            raise UsageError(f"{text!r} names no tree on nodes: {_EXAMPLE}")
        return cls(hosts, root)

    def __str__(self) -> str:
        hosts = self.hosts[0] if len(self.hosts) == 1 else "{" + ",".join(self.hosts) + "}"
        return f"{SCHEME}{hosts}{self.root}"

    def takes(self, names: Collection[str]) -> bool:
        """Whether a worker with any of these names is meant."""
        return any(fnmatchcase(name, host) for host in self.hosts for name in names)

    @property
    def takes_all(self) -> bool:
        """Whether every worker is meant."""
        return "*" in self.hosts

    def missing(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the hosts that none of the names is of."""
        return tuple(host for host in self.hosts if not any(fnmatchcase(name, host) for name in names))


def is_node_url(root: str) -> bool:
    """Whether a root is a tree on nodes."""
    return root.startswith(SCHEME)


def find_nodes(reports: Sequence[WorkerReport], tree: NodeTree) -> tuple[Node, ...]:
    """Return the nodes of a tree, by label.

    Workers that see the same directory are of one node: those of one machine by its inode, those of several by a
    listing that only a shared file system can make equal. A worker's own word counts nowhere.

    Raises
    ------
    MissingInputError
        When there is no worker, none of a host, or none sees the root.
    InputError
        When one cannot take part: it has no ms_recover, another version of it, or does not answer.
    """
    meant = [one for one in reports if tree.takes(one.names)]
    absent = () if tree.takes_all else tree.missing({name for one in meant for name in one.names})
    if absent or not meant:
        known = list_some(sorted(one.name for one in reports), _MOST_NAMED) if reports else "none"
        raise MissingInputError(
            f"no worker of {', '.join(absent) or 'the cluster'} is there; the workers are: {known}. Start dask worker "
            "on the node, or name other nodes"
        )
    _refuse([f"worker {one.name}: {one.problem}" for one in meant if one.problem is not None])
    seen = [(one, one.root) for one in meant if one.root is not None]
    _refuse([f"worker {one.name}: {root.problem}" for one, root in seen if root.problem and not root.missing])
    groups = _group(seen)
    if all(root.missing for _, root in seen):
        raise MissingInputError(f"{tree.root} does not exist on any of {len(seen)} workers: check the path")
    hosts = Counter(host for group in groups for host in {one.host for one, _ in group})
    nodes = [_node(group, tree, hosts) for group in groups]
    return tuple(sorted(nodes, key=lambda node: node.label))


def find_shared(reports: Sequence[WorkerReport], root: str, here: RootReport | None) -> Node:
    """Return the node of a path without hosts: one tree that workers share.

    `here` is what this host sees at the path.

    Raises
    ------
    UsageError
        When workers, or a worker and this host, see different trees there.
    MissingInputError, InputError
        As `find_nodes` does.
    """
    nodes = [node for node in find_nodes(reports, NodeTree(("*",), root)) if not node.gone]
    hint = f"name the trees of the nodes: node://*{root}"
    if len(nodes) > 1:
        labels = list_some([node.label for node in nodes], _MOST_NAMED)
        raise UsageError(f"{root} is another tree on each of {labels}: {hint}")
    listings = {one.root.listing for one in reports if one.root is not None}
    own = here.identity if here is not None else None
    if here is not None and own not in (None, *nodes[0].identities) and here.listing not in listings:
        raise UsageError(f"{root} is another tree on this host than on the workers: {hint}")
    return nodes[0]


def returned(node: Node, report: WorkerReport) -> Worker | None:
    """Return a new worker that sees the tree of a node, None for one that does not."""
    if report.problem is not None or report.root is None:
        return None
    if report.root.identity in node.identities or (node.gone and report.root.missing and report.name in node.names):
        return _worker(report)
    return None


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InputError(
            f"{list_some(problems, _MOST_NAMED)}; nothing is known about its tree: mend or stop it, or name the other "
            "nodes as node://{node1,node2}/..."
        )


def _group(
    seen: Iterable[tuple[WorkerReport, RootReport]],
) -> list[list[tuple[WorkerReport, RootReport]]]:
    """Put workers together that see one directory, or miss the same one."""
    groups: list[tuple[set[object], list[tuple[WorkerReport, RootReport]]]] = []
    for report, root in seen:
        keys: set[object] = {("missing", report.host, root.path)}
        if root.identity is not None:
            keys = {root.identity, (root.identity.inode, root.listing)}
        same = [group for group in groups if not keys.isdisjoint(group[0])]
        members = [one for group in same for one in group[1]]
        groups = [group for group in groups if group not in same]
        groups.append((keys.union(*(group[0] for group in same)), [*members, (report, root)]))
    return [members for _, members in groups]


def _node(group: Sequence[tuple[WorkerReport, RootReport]], tree: NodeTree, hosts: Counter[str]) -> Node:
    workers = sorted((_worker(report) for report, _ in group), key=lambda worker: (worker.name, worker.address))
    own: Collection[str] = sorted({report.host for report, _ in group if hosts[report.host] == 1})
    return Node(
        label=min(own, default=workers[0].name.rpartition("://")[2]),
        root=tree.root,
        workers=tuple(workers),
        identities=frozenset(root.identity for _, root in group if root.identity is not None),
        free_bytes=min(root.free_bytes for _, root in group),
    )


def _worker(report: WorkerReport) -> Worker:
    return Worker(address=report.address, name=report.name, threads=report.threads)
