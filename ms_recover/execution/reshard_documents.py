"""The small files of an output: strategy files, rank lists, and the index of a full checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from ms_recover.errors import UsageError
from ms_recover.execution.writable import check_writable
from ms_recover.file_names import (
    COMMON_NAME,
    GROUP_INFO_NAME,
    METADATA_NAME,
    STRATEGY_FOLDER,
    STRATEGY_NAME,
    TRACKER_NAME,
    index_name,
)
from ms_recover.formats.common_info import encode_common, encode_tracker
from ms_recover.formats.group_info import encode_restore_list
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.formats.strategy import encode_strategy
from ms_recover.formats.weight_index import encode_index
from ms_recover.model.reshard import ReshardPlan
from ms_recover.stores.atomic import write_small
from ms_recover.stores.directories import DirectorySyncs, make_directory
from ms_recover.stores.threads import in_threads
from ms_recover.system_errors import explained


def document_bytes(plan: ReshardPlan) -> Mapping[str, bytes]:
    """Return the documents of a plan by their paths below the output, in the order in which they are written.

    Strategy files and rank lists lie beside the slices; where ranks share a directory, under names with the rank in
    a folder of their own. A full checkpoint of several files gets the index that loaders of Hugging Face's models
    read. In MindFormers' format it is ``metadata.json`` and ``common.json``, and the tracker last.
    """
    if plan.full:
        return _index(plan)
    if plan.metadata is not None and plan.common is not None:
        folder = os.path.dirname(plan.files[0].target)
        return {
            os.path.join(folder, METADATA_NAME): b"".join(encode_metadata(plan.metadata)),
            os.path.join(folder, COMMON_NAME): encode_common(plan.common),
            TRACKER_NAME: encode_tracker(plan.written_step.step),
        }
    folders = {file.rank: os.path.dirname(file.target) for file in plan.files}
    shared = Counter(folders.values())
    strategies = [encode_strategy(one) for one in plan.strategies]
    found: dict[str, bytes] = {}
    for file in plan.files:
        folder = folders[file.rank]
        if shared[folder] == 1:
            strategy, group = os.path.join(folder, STRATEGY_NAME), os.path.join(folder, GROUP_INFO_NAME)
        else:
            strategy = f"{STRATEGY_FOLDER}/ckpt_strategy_rank_{file.rank}.ckpt"
            group = f"{STRATEGY_FOLDER}/group_info_rank_{file.rank}.pb"
        found[strategy] = strategies[file.stage]
        found[group] = encode_restore_list(file.group)
    return found


def _index(plan: ReshardPlan) -> Mapping[str, bytes]:
    if len(plan.files) < 2:
        return {}
    files = {one.name: file.target for file in plan.files for one, _, _ in plan.parts_of(file)}
    return {index_name(plan.form): encode_index(files, sum(plan.bytes_of(file) for file in plan.files))}


def write_documents(plan: ReshardPlan, documents: Mapping[str, bytes], jobs: int) -> list[str]:
    """Write strategy files, rank lists and the index, each whole; return those that were not there.

    The last one is written when the others are durable: a tracker says that they are there.
    """
    syncs = DirectorySyncs()

    def write(name: str) -> bool:
        path, data = os.path.join(plan.output, name), documents[name]
        if _is_there(path, data):
            return False
        with explained("making the directory of", path):
            make_directory(os.path.dirname(path), plan.output, plan.output, syncs)
        write_small(path, data, owner_of=plan.output, syncs=syncs)
        return True

    written: list[str] = []
    for names in (list(documents)[:-1], list(documents)[-1:]):
        made = in_threads(jobs, write, names)
        written += [name for name, new in zip(names, made, strict=True) if new]
        for error in syncs.sync_all(jobs):
            raise error
    return written


def foresee_documents(plan: ReshardPlan, documents: Mapping[str, bytes]) -> list[str]:
    """Return the documents that `write_documents` would write; errors as there, as far as they can be seen."""
    missing = []
    for name, data in documents.items():
        path = os.path.join(plan.output, name)
        if not _is_there(path, data):
            check_writable(path, len(data))
            missing.append(name)
    return missing


def _is_there(path: str, data: bytes) -> bool:
    """Whether a document is there; a UsageError when another file is."""
    with suppress(OSError):
        with open(path, "rb") as there:
            if there.read(len(data) + 1) == data:
                return True
        raise UsageError(f"{path} is there already and holds something else: move it away, then run this again")
    return False
