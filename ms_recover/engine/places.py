"""Which nodes there are, by what their workers report (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ms_recover.engine.node_urls import NodeTree
from ms_recover.engine.workers import Node, RootReport, Worker, WorkerReport
from ms_recover.errors import InputError, MissingInputError, UsageError
from ms_recover.model.texts import list_some

_MOST_NAMED = 5


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
