"""The share of a plan over several nodes that each of them carries out, and their outcomes as one (pure)."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ms_recover.errors import MsRecoverError, UnrecoverableError
from ms_recover.file_names import OUTVOTED_SUFFIX, STRATEGY_NAME, aside_name
from ms_recover.joint.homes import lives_here
from ms_recover.joint.union import HERE, Union, documents_at
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.inventory import GroupFile, MetaFile, Note, SliceFile, StrategyFile
from ms_recover.model.iterations import Document
from ms_recover.model.manifest import Digests
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Action, DocumentWrite, GroupWrite, MetaWrite, Plan, RankVerdict, StrategyWrite
from ms_recover.planning.tree.rank_verdicts import join_verdicts


def share_of(
    plan: Plan, union: Union, node: int, lives: Callable[[int], bool], wave: Sequence[Action] | None = None
) -> Plan:
    """Return what a node carries out of a plan: what is written for the ranks that live there.

    Of the actions it has those of a `wave`, by default of all, and no documents: `documents_of` has them.
    """
    files = {file.path: file for file in union.at(node).slices}
    partial = plan.step is None

    def adapt(action: Action) -> Action:
        """Let it replace what this node has under its target's name, whatever other nodes have."""
        if union.holders.get(action.target, node) == node:
            return action
        there = files.get(action.target)
        sound = there is not None and there.problem is None
        aside = action.set_aside if sound else _kept_as(there)
        return replace(action, replaces=_file_state(there), set_aside=aside)

    actions = (plan.partials if partial else plan.actions) if wave is None else wave
    own = tuple(adapt(action) for action in actions if lives(action.rank))
    return replace(
        plan,
        actions=() if partial else own,
        partials=own if partial else (),  # type: ignore[arg-type]
        group_files=tuple(write for write in plan.group_files if lives(write.rank)),
        meta_files=tuple(write for write in plan.meta_files if lives(write.rank)),
        strategy_files=tuple(write for write in plan.strategy_files if lives(write.rank)),
        set_aside=tuple(
            replace(one, state=_file_state(files[one.path])) for one in plan.set_aside if one.path in files
        ),
        documents=(),
    )


def _file_state(file: SliceFile | None) -> FileState | None:
    return None if file is None else FileState(file.size, file.mtime_ns)


def _kept_as(there: SliceFile | None) -> str | None:
    """Return where a slice is kept that is replaced though nothing shows that it is wrong."""
    return aside_name(there.path, OUTVOTED_SUFFIX) if there is not None and there.failing else None


def sources_of(share: Plan, union: Union, node: int) -> dict[str, int]:
    """Return the nodes of the files that a share reads and that lie elsewhere, by path."""
    paths = {replica.path for action in (*share.actions, *share.partials) for replica in action.replicas}
    paths |= {write.source for write in share.strategy_files}
    return {path: union.holders[path] for path in sorted(paths) if union.holders.get(path, node) != node}


def documents_of(plan: Plan, union: Union, node: int) -> tuple[DocumentWrite, ...]:
    """Return the documents that a plan writes, and those of its iteration that a node lacks; the tracker last.

    MindFormers looks for them on every node.
    """
    there, tracker = documents_at(union.at(node)), union.inventory.tracker
    writes = {write.target: replace(write, replaces=_state(there, write.target)) for write in plan.documents}
    for step in union.inventory.iterations:
        if step.step != plan.step:
            continue
        needed: list[Document[Any]] = [step.metadata, step.common]
        if tracker is not None and tracker.value == step.step.step:
            needed.append(tracker)
        for document in needed:
            path = document.path
            own = there.get(path)
            if document.value is not None and path not in writes and (own is None or own.value is None):
                writes[path] = DocumentWrite(
                    path,
                    document.value,
                    _state(there, path),
                    "this node has none that can be read",
                    (f"the document at {union.name(union.lent[path])}",),
                )
    return tuple(sorted(writes.values(), key=lambda write: tracker is not None and write.target == tracker.path))


def _state(documents: Mapping[str, Document[Any]], path: str) -> FileState | None:
    return documents[path].state if path in documents else None


def written_ranks(plan: Plan) -> set[int]:
    """Return the ranks that a plan writes something for."""
    ranks = {action.rank for action in (*plan.actions, *plan.partials)}
    ranks |= {write.rank for write in plan.group_files} | {write.rank for write in plan.meta_files}
    return ranks | {write.rank for write in plan.strategy_files}


def with_homes(plan: Plan, union: Union, homes: Mapping[int, int]) -> Plan:
    """Return a plan whose verdicts name the nodes that write, and those that they fetch from."""

    def name(verdict: RankVerdict) -> RankVerdict:
        if verdict.verdict not in ("copy", "compose") or verdict.rank not in homes:
            return verdict
        home = homes[verdict.rank]
        source = union.holders.get(verdict.source or "", home)
        fetched = f", fetched from {union.name(source)}" if source != home else ""
        return replace(verdict, reason=f"{verdict.reason}; at {union.name(home)}{fetched}")

    return _with_verdicts(plan, name)


def _with_verdicts(plan: Plan, change: Callable[[RankVerdict], RankVerdict]) -> Plan:
    ranks = (join_verdicts(verdict.rank, tuple(change(one) for one in verdict.files)) for verdict in plan.ranks)
    return replace(plan, ranks=tuple(ranks))


