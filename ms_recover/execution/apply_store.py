"""Carry out a plan for a tree in a store: each file is made in a local folder, sent, read back and committed.

The actions are those of a local tree. Nothing is locked: a store has no locks, so one recovery at a time is up to the
operator; a target that is not as the plan saw it is not replaced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import xxhash

from ms_recover.errors import MissingInputError, StorageError, UsageError, VerificationError
from ms_recover.execution.apply import (
    check_recoverable,
    finish_outcome,
    run_all,
    run_one,
    set_aside,
    write_documents,
    write_small,
)
from ms_recover.execution.compose import complete_slice, foresee_slice
from ms_recover.execution.context import ActionContext
from ms_recover.execution.documents import write_document
from ms_recover.execution.manifests import manifest_in
from ms_recover.execution.meta_files import write_meta
from ms_recover.execution.rank_lists import write_planned
from ms_recover.execution.set_aside import give_up, keep_outvoted
from ms_recover.execution.strategy_files import write_strategy_file
from ms_recover.execution.writable import check_writable
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX, STRATEGY_NAME
from ms_recover.formats.plan_paths import check_names
from ms_recover.model.actions import FileState
from ms_recover.model.compose import ComposeAction
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Action, MetaWrite, Plan
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.local_store import LocalFile, LocalStore
from ms_recover.stores.store import Stop, Store, never
from ms_recover.stores.urls import open_store
from ms_recover.system_errors import explained

_SPARE_BYTES = 64 << 20
"""Room beside the slices: manifests, and what others write meanwhile."""


def apply_at_url(
    plan: Plan,
    jobs: int,
    verify: bool,
    ranks: Collection[int] | None,
    progress: Callable[[int], None] | None,
    partial: bool,
    sources: Mapping[str, Store] | None,
    scratch: str | None,
    stop: Stop = never,
) -> Outcome:
    """Carry out a plan whose root is a URL; arguments, outcome and errors are those of `ms_recover.api.apply`."""
    with open_store(plan.root) as store:
        step = check_recoverable(plan.considered if partial else plan.step, plan.root)
        check_names(plan)
        planned = plan.partials if plan.step is None else plan.actions
        actions = [action for action in planned if ranks is None or action.rank in ranks]
        jobs = jobs_with_room([action.bytes for action in actions], jobs, scratch)
        context = ActionContext(
            root="",
            elsewhere=_Everywhere(sources or {}, store),
            step=step,
            world_size=plan.world_size,
            run_id=plan.run_id,
            lost=frozenset(one.rank for one in plan.ranks if one.state == "lost"),
            verify=verify,
            progress=progress or (lambda count: None),
            stop=stop,
        )

        def run(action: Action, shared: ActionContext) -> ActionResult:
            return _run_in_scratch(action, shared, store, scratch)

        results, problems = run_all(actions, context, jobs, run)
        failed = {result.rank for result in results if result.status == "failed"}
        wanted = {rank.rank for rank in plan.ranks if rank.rank not in failed and (ranks is None or rank.rank in ranks)}
        noted = {note.path for note in plan.notes}

        def made(target: str, needs: Sequence[str], write: Callable[[str], bool]) -> bool:
            with _folder(scratch) as root:
                for path in {target, *needs}:
                    _bring(store, path, root, empty=path not in (target, *needs[:1]))
                os.makedirs(os.path.dirname(os.path.join(root, target)), exist_ok=True)
                return write(root) and _send(store, root, target, verify) is not None

        def meta_needs(one: MetaWrite) -> tuple[str, ...]:
            return ("", os.path.join(os.path.dirname(one.target), one.file))

        groups, others = write_small(
            [one for one in plan.group_files if one.rank in wanted],
            lambda one: made(one.target, (), lambda root: write_planned(root, one, damaged=one.target in noted)),
            jobs,
        )
        metas, wrong = write_small(
            [one for one in plan.meta_files if one.rank in wanted],
            lambda one: made(one.target, meta_needs(one), lambda root: write_meta(root, one, step)),
            jobs,
        )
        others += wrong
        strategies, wrong = write_small(
            [one for one in plan.strategy_files if one.rank in wanted],
            lambda one: made(
                one.target, (), lambda root: write_strategy_file(root, one, (sources or {}).get(one.source, store))
            ),
            jobs,
        )
        others += wrong
        aside: list[str] = []
        if not failed and not others and plan.step is not None:
            own = [one for one in plan.set_aside if ranks is None or one.rank in ranks]
            aside, others = set_aside(own, lambda one: give_up(store, one), jobs)
        documents: list[str] = []
        if not failed and not others and ranks is None:
            documents, others = write_documents(
                plan.documents, lambda one: made(one.target, (), lambda root: write_document(root, one))
            )
        return finish_outcome(
            plan, step, results, problems, others, groups, documents, metas, strategies, aside, verify
        )


def complete_in_store(
    store: Store, target: Store, path: str, action: ComposeAction, *, verify: bool, dry_run: bool = False
) -> ActionResult:
    """Write a full slice, put together of slices of a store, as a file of a store; with `dry_run` write nothing.

    Raises
    ------
    UsageError
        When there is a file of that path.
    MsRecoverError
        As `ms_recover.execution.compose.complete_slice`.
    """
    if _state(target, path) is not None:
        raise UsageError(f"{target.url}/{path} is there already: move it away, or name another file with --output")
    jobs_with_room([action.bytes], 1, None)
    target.create(path)  # refuses a store that is only read, before anything is made
    with _folder(None) as root:
        if dry_run:
            if isinstance(target, LocalStore):
                check_writable(target.path(path), action.bytes)
            return foresee_slice(root, action, elsewhere=_Everywhere({}, store))
        result = complete_slice(root, action, verify=verify, elsewhere=_Everywhere({}, store))
        _send(target, root, action.target, verify, path)
    return result


class _Everywhere(Mapping[str, Store]):
    """The store of every slice: the one that the plan names, otherwise that of the tree."""

    def __init__(self, named: Mapping[str, Store], store: Store) -> None:
        self._named, self._store = named, store

    def __getitem__(self, path: str) -> Store:
        return self._named.get(path, self._store)

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def jobs_with_room(sizes: Sequence[int], jobs: int, scratch: str | None) -> int:
    """Return how many of these files can be made at a time in the scratch folder, at most `jobs`.

    Raises
    ------
    StorageError
        When there is no room for the largest, or no such folder.
    """
    folder = scratch or tempfile.gettempdir()
    with explained("looking at", folder, "name another folder with --scratch"):
        free = shutil.disk_usage(folder).free - _SPARE_BYTES
    largest = sorted(sizes, reverse=True)
    fitting = max((count for count in range(1, jobs + 1) if sum(largest[:count]) <= free), default=0)
    if largest and not fitting:
        raise StorageError(
            f"{folder} has {max(free, 0):,} bytes of room, and a slice of {largest[0]:,} bytes is made there before it "
            "is sent: name another folder with --scratch or TMPDIR"
        )
    return max(1, fitting)


@contextmanager
def _folder(scratch: str | None) -> Iterator[str]:
    with explained("making a folder in", scratch or tempfile.gettempdir(), "name another folder with --scratch"):
        folder = tempfile.TemporaryDirectory(prefix="ms_recover.", dir=scratch)
    with folder as path:
        yield os.path.realpath(path)


def _run_in_scratch(action: Action, shared: ActionContext, store: Store, scratch: str | None) -> ActionResult:
    with _folder(scratch) as root:
        before = _state(store, action.target)
        _check_target(store, action.target, action.replaces, before)
        manifest = manifest_in(store, action.target) if before is None or not _fits(store, action.target) else None
        if manifest is not None:  # what the lost slice left proves its bytes
            _bring(store, action.target + MANIFEST_SUFFIX, root)
        _bring(store, os.path.join(os.path.dirname(action.target), STRATEGY_NAME), root)
        os.makedirs(os.path.dirname(os.path.join(root, action.target)), exist_ok=True)
        result = run_one(replace(action, replaces=None, set_aside=None), replace(shared, root=root))
        _check_target(store, action.target, action.replaces, _state(store, action.target))
        if action.set_aside is not None:
            result = replace(result, set_aside=keep_outvoted(store, action.target))
        _send(store, root, action.target, shared.verify)
        for beside in (STATE_SUFFIX, MANIFEST_SUFFIX):
            if os.path.exists(os.path.join(root, action.target) + beside):
                _send(store, root, action.target + beside, shared.verify)
    return result


def _state(store: Store, path: str) -> FileState | None:
    try:
        return store.stat(path).state
    except MissingInputError:
        return None


def _check_target(store: Store, path: str, expected: FileState | None, found: FileState | None) -> None:
    if found != expected:
        raise VerificationError(
            f"{store.url}/{path} appeared or changed after the plan was made; nothing was replaced: plan again"
        )


def _fits(store: Store, path: str) -> bool:
    """Whether a slice holds the bytes that its manifest names: the plan has rejected it for another reason."""
    manifest = manifest_in(store, path)
    if manifest is None:
        return False
    with store.open(path) as file:
        return file.size == manifest.size and file.digest(never) == manifest.digests.file


def _bring(store: Store, path: str, root: str, *, empty: bool = False) -> None:
    """Bring a file that is there into the scratch folder, with its time; with `empty` only its name."""
    if not path:
        return
    try:
        opened = store.open(path)
    except MissingInputError:
        return
    local = os.path.join(root, path)
    with opened, explained("writing", local):
        os.makedirs(os.path.dirname(local), exist_ok=True)
        with open(local, "wb") as file:
            if not empty:
                opened.copy_to(file.fileno(), never, lambda count: None)
        mtime_ns = store.stat(path).mtime_ns
        os.utime(local, ns=(mtime_ns, mtime_ns))
        opened.check_unchanged()


def _send(store: Store, root: str, path: str, verify: bool, to: str | None = None) -> str:
    """Send a file of the scratch folder, read it back, and remove it here; return its digest."""
    to, local = to or path, os.path.join(root, path)
    digest = xxhash.xxh3_128()
    with LocalFile(local) as file, store.create(to) as new:

        def take(piece: memoryview) -> None:
            digest.update(piece)
            new.write(piece)

        file.read_range(0, file.size, take, never)
        form = file.form()
        new.commit(FileForm(form.mode, form.mtime_ns))
    if verify:
        with store.open(to) as written:
            if written.digest(never) != name_digest(digest):
                raise VerificationError(
                    f"{store.url}/{to} does not give back what was written there: check the store, then plan again"
                )
    os.unlink(local)
    return name_digest(digest)
