"""A planned file as an action that reads pieces; and a region of the source as the pieces of the output it went to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

from ms_recover.model.actions import Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece
from ms_recover.model.reshard import Box, MovedParameter, ReshardPlan, TargetFile, Transfer
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.regions import Grid, cover, runs_of, volume

_MOST_LIKE = 4
"""Slices that a file without contents may be laid out like, in case some cannot be read."""


def action_of(plan: ReshardPlan, file: TargetFile) -> ComposeAction:
    """Return how one file is put together; equal plans give equal actions."""
    book = _Book(plan)
    parameters = []
    for parameter, part, transfer in plan.parts_of(file):
        nbytes = prod(part.shape) * transfer.item_size
        listed = Parameter(parameter.name, transfer.dtype, part.shape, nbytes)
        pieces = []
        for piece in part.pieces if nbytes else ():  # contents of no bytes need no source
            region = transfer.regions[piece.region]
            holders = _holders(plan, parameter, transfer, piece.region, file.rank)
            first, *others = [book.number(holder) for holder in holders]
            digest = plan.sources[holders[0]].digest_of(parameter.source_name)
            size = volume(region.box) * transfer.item_size
            pieces.append(Piece(first, piece.runs, size, digest, tuple(others)))
        parameters.append(ComposedParameter(listed, tuple(pieces)))
    # A file of nothing but parameters without elements has no source; it is laid out as a slice of the plan is.
    for source in range(len(plan.sources))[:_MOST_LIKE] if not book.sources else ():
        book.number(source)
    # What each rank has of its own is borrowed: the target's rank gets the values of another one.
    own = tuple(parameter.name for parameter, _, _ in plan.parts_of(file) if parameter.own)
    return ComposeAction(
        rank=file.rank,
        sources=tuple(book.sources),
        model=0,
        parameters=tuple(parameters),
        target=file.target,
        replaces=None,
        reason="",
        group=file.group,
        borrowed=own,
        kind="partial" if plan.is_partial(file) else "compose",
    )


def source_names(plan: ReshardPlan) -> Mapping[str, str]:
    """Return the name in the source of each parameter of the target."""
    return {one.name: one.source_name for one in plan.parameters}


def _holders(plan: ReshardPlan, one: MovedParameter, transfer: Transfer, region: int, rank: int) -> tuple[int, ...]:
    """Return who gives a region, the first choice first; of values that each rank has of its own one rank's alone."""
    holders = transfer.regions[region].holders
    if not one.own:
        return holders
    like = rank % plan.world_size
    return (next((holder for holder in holders if plan.sources[holder].replica.rank == like), holders[0]),)


class _Book:
    """Numbers the sources of one action in the order in which they are first read."""

    def __init__(self, plan: ReshardPlan) -> None:
        self._plan = plan
        self._numbers: dict[int, int] = {}
        self.sources: list[Replica] = []

    def number(self, source: int) -> int:
        """Return the number of a source in the action."""
        if source not in self._numbers:
            self._numbers[source] = len(self.sources)
            self.sources.append(self._plan.sources[source].replica)
        return self._numbers[source]


