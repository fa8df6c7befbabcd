"""Manifests of slices that were saved, sealed, copied or composed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ms_recover.errors import (
    FormatError,
    MissingInputError,
    MsRecoverError,
    PermissionDeniedError,
    VerificationError,
)
from ms_recover.file_names import MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.header import read_header
from ms_recover.formats.manifest import MAX_SIZE, decode_manifest, encode_manifest, read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import write_small
from ms_recover.stores.digest import digest_file, holds
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.store import Store
from ms_recover.version import __version__

TOOL = f"ms_recover {__version__}"


def write_manifest(
    slice_path: str, manifest: Manifest, syncs: DirectorySyncs | None = None, *, staged: str | None = None
) -> None:
    """Write a manifest beside its slice; written by root it belongs to the slice's owner.

    `staged` is where the slice lies while it has no name yet. `syncs` and errors are as for
    `ms_recover.stores.atomic.write_small`.
    """
    owner = slice_path if staged is None else staged
    write_small(slice_path + MANIFEST_SUFFIX, encode_manifest(manifest), owner_of=owner, syncs=syncs)


def make_manifest(
    slice_path: str,
    rank: int,
    step: Step,
    world_size: int,
    group: tuple[int, ...],
    run_id: str = "",
) -> Manifest:
    """Return the manifest of a slice, which is read for it, sealed by its structure.

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
        cumulative_step=None,
        file=name,
        size=header.size,
        digests=digest_file(slice_path, header.contents),
        parameters=header.parameters,
        group=group,
        strategy_digest=strategy_digest(folder),
        provenance=Provenance(kind="sealed", evidence="structure"),
        tool=TOOL,
    )


def strategy_digest(folder: str) -> str | None:
    """Return the digest of the strategy file in a rank's directory, None when there is none."""
    path = os.path.join(folder, STRATEGY_NAME)
    return digest_file(path).file if os.path.isfile(path) else None


def manifest_of(slice_path: str) -> Manifest | None:
    """Return the manifest beside a slice, None without a readable one."""
    if not os.path.isfile(slice_path + MANIFEST_SUFFIX):
        return None
    try:
        return read_manifest(slice_path + MANIFEST_SUFFIX)
    except MsRecoverError:
        return None


def manifest_in(store: Store, path: str) -> Manifest | None:
    """Return the manifest beside a slice of a store, None without one that can be used.

    Errors are those of `Store.open`, but for a manifest that is not there or this user may not read.
    """
    beside = path + MANIFEST_SUFFIX
    try:
        return decode_manifest(store.read_small(beside, "a manifest", MAX_SIZE), f"{store.url}/{beside}")
    except (MissingInputError, FormatError, PermissionDeniedError):
        return None


def own_manifest(slice_path: str, rank: int, step: Step | None, run_id: str | None) -> Manifest | None:
    """Return the manifest that a lost or damaged slice left, where it proves the bytes the slice must have.

    A manifest of another rank, step or run than the plan's proves nothing.
    """
    manifest = manifest_of(slice_path)
    if manifest is None or not manifest.provenance.proven:
        return None
    same = (manifest.rank, manifest.step) == (rank, step) and run_id in (None, manifest.run_id)
    return manifest if same else None


def is_as_saved(slice_path: str, made: Manifest) -> bool:
    """Whether the manifest that training saved beside a slice proves the very bytes that were recovered: it stays then.

    `made` is the manifest of the recovered slice.
    """
    own = manifest_of(slice_path)
    if own is None or own.provenance.kind != "saved" or made.strategy_digest not in (None, own.strategy_digest):
        return False
    fields = ("run_id", "rank", "world_size", "step", "file", "size", "digests", "parameters", "group")
    return all(getattr(own, name) == getattr(made, name) for name in fields)


def _is_of_file_beside(own: Manifest, slice_path: str, stop: Callable[[], bool]) -> bool:
    with suppress(OSError):  # a file that cannot be read is none that the manifest fits
        return holds(slice_path, own.size, own.digests.file, stop) is not None
    return False


def check_against(
    own: Manifest,
    digests: Mapping[str, str],
    slice_path: str,
    *,
    borrowed: Collection[str] = (),
    whole: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Compare the digests of recovered parameters, by name, with the manifest that the slice itself left.

    A manifest that fits the file beside it is that file's, which the plan has rejected for another reason: it proves
    nothing about the bytes that are recovered. The `borrowed` parameters have values from another rank and may differ;
    without `whole`, parameters may be missing.

    Raises
    ------
    VerificationError
        When a parameter is missing or differs; it names rank and parameter.
    """
    for parameter, expected in zip(own.parameters, own.digests.parameters, strict=False):
        found = digests.get(parameter.name)
        if found == expected or parameter.name in borrowed or (found is None and not whole):
            continue
        if _is_of_file_beside(own, slice_path, stop):
            return
        problem = "is missing" if found is None else f"has the digest {found}, expected {expected}"
        raise VerificationError(
            f"rank {own.rank}: parameter {parameter.name} of the recovered slice {problem} according to the manifest "
            f"of {own.file}; nothing was replaced: check the sources with recover-ckpt verify, or remove that manifest"
        )
