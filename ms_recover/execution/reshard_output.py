"""The folder that a reshard writes: it belongs to one plan, and holds nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator

import xxhash

from ms_recover.errors import UsageError
from ms_recover.execution.manifests import TOOL
from ms_recover.execution.writable import check_writable, refuse_inside
from ms_recover.file_names import MANIFEST_SUFFIX, RECOVERY_LOG_NAME, RESHARD_NAME, TEMPORARY_SUFFIX
from ms_recover.formats.reading import read_small
from ms_recover.model.reshard import ReshardPlan
from ms_recover.stores.atomic import write_small
from ms_recover.stores.directories import make_directories
from ms_recover.system_errors import explained


def check_folder(root: str, output: str) -> None:
    """Check what can be said of an output before there is a plan; errors as for `check_output`."""
    refuse_inside(root, output)
    if not os.path.lexists(output):
        return
    if not os.path.isdir(output):
        raise UsageError(f"{output} is no folder: name another one")
    if os.path.lexists(os.path.join(output, RESHARD_NAME)):
        return
    other = next((name for name in _files(output) if not name.endswith(TEMPORARY_SUFFIX)), None)
    if other is not None:
        raise UsageError(f"{output} holds {other}, which no reshard wrote: name an empty folder, or a new one")


def check_output(plan: ReshardPlan, documents: Collection[str] = ()) -> None:
    """Check that the output may be written: outside the tree, and without files of anything but this plan.

    Raises
    ------
    UsageError
        When it lies in the tree, holds other files, or was begun by another plan.
    """
    check_folder(plan.root, plan.output)
    if not os.path.lexists(os.path.join(plan.output, RESHARD_NAME)):
        return
    if _marked(plan.output) != identity_of(plan):
        raise UsageError(
            f"{plan.output} holds what another reshard wrote or began: name another folder, or remove that one"
        )
    if documents:
        known = {file.target for file in plan.files} | set(documents) | {RESHARD_NAME, RECOVERY_LOG_NAME}
        known |= {file.target + MANIFEST_SUFFIX for file in plan.files}
        found = _files(plan.output)
        odd = next((name for name in found if name not in known and not name.endswith(TEMPORARY_SUFFIX)), None)
        if odd is not None:
            raise UsageError(f"{plan.output} holds {odd}, which is no part of this reshard: move it away")


def prepare_output(plan: ReshardPlan, documents: Collection[str]) -> None:
    """Make the folder, and write down whose it is before anything else lies there; errors as for `check_output`."""
    check_output(plan, documents)
    with explained("making", plan.output):
        make_directories(plan.output)
    path = os.path.join(plan.output, RESHARD_NAME)
    if not os.path.lexists(path):
        record = {"tool": TOOL, "root": plan.root, "step": str(plan.step), "plan": identity_of(plan)}
        write_small(path, (json.dumps(record, indent=1) + "\n").encode(), owner_of=plan.output)


def foresee_output(plan: ReshardPlan, documents: Collection[str]) -> None:
    """Raise the errors of `prepare_output` as far as they can be seen without writing."""
    check_output(plan, documents)
    check_writable(os.path.join(plan.output, RESHARD_NAME))


def identity_of(plan: ReshardPlan) -> str:
    """Return a digest of everything that decides the bytes of the output."""
    digest = xxhash.xxh3_128()
    digest.update(
        repr((plan.root, plan.form, plan.step, plan.run_id, plan.full, plan.strategies, plan.common)).encode()
    )
    for source in plan.sources:
        digest.update(repr((source.replica, source.digests)).encode())
    for transfer in plan.transfers:
        parts = [(cell, part.box) for cell, part in transfer.parts.items()]
        digest.update(repr((transfer.dtype, transfer.shape, transfer.regions, transfer.cells, parts)).encode())
    digest.update(repr((plan.parameters, plan.files)).encode())
    return digest.hexdigest()


def _marked(output: str) -> str | None:
    path = os.path.join(output, RESHARD_NAME)
    try:
        found = json.loads(read_small(path, "the record of a reshard"))
    except ValueError:
        return None
    return found.get("plan") if isinstance(found, dict) else None


def _files(output: str) -> Iterator[str]:
    """Yield what lies below a folder, but for directories, by its path there."""

    def refuse(error: OSError) -> None:
        raise error

    with explained("reading", output):
        for folder, directories, names in os.walk(output, onerror=refuse):
            links = [name for name in directories if os.path.islink(os.path.join(folder, name))]
            for name in (*names, *links):
                yield os.path.relpath(os.path.join(folder, name), output)