def share_here(plan: Plan, union: Union, ranks: Collection[int] | None, digests: Mapping[str, Digests]) -> Plan:
    """Return the share of this node, with all that ranks which live here have on other nodes alone.

    The `ranks` that live here are by default those that have files not only on other nodes, and in a tree of iterations
    all: MindFormers loads none that lacks a file. `digests` are those of the slices that were read, by path.
    """
    whole = ranks is None and plan.step is not None and plan.step.is_iteration
    files = {file.path: file for file in union.inventory.slices}
    own = {file.path: file for file in union.here.slices}
    brought: list[CopyAction] = []

    def lives(rank: int) -> bool:
        return whole or lives_here(union, rank, ranks)

    def change(verdict: RankVerdict) -> RankVerdict:
        here = lives(verdict.rank)
        path, source = verdict.path or "", verdict.source or ""
        if here and verdict.verdict == "keep" and path in union.holders and plan.step is not None:
            action = _bring(verdict, files[path], union, own.get(path), digests)
            brought.append(action)
            copied = replace(verdict, state="missing", verdict="copy", reason=action.reason)
            return replace(copied, source_rank=verdict.rank, source=path)
        if here and source in union.holders:
            return replace(verdict, reason=f"{verdict.reason}; fetched from {union.name(union.holders[source])}")
        if not here and verdict.verdict != "keep":
            return replace(verdict, reason=f"{verdict.reason}; it lives elsewhere: recover it there")
        return verdict

    named = _with_verdicts(replace(plan, ranks=tuple(_denied(one, union.denied) for one in plan.ranks)), change)
    share = share_of(named, union, HERE, lives)
    small = [file for file in union.small if plan.step is not None and lives(file.rank or 0)]
    return replace(
        share,
        actions=tuple(sorted([*share.actions, *brought], key=lambda action: action.rank)),
        group_files=(
            *share.group_files,
            *(
                GroupWrite(file.rank, file.path, file.info.restore_ranks)
                for file in small
                if isinstance(file, GroupFile) and file.rank is not None and file.place and file.info
            ),
        ),
        meta_files=(
            *share.meta_files,
            *(
                MetaWrite(rank=file.rank, target=file.path, file=file.file, replaces=None, reason="this node has none")
                for file in small
                if isinstance(file, MetaFile) and file.step == plan.step
            ),
        ),
        strategy_files=(
            *share.strategy_files,
            *(
                StrategyWrite(file.rank, file.path, file.rank, file.path, file.digest)
                for file in small
                if isinstance(file, StrategyFile) and file.digest and _is_beside_slices(file.path)
            ),
        ),
        documents=documents_of(plan, union, HERE),
    )


def _is_beside_slices(path: str) -> bool:
    """Whether a strategy file lies below the root and not where only its operator named it."""
    return posixpath.basename(path) == STRATEGY_NAME and not posixpath.isabs(path)


def _denied(verdict: RankVerdict, denied: Mapping[int, Note]) -> RankVerdict:
    """Return the verdict of a rank that has no source because a server may not list its directory."""
    if verdict.verdict != "unrecoverable" or verdict.state != "missing" or verdict.rank not in denied:
        return verdict
    note = denied[verdict.rank]
    return replace(verdict, state="unreadable", reason=f"{note.path}: {note.reason}; {verdict.reason}")


def _bring(
    verdict: RankVerdict, file: SliceFile, union: Union, there: SliceFile | None, read: Mapping[str, Digests]
) -> CopyAction:
    """Return the copy of a rank's own slice from another node, over what lies `there`, in its place on this one."""
    digests = read.get(file.path) or (file.manifest.digests if file.manifest is not None else None)
    replica = Replica(
        file.rank, file.path, FileState(file.size, file.mtime_ns), digests.file if digests is not None else None
    )
    return CopyAction(
        rank=file.rank,
        replica=replica,
        target=file.path,
        replaces=_file_state(there),
        reason=f"its own slice is at {union.name(union.holder(file.path))}; {verdict.reason}",
        evidence=verdict.evidence or "structure",
        group=file.manifest.group if file.manifest is not None else (file.rank,),
        set_aside=_kept_as(there),
    )


def outcome_at(label: str, done: Outcome) -> Outcome:
    """Return the outcome of a node, with its name in each error."""
    results = tuple(
        replace(one, error=f"{label}: {one.error}") if one.error is not None else one for one in done.results
    )
    return replace(done, results=results, errors=tuple(f"{label}: {error}" for error in done.errors))


def lost_outcome(label: str, part: Plan, error: MsRecoverError) -> Outcome:
    """Return the outcome of a node that could not be asked to the end: its actions have failed."""
    why = f"{label}: {error}"
    step = part.step or part.considered
    assert step is not None
    failed = tuple(ActionResult.failed(action, why) for action in (part.actions or part.partials))
    return Outcome(part.root, step, failed, (), True, () if failed else (why,), error.exit_code)


def joined(plan: Plan, planned: Sequence[Action], outcomes: Sequence[Outcome], verify: bool) -> Outcome:
    """Return the outcome of all nodes as that of one."""
    results = {result.target: result for outcome in outcomes for result in outcome.results}
    step = plan.step or plan.considered
    assert step is not None
    codes = [outcome.exit_code for outcome in outcomes]
    return Outcome(
        root=plan.root,
        step=step,
        results=tuple(results[action.target] for action in planned),
        group_files=tuple(sorted(path for outcome in outcomes for path in outcome.group_files)),
        verified=verify,
        errors=tuple(error for outcome in outcomes for error in outcome.errors),
        exit_code=max([*codes, UnrecoverableError.exit_code if plan.step is None else 0]),
        partial=plan.step is None,
        rejected_steps=plan.rejected_steps,
        meta_files=tuple(sorted(path for outcome in outcomes for path in outcome.meta_files)),
        strategy_files=tuple(sorted(path for outcome in outcomes for path in outcome.strategy_files)),
        set_aside=tuple(sorted({path for outcome in outcomes for path in outcome.set_aside})),
    )
