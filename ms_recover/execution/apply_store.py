"""Carry out a plan for a tree in a store: each file is made in a local folder, sent, read back and committed.

The actions are those of a local tree. Nothing is locked: a store has no locks, so one recovery at a time is up to the
operator; a target that is not as the plan saw it is not replaced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import xxhash

from ms_recover.errors import MissingInputError, StorageError, UsageError, VerificationError
from ms_recover.execution.compose import complete_slice, foresee_slice
from ms_recover.execution.context import ActionContext
from ms_recover.execution.documents import write_document
from ms_recover.execution.manifests import manifest_in
from ms_recover.execution.meta_files import write_meta
from ms_recover.execution.phases import ApplyOptions, Place, carry_out, run_one
from ms_recover.execution.rank_lists import write_planned
from ms_recover.execution.set_aside import give_up, keep_outvoted
from ms_recover.execution.strategy_files import write_strategy_file
from ms_recover.execution.writable import check_writable
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX, STRATEGY_NAME
from ms_recover.formats.plan_paths import check_names
from ms_recover.model.actions import FileState
from ms_recover.model.compose import ComposeAction
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Action, DocumentWrite, GivenUpSlice, GroupWrite, MetaWrite, Plan, StrategyWrite
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.local_store import LocalFile, LocalStore
from ms_recover.stores.store import Store, never
from ms_recover.stores.urls import open_store
from ms_recover.system_errors import explained

_SPARE_BYTES = 64 << 20
"""Room beside the slices: manifests, and what others write meanwhile."""


def apply_at_url(plan: Plan, options: ApplyOptions) -> Outcome:
    """Carry out a plan whose root is a URL; outcome and errors are those of `ms_recover.api.apply`."""
    with open_store(plan.root) as store:
        step = options.step_of(plan)
        check_names(plan)
        sizes = [action.bytes for action in options.actions_of(plan)]
        options = replace(options, jobs=jobs_with_room(sizes, options.jobs, options.scratch))
        context = ActionContext(
            root="",
            elsewhere=_Everywhere(options.sources, store),
            step=step,
            world_size=plan.world_size,
            run_id=plan.run_id,
            lost=frozenset(rank.rank for rank in plan.ranks if rank.state == "lost"),
            verify=options.verify,
            progress=options.progress,
            stop=options.stop,
        )
        return carry_out(plan, step, _Store(plan, step, context, store, options.scratch), options)


class _Store(Place):
    """A tree in a store: small files are made in the scratch folder too, over what lies there already."""

    def __init__(self, plan: Plan, step: Step, context: ActionContext, store: Store, scratch: str | None) -> None:
        self.context, self._step, self._store, self._scratch = context, step, store, scratch
        self._noted = {note.path for note in plan.notes}

    def run(self, action: Action, context: ActionContext) -> ActionResult:
        return _run_in_scratch(action, context, self._store, self._scratch)

    def write_rank_list(self, write: GroupWrite) -> bool:
        damaged = write.target in self._noted
        return self._made(write.target, lambda root: write_planned(root, write, damaged=damaged))

    def write_meta(self, write: MetaWrite) -> bool:
        slice_path = os.path.join(os.path.dirname(write.target), write.file)
        return self._made(write.target, lambda root: write_meta(root, write, self._step), beside=slice_path)

    def write_strategy(self, write: StrategyWrite) -> bool:
        source = self.context.source(write.source)
        return self._made(write.target, lambda root: write_strategy_file(root, write, source))

    def write_document(self, write: DocumentWrite) -> bool:
        return self._made(write.target, lambda root: write_document(root, write))

    def set_aside(self, given_up: GivenUpSlice) -> str | None:
        return give_up(self._store, given_up)

    def _made(self, target: str, write: Callable[[str], bool], *, beside: str | None = None) -> bool:
        """Let a file be written in the scratch folder, and send it if it was; `beside` is only looked for by name."""
        with _folder(self._scratch) as root:
            _bring(self._store, target, root)
            if beside is not None:
                _bring(self._store, beside, root, empty=True)
            os.makedirs(os.path.dirname(os.path.join(root, target)), exist_ok=True)
            return write(root) and _send(self._store, root, target, self.context.verify) is not None


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
