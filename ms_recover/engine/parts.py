"""The part of a plan over several nodes that each of them carries out (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory
from ms_recover.model.iterations import Document
from ms_recover.model.plan import Action, DocumentWrite, Plan, RankVerdict
from ms_recover.planning.tree.rank_verdicts import join_verdicts


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which node has which files, and where each rank belongs; nodes by index."""

    names: tuple[str, ...]
    inventories: tuple[Inventory, ...]
    holders: Mapping[str, int]
    """Of slices and strategy files, by path."""
    homes: Mapping[int, int]
    """Of the ranks that something is written for."""


def written_ranks(plan: Plan) -> set[int]:
    """Return the ranks that a plan writes something for."""
    ranks = {action.rank for action in (*plan.actions, *plan.partials)}
    ranks |= {write.rank for write in plan.group_files} | {write.rank for write in plan.meta_files}
    return ranks | {write.rank for write in plan.strategy_files}


def with_places(plan: Plan, layout: Layout) -> Plan:
    """Return a plan whose verdicts name the nodes that write, and those that they fetch from."""

    def place(verdict: RankVerdict) -> RankVerdict:
        if verdict.verdict not in ("copy", "compose") or verdict.rank not in layout.homes:
            return verdict
        home = layout.homes[verdict.rank]
        source = layout.holders.get(verdict.source or "", home)
        fetched = f", fetched from {layout.names[source]}" if source != home else ""
        return replace(verdict, reason=f"{verdict.reason}; at {layout.names[home]}{fetched}")

    verdicts = []
    for verdict in plan.ranks:
        files = tuple(place(one) for one in verdict.files)
        verdicts.append(join_verdicts(verdict.rank, files))
    return replace(plan, ranks=tuple(verdicts))


def part_of(plan: Plan, node: int, actions: Sequence[Action], layout: Layout, *, last: bool) -> Plan:
    """Return the part of a plan that a node carries out, of some actions; the `last` part has all other files."""
    states = {file.path: FileState(file.size, file.mtime_ns) for file in layout.inventories[node].slices}

    def here(rank: int) -> bool:
        return layout.homes.get(rank) == node

    def adapt(action: Action) -> Action:
        """Let it replace what this node has under its target's name, whatever other nodes have."""
        elsewhere = layout.holders.get(action.target, node) != node
        if not elsewhere:
            return action
        there = states.get(action.target)
        return replace(action, replaces=there, set_aside=action.set_aside if there is not None else None)

    own = [adapt(action) for action in actions if here(action.rank)]
    return replace(
        plan,
        actions=tuple(own) if plan.step is not None else (),
        partials=tuple(own) if plan.step is None else (),  # type: ignore[arg-type]
        group_files=tuple(write for write in plan.group_files if last and here(write.rank)),
        meta_files=tuple(write for write in plan.meta_files if last and here(write.rank)),
        strategy_files=tuple(write for write in plan.strategy_files if last and here(write.rank)),
        set_aside=tuple(replace(one, state=states[one.path]) for one in plan.set_aside if last and one.path in states),
        documents=(),
    )


def sources_of(part: Plan, node: int, holders: Mapping[str, int]) -> dict[str, int]:
    """Return the nodes of the files that a part reads and that lie elsewhere, by path."""
    paths = {replica.path for action in (*part.actions, *part.partials) for replica in action.replicas}
    paths |= {write.source for write in part.strategy_files}
    return {path: holders[path] for path in sorted(paths) if holders.get(path, node) != node}


def documents_of(plan: Plan, node: int, layout: Layout, whole: Inventory) -> tuple[DocumentWrite, ...]:
    """Return the documents of the planned iteration that a node lacks, or that the plan writes; the tracker last.

    MindFormers looks for them on every node. The `whole` inventory is that of all nodes.
    """
    if plan.step is None or not plan.step.is_iteration:
        return ()
    here = _documents(layout.inventories[node])
    tracker = whole.tracker.path if whole.tracker is not None else None
    writes = {write.target: replace(write, replaces=_state(here.get(write.target))) for write in plan.documents}
    step = next((one for one in whole.iterations if one.step == plan.step), None)
    needed: list[Document[Any]] = [] if step is None else [step.metadata, step.common]
    if whole.tracker is not None and whole.tracker.value == plan.step.step:
        needed.append(whole.tracker)
    for document in needed:
        there = here.get(document.path)
        if document.value is not None and document.path not in writes and (there is None or there.value is None):
            writes[document.path] = DocumentWrite(
                document.path, document.value, _state(there), "this node has none that can be read"
            )
    return tuple(sorted(writes.values(), key=lambda write: (write.target == tracker, write.target)))


def takes_part(node: int, layout: Layout) -> bool:
    """Whether a node has ranks, or gets some."""
    return bool(layout.inventories[node].ranks) or node in set(layout.homes.values())


def _documents(inventory: Inventory) -> dict[str, Document[Any]]:
    found: list[Document[Any]] = [one for it in inventory.iterations for one in (it.metadata, it.common)]
    if inventory.tracker is not None:
        found.append(inventory.tracker)
    return {document.path: document for document in found}


def _state(document: Document[Any] | None) -> FileState | None:
    return None if document is None else document.state
