"""The parameters of a source: their whole shapes, and who holds which region."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ms_recover.file_names import WeightKind
from ms_recover.model.compose import MissingRegion
from ms_recover.model.reshard import Box, HeldRegion, Overlap, ReshardSource
from ms_recover.model.slices import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParameter:
    """One parameter of the source: its whole shape, and the regions of it that sound slices hold.

    Parameters
    ----------
    regions : tuple of HeldRegion
        Equal ones are one object. Without a layout it is one region, the whole.
    missing : tuple of MissingRegion
        What nobody holds.
    cut : bool
        Whether a layout states how it is cut.
    stages : frozenset of int
        Pipeline stages whose slices list it.
    own : bool
        Each rank has its own values.
    known : bool
        Whether the shape is that of the whole tensor.
    part : WeightKind or None
        In a tree of MindFormers' format, whether model files or optimizer files hold it.
    overlaps : tuple of Overlap
        Regions that several stages hold and cut differently.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_size: int
    regions: tuple[HeldRegion, ...]
    missing: tuple[MissingRegion, ...] = ()
    cut: bool = True
    stages: frozenset[int] = frozenset()
    own: bool = False
    known: bool = True
    kind: WeightKind | None = None
    overlaps: tuple[Overlap, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """All that the source gives: its slices by number, and its parameters by name, in the order of the network.

    `lost` says of which stages nothing is known, so that any parameter may have been there.
    """

    slices: tuple[ReshardSource, ...]
    parameters: dict[str, SourceParameter]
    disagreements: tuple[str, ...] = ()
    lost: tuple[MissingRegion, ...] = ()
    stage_names: tuple[frozenset[str], ...] = field(default=())
    """By stage, the parameters that its strategy file names."""
    alive: frozenset[int] = frozenset()
    """Stages that have a slice."""


def lost_parameter(name: str, why: str, like: Parameter | None = None) -> SourceParameter:
    """Return a parameter of which nothing can be had; a slice listed it as `like`, if anything is known of it."""
    box: Box = tuple((0, size) for size in like.shape) if like is not None else ()
    gone = MissingRegion(name, box, like.nbytes if like is not None else 0, why)
    return SourceParameter(
        name=name,
        dtype=like.dtype if like is not None else "",
        shape=like.shape if like is not None else (),
        item_size=like.nbytes // (prod(like.shape) or 1) if like is not None else 1,
        regions=(),
        missing=(gone,),
        known=False,
    )
