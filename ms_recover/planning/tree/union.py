"""One inventory of several nodes, and the part of a plan over it that one node carries out (pure)."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ms_recover.file_names import OUTVOTED_SUFFIX, STRATEGY_NAME, aside_name
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.inventory import GroupFile, Inventory, MetaFile, Note, SliceFile, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.manifest import Digests
from ms_recover.model.plan import Action, DocumentWrite, GroupWrite, MetaWrite, Plan, RankVerdict, StrategyWrite
from ms_recover.model.steps import Step
from ms_recover.planning.tree.rank_verdicts import join_verdicts

_T = TypeVar("_T")
_Small = GroupFile | StrategyFile | MetaFile


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A document that only other nodes have: its value, the node's number, and what lies here in its place."""

    value: Any
    holder: int
    here: FileState | None


@dataclass(frozen=True)
class Union:
    """The inventories of this node and of those that serve, as one."""

    inventory: Inventory
    """Of all nodes; paths are relative to the root of this node, or of the one that `holders` names."""
    holders: dict[str, int]
    """Index of the served inventory that each slice comes from, by path; slices of this node are not in it."""
    replaced: dict[str, FileState]
    """Damaged slices of this node that have a slice of the same name on another, by path."""
    away: frozenset[int]
    """Ranks with files on other nodes and none here."""
    denied: dict[int, Note]
    """Ranks whose directory on another node that node's server may not list."""
    borrowed: dict[str, Borrowed] = field(default_factory=dict)
    """Documents of iterations that only other nodes have, by path."""
    small: tuple[_Small, ...] = ()
    """Rank lists, strategy files and records of ranks' directories that only other nodes have."""
    failing: frozenset[str] = frozenset()
    """Those of the damaged slices that the device of this node fails to give, so that they need not be wrong."""
    lenders: dict[str, int] = field(default_factory=dict)
    """Index of the served inventory that each strategy file comes from, by path; those of this node are not in it."""

    def lives_here(self, rank: int, ranks: Collection[int] | None) -> bool:
        """Whether a rank's slice belongs on this node: by `ranks`, or because its files are not only on others."""
        return rank in ranks if ranks is not None else rank not in self.away


