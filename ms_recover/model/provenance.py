"""Where the bytes of a slice come from, and the ground for trusting them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ms_recover.model.verdicts import Evidence

ProvenanceKind = Literal["saved", "sealed", "copied", "composed", "resharded"]
"""``saved`` by training, ``sealed`` afterwards, ``copied`` from a replica, ``composed`` from several slices,
``resharded``: cut anew out of the slices of another tree."""


@dataclass(frozen=True, slots=True)
class ProvenanceSource:
    """A slice that bytes were taken from."""

    rank: int | None
    """Its rank; None in manifests of version 1 that name only the path."""
    path: str
    """Relative to the root of its tree; absolute in a tree that was cut anew out of another."""
    host: str | None = None
    """Host and port of the node it was fetched from; None for the same tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of a slice."""

    kind: ProvenanceKind
    evidence: Evidence | None = None
    """The ground for sealing it, or for trusting its sources; None for saved slices."""
    sources: tuple[ProvenanceSource, ...] = ()
    """Of a copied or composed slice."""
    borrowed: tuple[str, ...] = ()
    """Parameters that may differ between ranks and whose values come from another rank."""

    @property
    def recovered(self) -> bool:
        """Whether the bytes are those of other slices, so that the slice is no witness for them."""
        return self.kind in ("copied", "composed")

    @property
    def proven(self) -> bool:
        """Whether its digests were right beyond doubt when they were written.

        Those of a slice that training saved are; so are those that other ranks' contents or a saved manifest
        confirmed. Structure alone, or layouts alone, are one ballot and no verdict.
        """
        return self.kind == "saved" or self.evidence in ("manifest", "vote")


SAVED = Provenance(kind="saved")
