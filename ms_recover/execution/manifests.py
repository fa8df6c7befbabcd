"""Manifests of slices that were saved, sealed, copied or composed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ms_recover.errors import (
    FormatError,
    MissingInputError,
    PermissionDeniedError,
    VerificationError,
)
from ms_recover.file_names import MANIFEST_SUFFIX, STRATEGY_NAME
from ms_recover.formats.header import parse_header
from ms_recover.formats.manifest import MAX_SIZE, decode_manifest, encode_manifest
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.provenance import SAVED, Provenance
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.stores.atomic import write_small
from ms_recover.stores.digest import Digester, digest_file
from ms_recover.stores.local_store import LocalFile
from ms_recover.stores.store import OpenFile, Store, never
from ms_recover.version import __version__

TOOL = f"ms_recover {__version__}"


class _Contents(Protocol):
    @property
    def size(self) -> int: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...


@dataclass(frozen=True)
class NamedSlice:
    """A slice under its final path, and whose it is; the facts are those of `Manifest`."""

    path: str
    rank: int
    world_size: int
    step: Step
    cumulative_step: int | None
    run_id: str
    training: TrainingRecord | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.step}, {self.path}"

    def manifest(
        self,
        contents: _Contents,
        digests: Digests,
        group: tuple[int, ...],
        strategy: str | None = None,
        provenance: Provenance = SAVED,
    ) -> Manifest:
        """Return the manifest of the slice; `strategy` is the digest of the strategy file that it was saved under."""
        return Manifest(
            run_id=self.run_id,
            rank=self.rank,
            world_size=self.world_size,
            step=self.step,
            cumulative_step=self.cumulative_step,
            file=os.path.basename(self.path),
            size=contents.size,
            digests=digests,
            parameters=contents.parameters,
            group=group,
            strategy_digest=strategy,
            provenance=provenance,
            tool=TOOL,
            training=self.training,
        )


def write_manifest(slice_path: str, manifest: Manifest, *, staged: str | None = None) -> None:
    """Write a manifest beside its slice; written by root it belongs to the slice's owner.

    `staged` is where the slice lies while it has no name yet. Errors are those of
    `ms_recover.stores.atomic.write_small`.
    """
    owner = slice_path if staged is None else staged
    write_small(slice_path + MANIFEST_SUFFIX, encode_manifest(manifest), owner_of=owner)


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
    subject = NamedSlice(slice_path, rank, world_size, step, None, run_id)
    with LocalFile(slice_path) as opened:
        return seal_open(opened, subject, group, strategy_digest(os.path.dirname(slice_path)))


def seal_open(opened: OpenFile, subject: NamedSlice, group: tuple[int, ...], strategy: str | None = None) -> Manifest:
    """Return the manifest of an open slice, as `make_manifest`; the subject says whose it is."""
    header = parse_header(opened.read_at, opened.size, name=opened.name)
    if header.problems:
        raise VerificationError(f"{opened.name} gets no manifest: {header.problems[0]}")
    digester = Digester(header.contents)
    opened.read_range(0, opened.size, digester.update, never)
    opened.check_unchanged()
    return subject.manifest(
        header, digester.digests(), group, strategy, Provenance(kind="sealed", evidence="structure")
    )


def strategy_digest(folder: str) -> str | None:
    """Return the digest of the strategy file in a rank's directory, None when there is none."""
    path = os.path.join(folder, STRATEGY_NAME)
    return digest_file(path).file if os.path.isfile(path) else None


def manifest_in(store: Store, path: str) -> Manifest | None:
    """Return the manifest beside a slice of a store, None without one that can be used.

    Errors are those of `Store.open`, but for a manifest that is not there or this user may not read.
    """
    beside = path + MANIFEST_SUFFIX
    try:
        return decode_manifest(store.read_small(beside, "a manifest", MAX_SIZE), f"{store.url}/{beside}")
    except (MissingInputError, FormatError, PermissionDeniedError):
        return None


def proves(own: Manifest | None, rank: int, step: Step | None, run_id: str | None) -> bool:
    """Whether the manifest that a lost or damaged slice left proves the bytes the slice must have.

    One of another rank, step or run than the plan's proves nothing.
    """
    if own is None or not own.provenance.proven:
        return False
    return (own.rank, own.step) == (rank, step) and run_id in (None, own.run_id)


def is_as_saved(own: Manifest | None, made: Manifest) -> bool:
    """Whether a manifest that training saved proves the very bytes that were recovered: it stays beside them then.

    `made` is the manifest of the recovered slice.
    """
    if own is None or own.provenance.kind != "saved" or made.strategy_digest not in (None, own.strategy_digest):
        return False
    fields = ("run_id", "rank", "world_size", "step", "file", "size", "digests", "parameters", "group")
    return all(getattr(own, name) == getattr(made, name) for name in fields)


def check_against(
    own: Manifest,
    digests: Mapping[str, str],
    fits: Callable[[], object],
    *,
    borrowed: Collection[str] = (),
    whole: bool = True,
) -> None:
    """Compare the digests of recovered parameters, by name, with the manifest that the slice itself left.

    A manifest that `fits` the file beside it is that file's, which the plan has rejected for another reason: it proves
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
        if fits():
            return
        problem = "is missing" if found is None else f"has the digest {found}, expected {expected}"
        raise VerificationError(
            f"rank {own.rank}: parameter {parameter.name} of the recovered slice {problem} according to the manifest "
            f"of {own.file}; nothing was replaced: check the sources with recover-ckpt verify, or remove that manifest"
        )