def unite(local: Inventory, served: Sequence[Inventory], backups: Collection[int] = ()) -> Union:
    """Unite the inventory of this node with those of others, whose roots are the names of the nodes.

    A rank's slice of a step counts once: this node's if its structure is sound, otherwise that of the first node that
    has a sound one. Those of the `served` at the indexes in `backups` are no nodes: no rank lives there.
    """
    inventories = [local, *map(_naming_host, served)]
    by_place: dict[tuple[int, Step, str | None], dict[int, list[SliceFile]]] = {}
    for number, inventory in enumerate(inventories):
        for file in inventory.slices:
            by_place.setdefault((file.rank, file.step, file.kind), {}).setdefault(number, []).append(file)
    slices: dict[str, SliceFile] = {}
    holders: dict[str, int] = {}
    replaced: dict[str, FileState] = {}
    for held in by_place.values():
        best = next((n for n in sorted(held) if any(file.problem is None for file in held[n])), min(held))
        for file in held[best]:
            if slices.setdefault(file.path, file) is file and best:
                holders[file.path] = best - 1
        for file in held.get(0, []) if best else ():
            if slices.setdefault(file.path, file) is not file:
                replaced[file.path] = FileState(file.size, file.mtime_ns)
    groups = {file.path: file for inventory in reversed(inventories) for file in inventory.group_files}
    strategies = {
        (file.path, file.rank): file for inventory in reversed(inventories) for file in inventory.strategy_files
    }
    metas = {meta.path: meta for inventory in reversed(inventories) for meta in inventory.meta_files}
    notes = [Note(f"{inventory.root}/{note.path}", note.reason) for inventory in served for note in inventory.notes]
    denied = {rank: note for inventory in inventories[1:] for rank, note in inventory.denied}
    ranks = {rank for inventory in inventories for rank in inventory.ranks}
    together = Inventory(
        root=local.root,
        ranks=tuple(sorted(ranks)),
        slices=tuple(sorted(slices.values(), key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(groups[path] for path in sorted(groups)),
        strategy_files=tuple(strategies[key] for key in sorted(strategies)),
        notes=(*local.notes, *notes),
        denied=local.denied,
        other_sets=local.other_sets,
        meta_files=tuple(metas[path] for path in sorted(metas)),
        unhealthy=tuple(dict.fromkeys(one for inventory in inventories for one in inventory.unhealthy)),
        seen=local.seen,
    )
    borrowed: dict[str, Borrowed] = {}
    together = _with_documents(together, inventories, borrowed)
    elsewhere = {rank for number, one in enumerate(served) if number not in backups for rank in one.ranks}
    known = {file.path for file in local.group_files} | {file.path for file in local.strategy_files}
    known |= {meta.path for meta in local.meta_files}
    small: list[_Small] = [*together.group_files, *together.strategy_files, *together.meta_files]
    lenders = {file.path: number for number, one in reversed(list(enumerate(served))) for file in one.strategy_files}
    return Union(
        inventory=together,
        holders=holders,
        replaced=replaced,
        away=frozenset(elsewhere - set(local.ranks)),
        denied=denied,
        borrowed=borrowed,
        small=tuple(file for file in small if file.path not in known),
        failing=frozenset(file.path for file in local.slices if file.failing),
        lenders={path: number for path, number in lenders.items() if path not in known},
    )


def _with_documents(together: Inventory, inventories: Sequence[Inventory], borrowed: dict[str, Borrowed]) -> Inventory:
    """Return the inventory with the iterations of all nodes; each document is this node's, where it has one."""
    by_step: dict[Step, list[tuple[int, Iteration]]] = {}
    for number, inventory in enumerate(inventories):
        for one in inventory.iterations:
            by_step.setdefault(one.step, []).append((number, one))
    iterations = []
    for step in sorted(by_step, reverse=True):
        held = by_step[step]
        metadata = _best([(number, one.metadata) for number, one in held], borrowed)
        common = _best([(number, one.common) for number, one in held], borrowed)
        first = held[0][1]
        iterations.append(replace(first, metadata=metadata, common=common))
    trackers = [(number, one.tracker) for number, one in enumerate(inventories) if one.tracker is not None]
    tracker = _best(trackers, borrowed) if trackers else None
    return replace(together, iterations=tuple(iterations), tracker=tracker)


def _best(held: Sequence[tuple[int, Document[_T]]], borrowed: dict[str, Borrowed]) -> Document[_T]:
    number, first = held[0]
    if number == 0 and first.value is not None:
        return first
    found = next(((n, one) for n, one in held if one.value is not None), None)
    if found is None:
        return first
    here = first.state if number == 0 else None
    borrowed[first.path] = Borrowed(found[1].value, found[0] - 1, here)
    return replace(first, value=found[1].value, problem=None, state=here)


def _naming_host(served: Inventory) -> Inventory:
    """Return a served inventory whose denied paths name the node."""
    host = f"at {served.root}"
    return replace(
        served,
        slices=tuple(
            replace(file, problem=f"{file.problem} {host}") if file.denied else file for file in served.slices
        ),
        denied=tuple((rank, Note(note.path, f"{note.reason} {host}")) for rank, note in served.denied),
    )


def cut_down(
    plan: Plan, union: Union, ranks: Collection[int] | None, names: Sequence[str], digests: Mapping[str, Digests]
) -> Plan:
    """Return the part of a plan over a union that this node carries out.

    The `ranks` that live here are by default those that have files not only on other nodes, and in a tree of iterations
    all: MindFormers loads none that lacks a file. `names` are those of the nodes that serve, and `digests` those of the
    slices that were read, by path.
    """
    whole = ranks is None and plan.step is not None and plan.step.is_iteration
    hosts = {path: names[number] for path, number in union.holders.items()}
    files = {file.path: file for file in union.inventory.slices}
    verdicts: list[RankVerdict] = []
    brought: list[CopyAction] = []

    def lives_here(rank: int) -> bool:
        return whole or union.lives_here(rank, ranks)

    def take(verdict: RankVerdict, verdicts: list[RankVerdict]) -> None:
        here = lives_here(verdict.rank)
        if here and verdict.verdict == "keep" and verdict.path in hosts and plan.step is not None:
            action = _bring(verdict, files[verdict.path], union, hosts[verdict.path], digests.get(verdict.path))
            brought.append(action)
            brought_here = replace(verdict, state="missing", verdict="copy", reason=action.reason)
            verdicts.append(replace(brought_here, source_rank=verdict.rank, source=verdict.path))
        elif here and verdict.source in hosts:
            verdicts.append(replace(verdict, reason=f"{verdict.reason}; fetched from {hosts[verdict.source]}"))
        elif not here and verdict.verdict != "keep":
            verdicts.append(replace(verdict, reason=f"{verdict.reason}; it lives elsewhere: recover it there"))
        else:
            verdicts.append(verdict)

    for verdict in (_denied(one, union.denied) for one in plan.ranks):
        files_of_rank: list[RankVerdict] = []
        for one in verdict.files:
            take(one, files_of_rank)
        verdicts.append(join_verdicts(verdict.rank, tuple(files_of_rank)))
    actions = [_on_this_node(action, union) for action in plan.actions if lives_here(action.rank)]
    small = [file for file in union.small if plan.step is not None and lives_here(file.rank or 0)]
    return replace(
        plan,
        actions=tuple(sorted([*actions, *brought], key=lambda action: action.rank)),
        partials=tuple(action for action in plan.partials if lives_here(action.rank)),
        group_files=(
            *(write for write in plan.group_files if lives_here(write.rank)),
            *(
                GroupWrite(file.rank, file.path, file.info.restore_ranks)
                for file in small
                if isinstance(file, GroupFile) and file.rank is not None and file.place and file.info
            ),
        ),
        meta_files=(
            *(write for write in plan.meta_files if lives_here(write.rank)),
            *(
                MetaWrite(rank=file.rank, target=file.path, file=file.file, replaces=None, reason="this node has none")
                for file in small
                if isinstance(file, MetaFile) and file.step == plan.step
            ),
        ),
        strategy_files=(
            *(write for write in plan.strategy_files if lives_here(write.rank)),
            *(
                StrategyWrite(file.rank, file.path, file.rank, file.path, file.digest)
                for file in small
                if isinstance(file, StrategyFile) and file.digest and _is_beside_slices(file.path)
            ),
        ),
        set_aside=tuple(one for one in plan.set_aside if one.path not in union.holders),
        ranks=tuple(verdicts),
        documents=_documents(plan, union, names),
    )


def _is_beside_slices(path: str) -> bool:
    """Whether a strategy file lies below the root and not where only its operator named it."""
    return posixpath.basename(path) == STRATEGY_NAME and not posixpath.isabs(path)


def _documents(plan: Plan, union: Union, names: Sequence[str]) -> tuple[DocumentWrite, ...]:
    """Return the documents to write on this node: also those of the planned step that only other nodes have."""
    planned = {write.target for write in plan.documents}
    step = next((one for one in union.inventory.iterations if one.step == plan.step), None)
    tracker = union.inventory.tracker
    needed = [] if step is None else [step.metadata.path, step.common.path]
    last = [] if step is None or tracker is None or tracker.value != step.step.step else [tracker.path]
    writes = [write for write in plan.documents if tracker is None or write.target != tracker.path]
    for path in (*needed, *last):
        if path in union.borrowed and path not in planned:
            one = union.borrowed[path]
            source = f"the document at {names[one.holder]}"
            writes.append(DocumentWrite(path, one.value, one.here, "this node has none that can be read", (source,)))
    return (*writes, *(write for write in plan.documents if tracker is not None and write.target == tracker.path))


def _denied(verdict: RankVerdict, denied: Mapping[int, Note]) -> RankVerdict:
    """Return the verdict of a rank that has no source because a server may not list its directory."""
    if verdict.verdict != "unrecoverable" or verdict.state != "missing" or verdict.rank not in denied:
        return verdict
    note = denied[verdict.rank]
    return replace(verdict, state="unreadable", reason=f"{note.path}: {note.reason}; {verdict.reason}")


def _on_this_node(action: Action, union: Union) -> Action:
    """Return an action that replaces the file of this node under the target's name, not that of another node."""
    if action.target not in union.holders:
        return action
    return replace(action, replaces=union.replaced.get(action.target), set_aside=_kept_as(action.target, union))


def _kept_as(target: str, union: Union) -> str | None:
    """Return where a slice of this node is kept that is replaced though nothing shows that it is wrong."""
    return aside_name(target, OUTVOTED_SUFFIX) if target in union.replaced and target in union.failing else None


def _bring(verdict: RankVerdict, file: SliceFile, union: Union, host: str, read: Digests | None) -> CopyAction:
    digests = read or (file.manifest.digests if file.manifest is not None else None)
    replica = Replica(
        file.rank, file.path, FileState(file.size, file.mtime_ns), digests.file if digests is not None else None
    )
    return CopyAction(
        rank=file.rank,
        replica=replica,
        target=file.path,
        replaces=union.replaced.get(file.path),
        reason=f"its own slice is at {host}; {verdict.reason}",
        evidence=verdict.evidence or "structure",
        group=file.manifest.group if file.manifest is not None else (file.rank,),
        set_aside=_kept_as(file.path, union),
    )
