"""Slices that are set aside with what lies beside them: nothing that may be right is destroyed.

A slice that is outvoted gets a second name before another one replaces it, so that its own name is never empty. A slice
of a step that is given up is renamed. Either can be repeated after a crash at any moment, and goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, VerificationError
from ms_recover.file_names import BESIDE_SLICE, OUTVOTED_SUFFIX, SUPERSEDED_SUFFIX, aside_name
from ms_recover.model.plan import GivenUpSlice
from ms_recover.stores.store import Store, never
from ms_recover.system_errors import from_os_error

_PARTS = (*BESIDE_SLICE, "")
"""Behind the name of a slice; itself comes last, so that a slice never has a name without its manifest and state."""


def keep_outvoted(store: Store, path: str) -> str | None:
    """Give a slice that is about to be replaced, and what lies beside it, second names; return its path there.

    None when nothing lies there. One that has its second name already, or a copy of its bytes, keeps that.

    Raises
    ------
    MsRecoverError
        Of a store, when it cannot be done; the slice is where it was.
    """
    with explained_whole("nothing was replaced: setting aside", f"{store.url}/{path}"):
        names = _names(store, path)
        if os.path.basename(path) not in names:
            return None
        aside = _free_name(store, path, names, OUTVOTED_SUFFIX)
        for part in _PARTS:
            if _is_in(path + part, names) and not _is_in(aside + part, names):
                store.link(path + part, aside + part)
        store.sync(os.path.dirname(path))
    return aside


def give_up(store: Store, one: GivenUpSlice) -> str | None:
    """Rename a slice of a plan, and what lies beside it; return its path there, None when it was renamed before.

    Raises
    ------
    VerificationError
        When it changed after the plan was made, or appeared.
    MsRecoverError
        As for `supersede`.
    """
    with suppress(MissingInputError):
        if store.stat(one.path).state != one.state:
            raise VerificationError(f"{store.url}/{one.path} changed after the plan was made; it stays: plan again")
    return supersede(store, one.path)


def supersede(store: Store, path: str, hint: str = "move it away yourself") -> str | None:
    """Rename a slice that is given up, and what lies beside it; return its path there.

    None when nothing is left to rename. See `rename_slice` for what a crash leaves.

    Raises
    ------
    MsRecoverError
        Of a store, when it cannot be done; it ends with the `hint`.
    """
    with explained_whole("setting aside", f"{store.url}/{path}", hint):
        names = _names(store, path)
        if not any(_is_in(path + part, names) for part in _PARTS):
            return None
        aside = _free_name(store, path, names, SUPERSEDED_SUFFIX, moved=True)
        rename_slice(store, path, aside)
    return aside


def rename_slice(store: Store, path: str, to: str) -> None:
    """Rename a slice and what lies beside it; errors are those of a store.

    What lies beside it has both names while the slice gets the new one. So after a crash at any moment the slice lies
    whole under one of them, with its manifest and its state, and what is left under the other one is no slice. Repeated
    it goes on where it was.
    """
    names = _names(store, path)
    beside = [part for part in BESIDE_SLICE if _is_in(path + part, names)]
    for part in beside:
        if _is_in(to + part, names) and not _is_same(store, path + part, to + part):  # of a slice that is gone
            store.remove(to + part)
            names.discard(os.path.basename(to + part))
        if not _is_in(to + part, names):
            store.link(path + part, to + part)
    folder = os.path.dirname(path)
    if _is_in(path, names):
        store.sync(folder)
        if _is_in(to, names) and _is_same(store, path, to):  # copied before a crash, not yet removed
            store.remove(path)
        else:
            store.rename(path, to)
        store.sync(folder)
    for part in beside:
        store.remove(path + part)
    store.sync(folder)


def _free_name(store: Store, path: str, names: Collection[str], suffix: str, *, moved: bool = False) -> str:
    """Return the first name that nothing else has; parts of the slice may have it, `moved` there before a crash."""
    here = [part for part in _PARTS if _is_in(path + part, names)]

    def is_free(part: str) -> bool:
        if not _is_in(aside + part, names):
            return True
        if part not in here:  # a slice goes when all that lies beside it has the new name as well
            return moved and (bool(part) or all(_is_in(aside + left, names) for left in here))
        return _is_same(store, path + part, aside + part)

    for number in count(1):
        aside = aside_name(path, suffix, number)
        if all(map(is_free, _PARTS)):
            return aside
    raise AssertionError


def _is_same(store: Store, path: str, other: str) -> bool:
    """Whether two names are of one file, or of files with the same bytes."""
    try:
        one, two = store.stat(path), store.stat(other)
        if one.inode is not None and one.inode == two.inode:
            return True
        if one.size != two.size:
            return False
        with store.open(path) as first, store.open(other) as second:
            return first.digest(never) == second.digest(never)
    except MsRecoverError:  # one cannot be read, so that they are not known to be alike
        return False


def _names(store: Store, path: str) -> set[str]:
    with suppress(MissingInputError):
        return {entry.name for entry in store.list(os.path.dirname(path))}
    return set()  # there is no such folder yet


def _is_in(path: str, names: Collection[str]) -> bool:
    return os.path.basename(path) in names


@contextmanager
def explained_whole(doing: str, name: str, hint: str = "") -> Iterator[None]:
    """Let errors of a block name the act and the slice instead of one of its files; the hint is the next step."""
    try:
        yield
    except MsRecoverError as error:
        if isinstance(error.__cause__, OSError):
            raise from_os_error(error.__cause__, doing, name, hint) from error.__cause__
        kind = MsRecoverError if isinstance(error, FormatError) else type(error)  # no input: what lies there is no file
        raise kind(f"{doing} {name}: {error}{'; ' * bool(hint)}{hint}") from error
