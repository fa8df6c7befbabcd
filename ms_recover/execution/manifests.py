"""Write manifests: for recovered slices, and for trees that were saved without them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ms_recover import __version__
from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.execution.elsewhere import Fetching
from ms_recover.file_names import MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.header import read_header
from ms_recover.formats.manifest import encode_manifest, read_manifest
from ms_recover.model.actions import CopyAction, Replica
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.storage.digest import digest_file
from ms_recover.storage.local import write_text

TOOL = f"ms_recover {__version__}"


def write_manifest(slice_path: str, manifest: Manifest, later: set[str] | None = None) -> None:
    """Write a manifest beside its slice, whole or not at all; `later` as for `sync_directory`.

    Raises
    ------
    StorageError
        When it cannot be written.
    """
    path = slice_path + MANIFEST_SUFFIX
    write_text(path, encode_manifest(manifest).decode(), later)
    if os.geteuid() == 0:  # the job's user rotates it away with its slice
        status = os.stat(slice_path)
        os.chown(path, status.st_uid, status.st_gid)


def write_recovered(
    root: str,
    action: CopyAction,
    replica: Replica,
    digest: str,
    step: Step,
    world_size: int,
    run_id: str | None,
    later: set[str] | None = None,
    fetching: Fetching | None = None,
) -> None:
    """Give a recovered slice its manifest, with the source named in it.

    Parameters
    ----------
    root : str
        The tree.
    action : CopyAction
        What was done.
    replica : Replica
        Where the bytes came from.
    digest : str
        Of the bytes that were copied.
    step, world_size, run_id
        Of the plan.
    later : set of str, optional
        As for `sync_directory`.
    fetching : Fetching, optional
        What brought the slice when it was another host's.

    Raises
    ------
    MsRecoverError
        When the slice cannot be read or the manifest not be written.
    """
    target = os.path.join(root, action.target)
    source = os.path.join(root, replica.path)
    host = fetching.where(replica.path) if fetching is not None else None
    provenance = Provenance(
        kind="copied",
        evidence=action.evidence,
        sources=(ProvenanceSource(replica.rank, replica.path, host),),
        borrowed=action.borrowed,
    )
    manifest = fetching.manifest(replica.path) if fetching is not None and host is not None else manifest_of(source)
    if manifest is None:
        manifest = make_manifest(target, action.rank, step, world_size, action.group, run_id or "")
    if manifest.digests.file != digest:
        raise VerificationError(f"{target} does not hold what the manifest of {source} says: plan again to repair it")
    name = os.path.basename(target)
    recovered = replace(manifest, rank=action.rank, file=name, group=action.group, provenance=provenance, tool=TOOL)
    write_manifest(target, recovered, later)


def make_manifest(
    slice_path: str,
    rank: int,
    step: Step,
    world_size: int,
    group: tuple[int, ...],
    run_id: str = "",
    *,
    provenance: Provenance = Provenance(kind="sealed", evidence="structure"),  # noqa: B008 (frozen)
    cumulative_step: int | None = None,
    digests: Digests | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Read a slice and say what it is.

    Parameters
    ----------
    slice_path : str
        The slice.
    rank, step, world_size, group, run_id, provenance, cumulative_step
        See `Manifest`.
    digests : Digests, optional
        When the slice was read already.
    stop : callable
        True ends reading.

    Raises
    ------
    VerificationError
        When its structure is damaged.
    MsRecoverError
        When it cannot be read.
    """
    header = read_header(slice_path)
    if header.problems:
        raise VerificationError(f"{slice_path} gets no manifest: {header.problems[0]}")
    folder, name = os.path.split(slice_path)
    return Manifest(
        run_id=run_id,
        rank=rank,
        world_size=world_size,
        step=step,
        cumulative_step=cumulative_step,
        file=name,
        size=header.size,
        digests=digests or digest_file(slice_path, header.contents, stop=stop),
        parameters=header.parameters,
        group=group,
        strategy_digest=strategy_digest(folder),
        provenance=provenance,
        tool=TOOL,
    )


def strategy_digest(folder: str) -> str | None:
    """Return the digest of the strategy file in a rank's directory, None when there is none."""
    path = os.path.join(folder, STRATEGY_NAME)
    return digest_file(path).file if os.path.exists(path) else None


def manifest_of(slice_path: str) -> Manifest | None:
    """Return the manifest beside a slice, None when there is none that can be read."""
    if not os.path.isfile(slice_path + MANIFEST_SUFFIX):
        return None
    try:
        return read_manifest(slice_path + MANIFEST_SUFFIX)
    except MsRecoverError:
        return None
