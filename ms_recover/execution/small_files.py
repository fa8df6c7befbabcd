"""The small files of a plan: rank lists, strategy files, ``meta.json``, and the documents of MindFormers.

Each is written whole or not at all, and only over what the plan saw. The functions return False when the file is there
already. They raise a VerificationError when something lies there that the plan did not see; a FormatError when the
directory leads elsewhere through a link; otherwise errors of reading and writing.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.destination import Destination
from ms_recover.formats.documents import encode_document
from ms_recover.formats.group_info import decode_group_info, encode_restore_list
from ms_recover.formats.reading import MAX_SMALL_FILE
from ms_recover.formats.resume_records import META_MODE, MOST_META, decode_meta, encode_meta
from ms_recover.model.groups import GroupInfo
from ms_recover.model.plan import DocumentWrite, GroupWrite, MetaWrite, StrategyWrite
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_of
from ms_recover.stores.store import Store

_DOCUMENT_MODE = 0o640
"""Of MindFormers' own."""


def write_rank_list(destination: Destination, write: GroupWrite, *, damaged: bool = False) -> bool:
    """Write a rank list; one that the plan saw `damaged` may be replaced.

    MindSpore writes rank lists as the job's user, so root gives them to the owner of their directory.
    """
    destination.check_place(write.target, write.rank)
    there = _usable_list(destination, write)
    if there is not None and set(there.restore_ranks) == set(write.restore_ranks):
        return False
    replaceable = damaged and there is None
    if destination.lies(write.target) and not replaceable:
        raise _appeared(destination, write.target)
    destination.write_small(write.target, encode_restore_list(tuple(sorted(write.restore_ranks))), 0o600)
    return True


def _usable_list(destination: Destination, write: GroupWrite) -> GroupInfo | None:
    try:
        data = destination.store.read_small(write.target, "a group_info.pb", MAX_SMALL_FILE)
        return decode_group_info(data, write.target, owner=write.rank)
    except MsRecoverError:
        return None


def write_meta(destination: Destination, write: MetaWrite, step: Step) -> bool:
    """Write a ``meta.json``, from which MindFormers' own resume begins; the slice that it names must be there."""
    destination.check_place(write.target, write.rank)
    folder, where = os.path.dirname(write.target), destination.path(write.target)
    there = None
    with suppress(MsRecoverError):
        there = decode_meta(destination.store.read_small(write.target, "a meta.json", MOST_META), where)
    if there == (step, write.file):
        return False
    if there is not None and there[1] != write.replaces:
        raise VerificationError(f"{where} changed after the plan was made; nothing was replaced: plan again")
    if not destination.is_file(os.path.join(folder, write.file)):
        raise VerificationError(f"{where} is to name {write.file}, which is not there: plan again")
    destination.write_small(write.target, encode_meta(step, write.file), META_MODE)
    return True


def write_strategy_file(destination: Destination, write: StrategyWrite, source: Store) -> bool:
    """Copy a strategy file from a store; the same one may lie there, no other."""
    destination.check_place(write.target, write.rank)
    data = source.read_small(write.source, "a strategy file", MAX_SMALL_FILE)
    if digest_of(data) != write.digest:
        raise VerificationError(f"{source.url}/{write.source} changed after the plan was made: plan again")
    if destination.lies(write.target):
        same = destination.is_file(write.target)
        if same and destination.store.read_small(write.target, "a strategy file", MAX_SMALL_FILE) == data:
            return False
        raise _appeared(destination, write.target)
    destination.write_small(write.target, data, 0o600)
    return True


def write_document(destination: Destination, write: DocumentWrite) -> bool:
    """Write a document, after everything that it names; it is durable at once. A link is not replaced."""
    destination.check_place(write.target, None)
    data = encode_document(write.value)
    with suppress(MsRecoverError):  # one that cannot be read holds something else
        if destination.store.read_small(write.target, "a document", len(data)) == data:
            return False
    destination.check_target(write.target, write.replaces)
    destination.write_small(write.target, data, _DOCUMENT_MODE, at_once=True)
    return True


def _appeared(destination: Destination, path: str) -> VerificationError:
    return VerificationError(
        f"{destination.path(path)} appeared or changed after the plan was made; nothing was replaced: plan again"
    )
