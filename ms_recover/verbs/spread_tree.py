"""The verbs over a tree whose bytes only the workers of an engine see: they read and write, this process decides."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ms_recover.engine import tasks
from ms_recover.engine.engine import Engine, Task
from ms_recover.engine.nodes import NodeTree, find_nodes, find_shared, is_node_url
from ms_recover.engine.roots import look_at
from ms_recover.engine.workers import Node
from ms_recover.errors import MissingInputError, MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.joint.homes import find_homes, parse_homes
from ms_recover.joint.shares import (
    documents_of,
    joined,
    lost_outcome,
    outcome_at,
    share_of,
    sources_of,
    with_homes,
    written_ranks,
)
from ms_recover.joint.union import Double, Union, contradiction, find_doubles, sharing, unite
from ms_recover.model.actions import CopyAction, FileState
from ms_recover.model.contents import Contents
from ms_recover.model.explanation import Explanation
from ms_recover.model.inventory import Inventory, Note, SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import DEFAULT_PLAN, DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Action, DocumentWrite, Plan, waves_of
from ms_recover.model.progress import Progress, expect_bytes
from ms_recover.model.topology import Topology
from ms_recover.model.verdicts import Evidence
from ms_recover.planning.plan.explain import explain_planned
from ms_recover.planning.plan.planner import refuse_older_step
from ms_recover.scanning.scan import scan
from ms_recover.verbs.session import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Scanned:
    """All nodes at one moment."""

    nodes: tuple[Node, ...]
    union: Union
    """Of the nodes, and of the files that are named here."""
    doubles: Mapping[str, tuple[Double, ...]]


class SpreadTree:
    """A tree on the disks of nodes, or on a file system that the workers share.

    Parameters
    ----------
    engine : Engine
    root : str
        ``node://HOSTS/PATH``, or the path of a directory that workers share.
    homes : sequence of (ranks, name)
        The operator's word: these ranks belong to the node of that name.
    """

    def __init__(self, engine: Engine, root: str, homes: Sequence[tuple[Collection[int], str]] = ()) -> None:
        self._engine, self._word = engine, homes
        self.url = str(NodeTree.parse(root)) if is_node_url(root) else os.path.abspath(root)
        self._scanned: _Scanned | None = None

    def scan(self, options: ScanOptions = DEFAULT_SCAN, *, progress: Progress | None = None) -> Inventory:
        """Let every node scan its root, and unite what they find; as `ms_recover.api.scan`.

        Files that the options name lie on this host.

        Raises
        ------
        MsRecoverError
            As `api.scan` does; when a worker cannot take part or its node is lost, or when two nodes have one slice
            with different contents.
        """
        nodes = self._find_nodes()
        gone = tuple(Note(f"{node.label}{node.root}", "does not exist there") for node in nodes if node.gone)
        named = replace(_named_files(options), root=self.url, notes=gone)
        own = replace(options, group_info=(), strategy=())
        scans = [Task(node, tasks.scan_node, (node, own)) for node in nodes if not node.gone]
        results = iter(self._engine.run(scans, progress=progress))
        inventories = sharing(next(results) if not node.gone else Inventory(root=node.label) for node in nodes)
        if not any(inventory.ranks for inventory in inventories) and not options.may_be_empty:
            reasons = [(tree.root, tree.notes[0].reason if tree.notes else "empty") for tree in inventories[:3]]
            where = "; ".join(f"{root}: {reason}" for root, reason in reasons)
            raise MissingInputError(f"{self.url} holds no slices ({where}): name the directory that has the ranks'")
        union = unite(named, inventories, spread=True)
        self._scanned = _Scanned(nodes, union, find_doubles(union))
        return union.inventory

    def read(
        self, files: Sequence[SliceFile], *, progress: Progress | None = None, from_device: bool = False
    ) -> Contents:
        """Return the digests of slices, each read on the node that has it.

        Raises
        ------
        MsRecoverError
            When a node is lost, or another node has a slice of the same name with other contents.
        """
        scanned = self._known()
        again: list[tuple[SliceFile, Double]] = []
        wanted: dict[int, list[SliceFile]] = {}
        for file in files:
            wanted.setdefault(scanned.union.holders[file.path], []).append(file)
            again += [(file, double) for double in scanned.doubles.get(file.path, ())]
        expect_bytes(progress, sum(file.size for file in files) + sum(file.size for file, _ in again))
        reads = [
            Task(node, tasks.read_slices, (node, share, from_device))
            for node, theirs in ((scanned.nodes[index], theirs) for index, theirs in wanted.items())
            for share in _shares(theirs, len(node.workers))
        ]
        for _, double in again:
            node = scanned.nodes[double.node]
            reads.append(Task(node, tasks.read_slices, (node, [double.file], from_device)))
        results = self._engine.run(reads, progress=progress)
        first = len(reads) - len(again)
        contents = Contents()
        for digests in results[:first]:
            contents = contents.merged(digests)
        for (file, double), digests in zip(again, results[first:], strict=True):
            _compare(file, double, contents, digests, scanned.union)
        return contents

    def plan(
        self,
        inventory: Inventory,
        options: PlanOptions = DEFAULT_PLAN,
        *,
        explain: int | None = None,
        progress: Progress | None = None,
    ) -> tuple[Plan, Explanation | None]:
        """Plan here, over what the nodes read; as `ms_recover.api.plan`, with `explain` as `api.explain`.

        Raises
        ------
        MsRecoverError
            As these do; UsageError also when nothing says on which node lost slices belong.
        """
        planned = Session(inventory, options, read=partial(self.read, progress=progress)).planned
        explanation = None if explain is None else explain_planned(planned, explain)
        homes = self._homes(planned.plan)
        follow = tuple(map(os.path.normpath, options.follow))
        named = with_homes(planned.plan, self._known().union, homes)
        made = self._with_obstacles(replace(named, follow=follow), homes)
        if options.require_newest:
            refuse_older_step(made, explanation)
        return made, explanation

    def topology(self, ranks: int) -> Topology | None:
        """Return the node on which the files of each rank lie, as its host; None for a directory that workers share.

        Raises
        ------
        UsageError
            When nothing says on which node a rank belongs.
        """
        if not is_node_url(self.url):
            return None
        scanned = self._known()
        named = parse_homes(self._word, scanned.nodes)
        homes = find_homes(range(ranks), scanned.union, ranks, named)
        hosts = tuple(scanned.nodes[homes[rank]].label for rank in range(ranks))
        return Topology(("host",), (hosts,), f"the nodes of {self.url}")

    def check(self, plan: Plan) -> None:
        """Check that a plan can be carried out: recoverable, and its sources as the scan saw them.

        Raises
        ------
        UnrecoverableError, MissingInputError, VerificationError
            As `ms_recover.api.check` does.
        """
        if plan.step is None:
            raise UnrecoverableError(f"{plan.root} cannot be recovered by this plan; it names the ranks")
        files = {file.path: file for file in self._known().union.inventory.slices}
        for action in plan.actions:
            for replica in action.replicas[:1] if isinstance(action, CopyAction) else action.replicas:
                if replica.path not in files:
                    raise MissingInputError(f"{plan.root}: {replica.path} is on no node: plan again")
                now = files[replica.path]
                if FileState(now.size, now.mtime_ns) != replica.state:
                    raise VerificationError(f"{plan.root}: {replica.path} is not what the plan saw: plan again")

    def apply(
        self,
        plan: Plan,
        *,
        jobs: int | None = None,
        verify: bool = True,
        partial: bool = False,
        progress: Progress | None = None,
    ) -> Outcome:
        """Let each node write what belongs on it, and read what it lacks from the nodes that have it.

        A node that is lost keeps the others from nothing but the documents of iterations. Parameters are those of
        `ms_recover.api.apply`; `jobs` are the threads on each node, by default four a core.

        Raises
        ------
        UnrecoverableError
            When the plan has no step.
        UsageError
            When nothing says on which node slices belong.
        StorageError
            When the engine cannot be reached.
        """
        step = plan.considered if partial else plan.step
        if step is None:
            raise UnrecoverableError(f"{plan.root} cannot be recovered by this plan; it names the ranks")
        planned = plan.actions if plan.step is not None else plan.partials
        homes = self._homes(plan)
        self._make_roots(homes)
        outcomes: list[Outcome] = []
        waves = waves_of(planned) or ((),)

        def carry_out(shares: Sequence[tuple[Node, Plan, Mapping[str, Node]]]) -> list[Outcome]:
            calls = [(*share, jobs, verify, plan.step is None) for share in shares]
            ends = self._engine.run_each([Task(call[0], tasks.apply_node, call) for call in calls], progress=progress)
            return [_outcome_of(node, share, end) for (node, share, _), end in zip(shares, ends, strict=True)]

        for number, wave in enumerate(waves):
            # Small files wait for the last wave, and what is set aside for all: a failure leaves both as they are.
            now = replace(plan, set_aside=())
            if number < len(waves) - 1:
                now = replace(now, group_files=(), meta_files=(), strategy_files=())
            outcomes += carry_out(self._shares(now, homes, wave))
        made = joined(plan, planned, outcomes, verify)
        if plan.set_aside and not made.failed:
            aside = replace(plan, group_files=(), meta_files=(), strategy_files=())
            outcomes += carry_out(self._shares(aside, homes, ()))
            made = joined(plan, planned, outcomes, verify)
        if made.exit_code == 0 and plan.step is not None:
            made = self._with_documents(made, plan, homes)
        return made

    def _shares(
        self, plan: Plan, homes: Mapping[int, int], wave: Sequence[Action]
    ) -> list[tuple[Node, Plan, Mapping[str, Node]]]:
        """Return what each node does of a plan with a wave of its actions, and whom it reads from."""
        scanned = self._known()
        shares: list[tuple[Node, Plan, Mapping[str, Node]]] = []
        for index, node in enumerate(scanned.nodes):
            share = self._share(plan, index, homes, wave)
            small = share.group_files or share.meta_files or share.strategy_files or share.set_aside
            if share.actions or share.partials or small:
                away = sources_of(share, scanned.union, index)
                shares.append((node, share, {path: scanned.nodes[holder] for path, holder in away.items()}))
        return shares

    def _share(self, plan: Plan, node: int, homes: Mapping[int, int], wave: Sequence[Action]) -> Plan:
        return share_of(plan, self._known().union, node, lambda rank: homes.get(rank) == node, wave)

    def _documents(self, plan: Plan, node: int, homes: Mapping[int, int]) -> tuple[DocumentWrite, ...]:
        """Return the documents that a node lacks, if it has ranks or gets some."""
        union = self._known().union
        takes_part = union.at(node).ranks or node in homes.values()
        return documents_of(plan, union, node) if takes_part else ()

    def _with_documents(self, made: Outcome, plan: Plan, homes: Mapping[int, int]) -> Outcome:
        """Write the documents of iterations on every node that takes part, once all slices are there."""
        started: list[Task] = []
        for index, node in enumerate(self._known().nodes):
            writes = self._documents(plan, index, homes)
            if writes:
                started.append(Task(node, tasks.write_documents, (node, writes, plan.follow)))
        written: set[str] = set()
        errors, code = [], 0
        for task, (targets, error) in zip(started, self._engine.run(started), strict=True):
            written.update(targets)
            if error is not None:
                errors.append(f"{task.node.label}: {error}")
                code = max(code, error.exit_code)
        return replace(made, documents=tuple(sorted(written)), errors=tuple(errors), exit_code=code)

    def _with_obstacles(self, plan: Plan, homes: Mapping[int, int]) -> Plan:
        """Let each node that is there find what keeps its part of a plan that was just made from being written."""
        scanned = self._known()
        started: list[Task] = []
        for index, node in enumerate(scanned.nodes):
            share = self._share(plan, index, homes, plan.actions)
            share = replace(share, documents=self._documents(plan, index, homes))
            if share.changes_anything and not node.gone:
                away = sources_of(share, scanned.union, index)
                started.append(Task(node, tasks.find_obstacles, (node, share, tuple(away))))
        named = [
            replace(obstacle, reason=f"{task.node.label}: {obstacle.reason}")
            for task, obstacles in zip(started, self._engine.run(started), strict=True)
            for obstacle in obstacles
        ]
        return replace(plan, obstacles=tuple(named))

    def write_manifests(
        self,
        slices: Sequence[tuple[SliceFile, Evidence]],
        groups: Mapping[int, tuple[int, ...]],
        world_size: int,
        digests: Mapping[str, Digests],
    ) -> list[str]:
        """Let each node write the manifests of its slices; return the paths of those that were sealed.

        Raises
        ------
        MsRecoverError
            When a manifest cannot be written, or a node is lost.
        """
        scanned = self._known()
        by_node: dict[int, list[tuple[SliceFile, Evidence]]] = {}
        for file, evidence in slices:
            by_node.setdefault(scanned.union.holders[file.path], []).append((file, evidence))
        seals = []
        for index, theirs in by_node.items():
            known = {file.path: digests[file.path] for file, _ in theirs}
            members = {file.rank: groups[file.rank] for file, _ in theirs if file.rank in groups}
            node = scanned.nodes[index]
            seals.append(Task(node, tasks.seal_node, (node, theirs, members, world_size, known)))
        sealed = {path for paths in self._engine.run(seals) for path in paths}
        return [file.path for file, _ in slices if file.path in sealed]

    def _make_roots(self, homes: Mapping[int, int]) -> None:
        """Make the roots of nodes that lost them and get slices."""
        scanned = self._known()
        wanted = [index for index, node in enumerate(scanned.nodes) if node.gone and index in homes.values()]
        lost = [scanned.nodes[index] for index in wanted]
        made = self._engine.run([Task(node, tasks.make_node, (node,)) for node in lost])
        nodes = list(scanned.nodes)
        for index, identity in zip(wanted, made, strict=True):
            nodes[index] = replace(nodes[index], identities=frozenset({identity}))
        self._scanned = replace(scanned, nodes=tuple(nodes))

    def _homes(self, plan: Plan) -> dict[int, int]:
        """Return the nodes of the ranks that a plan writes something for."""
        scanned = self._known()
        named = parse_homes(self._word, scanned.nodes)
        return find_homes(written_ranks(plan), scanned.union, plan.world_size, named)

    def _find_nodes(self) -> tuple[Node, ...]:
        if is_node_url(self.url):
            tree = NodeTree.parse(self.url)
            nodes = find_nodes(self._engine.look(tree.root), tree)
        else:
            nodes = (find_shared(self._engine.look(self.url), self.url, look_at(self.url, {})),)
        for node in nodes:
            _log.info("%s: %d workers%s", node.label, len(node.workers), " and no root" if node.gone else "")
        return nodes

    def _known(self) -> _Scanned:
        if self._scanned is None:
            self.scan()
        assert self._scanned is not None
        return self._scanned


def _shares(files: Sequence[SliceFile], workers: int) -> list[list[SliceFile]]:
    """Deal slices out to the workers of a node, each about as many bytes."""
    shares: list[list[SliceFile]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for file in files:
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    return [share for share in shares if share]


def _outcome_of(node: Node, share: Plan, end: Outcome | Exception) -> Outcome:
    if isinstance(end, Outcome):
        return outcome_at(node.label, end)
    if isinstance(end, MsRecoverError):
        return lost_outcome(node.label, share, end)
    raise end


def _compare(file: SliceFile, double: Double, contents: Contents, found: Contents, union: Union) -> None:
    """Raise a ContradictionError when a slice and its double on another node differ."""
    one = file.manifest.digests if file.manifest is not None else contents.digests.get(file.path)
    other = double.file.manifest.digests if double.file.manifest is not None else found.digests.get(file.path)
    if one is not None and other is not None and one.file != other.file:
        raise contradiction(union, file.path, double.node)


def _named_files(options: ScanOptions) -> Inventory:
    """Return the rank lists and strategy files that options name, which lie on this host; errors as for a scan."""
    if not options.group_info and not options.strategy:
        return Inventory(root="")
    own = ScanOptions(group_info=options.group_info, strategy=options.strategy, may_be_empty=True)
    with tempfile.TemporaryDirectory(prefix="ms_recover-") as empty:
        inventory = scan(empty, own)
    return Inventory(root="", group_files=inventory.group_files, strategy_files=inventory.strategy_files)