class CutBack:
    """Which files of the output hold which part of each parameter, so that regions of the source can be cut back.

    Attributes
    ----------
    sources : list of int
        Numbers of the sources that regions were taken from.
    """

    def __init__(self, plan: ReshardPlan) -> None:
        self.plan = plan
        self._files: dict[int, list[int]] = {}
        for number, file in enumerate(plan.files):
            for parameter in file.parameters:
                self._files.setdefault(parameter, []).append(number)
        self._parameters: dict[int, list[int]] = {}
        for number, moved in enumerate(plan.parameters):
            if not moved.own:
                self._parameters.setdefault(moved.transfer, []).append(number)
        self._regions: dict[int, list[tuple[int, int]]] = {}
        for number, transfer in enumerate(plan.transfers):
            for place, region in enumerate(transfer.regions if transfer.nbytes else ()):
                self._regions.setdefault(region.holders[0], []).append((number, place))
        self.sources = sorted(self._regions)
        self._grids: dict[int, tuple[list[tuple[int, ...]], Grid]] = {}
        self._first: dict[tuple[int, tuple[int, ...]], int] = {}
        for parameter, files in self._files.items():
            cells = plan.transfers[plan.parameters[parameter].transfer].cells
            for number in files:
                self._first.setdefault((parameter, cells[plan.files[number].place]), number)

    def of(self, source: int) -> Iterator[tuple[MovedParameter, Box, list[tuple[int, Box, Box]]]]:
        """Yield what was taken from a source: parameter, region, and its parts with their files and boxes there."""
        for number, place in self._regions[source]:
            transfer = self.plan.transfers[number]
            if number not in self._grids:
                cells = [cell for cell, part in transfer.parts.items() if part.whole]
                self._grids[number] = cells, Grid([transfer.parts[cell].box for cell in cells])
            cells, grid = self._grids[number]
            box = transfer.regions[place].box
            near = grid.near(box)
            parts, uncovered = cover(box, [grid.boxes[at] for at in near])
            if uncovered:
                continue  # a part of it went nowhere, because another part of that file is missing
            for parameter in self._parameters.get(number, ()):
                slices = [
                    (self._first[parameter, cells[near[at]]], part, grid.boxes[near[at]])
                    for at, part in parts
                    if (parameter, cells[near[at]]) in self._first
                ]
                if len(slices) == len(parts):
                    yield self.plan.parameters[parameter], box, slices

    def compared_with(self, file: int) -> Iterator[tuple[MovedParameter, int]]:
        """Yield the parameters of a file, each with the file whose bytes of it are compared with the source."""
        for parameter in self.plan.files[file].parameters:
            moved = self.plan.parameters[parameter]
            transfer = self.plan.transfers[moved.transfer]
            cell = transfer.cells[self.plan.files[file].place]
            if transfer.parts[cell].whole:
                yield moved, self._first[parameter, cell]


def cut_back(
    back: CutBack, source: int, replica_of: Callable[[int], Replica]
) -> tuple[ComposeAction, Mapping[str, str], Mapping[str, tuple[str, str]]]:
    """Return how the parameters that were taken from a source are put together again out of the output.

    Returns
    -------
    action : ComposeAction
        Its sources are files of the output, its parameters those of the source.
    names : mapping of str to str
        The names of the parameters in the output.
    casts : mapping of str to (str, str)
        The types of those that were cast, in the source and in the output, by their names in the source.
    """
    plan = back.plan
    numbers: dict[int, int] = {}
    parameters, names, casts = {}, {}, {}
    for parameter, box, parts in back.of(source):
        transfer = plan.transfers[parameter.transfer]
        item = parameter.item_size(transfer)
        pieces = [
            Piece(numbers.setdefault(file, len(numbers)), runs_of(part, place, box, item), volume(place) * item)
            for file, part, place in parts
        ]
        pieces.sort(key=lambda piece: piece.runs.target)  # so that the region is made from its start on
        shape = tuple(stop - start for start, stop in box)
        listed = Parameter(parameter.source_name, parameter.cast or transfer.dtype, shape, volume(box) * item)
        if parameter.cast is not None:
            casts[parameter.source_name] = (transfer.dtype, parameter.cast)
        parameters[parameter.source_name] = ComposedParameter(listed, tuple(pieces))
        names[parameter.source_name] = parameter.name
    action = ComposeAction(
        rank=plan.sources[source].replica.rank,
        sources=tuple(replica_of(file) for file in numbers),
        model=0,
        parameters=tuple(parameters.values()),
        target="",
        replaces=None,
        reason="",
    )
    return action, names, casts


def bytes_read(plan: ReshardPlan) -> dict[int, int]:
    """Return the bytes that are taken from each source, by its number; those that give nothing are left out."""
    sizes: dict[int, int] = {}
    for file in plan.files:
        for moved, part, transfer in plan.parts_of(file):
            for piece in part.pieces:
                holder = _holders(plan, moved, transfer, piece.region, file.rank)[0]
                sizes[holder] = sizes.get(holder, 0) + piece.runs.bytes
    return sizes


def paths_taken(plan: ReshardPlan) -> frozenset[str]:
    """Return the paths of the slices that bytes are taken from, or that are compared because stages hold the same."""
    numbers = set(bytes_read(plan))
    numbers.update(region.holders[0] for one in plan.overlaps for region in (one.one, one.other))
    return frozenset(plan.sources[number].replica.path for number in numbers)
