"""How the target cuts its parameters: by strategy files, or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.errors import FormatError, UsageError
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.reshard import Box
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.model.texts import list_some
from ms_recover.planning.claims.layouts import Cell, cells_of, cut_alike, region_of


@dataclass(frozen=True, kw_only=True)
class Target:
    """The stages of the job to come, and the layouts of their parameters by the target's names.

    Parameters
    ----------
    devices : int
        Ranks of a stage.
    stages : tuple of mapping of str to Layout
        By stage; one without layouts for a full checkpoint.
    source : str
        What states it, for messages.
    full : bool
        Every parameter whole in one checkpoint.
    """

    devices: int
    stages: tuple[Mapping[str, Layout], ...]
    source: str
    full: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.devices * len(self.stages)


FULL = Target(devices=1, stages=({},), source="--full", full=True)


def target_of_files(files: Sequence[StrategyFile], source: str) -> Target:
    """Put the strategy files of a job together; each states its stage, and those of one stage must say the same.

    Raises
    ------
    FormatError
        When a stage is missing, files contradict each other, or none has a layout.
    """
    usable = [file for file in files if file.devices_per_stage]
    if not usable:
        raise FormatError(f"{source}: no strategy file with the layout of a parameter is there")
    sizes = Counter(file.devices_per_stage for file in usable)
    if len(sizes) > 1:
        raise FormatError(f"{source}: strategy files state {list_some(sorted(sizes))} ranks in a stage: keep one job's")
    (devices,) = sizes
    stages: dict[int, StrategyFile] = {}
    for file in usable:
        stage = _stage_of(file, devices, source)
        known = stages.setdefault(stage, file)
        if _plain(known.strategy) != _plain(file.strategy):
            raise FormatError(f"{known.path} and {file.path} are of one stage and cut parameters differently")
    missing = [str(stage) for stage in range(max(stages) + 1) if stage not in stages]
    if missing:
        raise FormatError(
            f"{source}: the strategy file of stage {list_some(missing)} is missing; there are {len(stages)}"
        )
    layouts = tuple(
        {layout.parameter: layout for layout in stages[stage].strategy.layouts} for stage in range(len(stages))
    )
    return Target(devices=devices, stages=layouts, source=source)


def _stage_of(file: StrategyFile, devices: int, source: str) -> int:
    """Return the stage that a file names; a rank in its name, where it has one, must be of that stage."""
    if len(file.stages) == 1:
        return file.stages[0]
    if file.stages:
        raise FormatError(f"{file.path} names stages {list_some(map(str, file.stages))} and not whose each layout is")
    return max(file.rank, 0) // devices


def _plain(strategy: Strategy) -> list[Layout]:
    return [replace(layout, opt_shard_step=0) for layout in strategy.layouts]


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetCut:
    """One way in which a stage of the target cuts parameters of one shape: the part of each place, and its box."""

    cells: tuple[tuple[int, ...], ...]
    boxes: Mapping[tuple[int, ...], Box]


class TargetCuts:
    """Cuts shapes by layouts, each way once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cells: dict[Layout, tuple[Cell, ...]] = {}
        self._cuts: dict[tuple[Layout | None, tuple[int, ...]], TargetCut] = {}

    def cut(self, layout: Layout | None, name: str, shape: tuple[int, ...]) -> TargetCut:
        """Return how a parameter is cut; without a layout every rank holds all of it.

        Raises
        ------
        UsageError
            When the layout does not fit the shape.
        """
        fitting = cut_alike(self.fitted(layout, name, shape)) if layout is not None else None
        key = (fitting, shape)
        if key not in self._cuts:
            self._cuts[key] = self._cut(fitting, name, shape)
        return self._cuts[key]

    def fitted(self, layout: Layout, name: str, shape: tuple[int, ...]) -> Layout:
        """Return a layout with one entry for each dimension of a shape; errors as for `cut`."""
        where = f"{self._target.source} cuts {name!r}"
        if layout.field:
            raise UsageError(f"{where} by field: such embeddings are not cut anew")
        if layout.tensor_shape:
            merged = _merged(layout, shape)
            if merged is None:
                raise UsageError(
                    f"{where} of {list(layout.tensor_shape)}, and the source has it as {list(shape)}: it is the "
                    "strategy of another model"
                )
            return merged
        if len(layout.tensor_map) != len(shape):
            raise UsageError(
                f"{where} in {len(layout.tensor_map)} dimensions, and the source has it as {list(shape)}: it is the "
                "strategy of another model"
            )
        return layout

    def _cut(self, layout: Layout | None, name: str, shape: tuple[int, ...]) -> TargetCut:
        devices = self._target.devices
        if layout is None:
            whole = tuple((0, size) for size in shape)
            return TargetCut(cells=((),) * devices, boxes={(): whole})
        if prod(layout.device_matrix) != devices:
            raise UsageError(
                f"{self._target.source} cuts {name!r} over {prod(layout.device_matrix)} ranks of {devices}"
            )
        if layout not in self._cells:
            self._cells[layout] = tuple(cells_of(layout, range(devices)))
        cells = self._cells[layout]
        boxes: dict[tuple[int, ...], Box] = {}
        for cell in cells:
            if cell.index not in boxes:
                boxes[cell.index] = self._box(layout, cell, name, shape)
        if len(boxes) < prod(cells[0].count):
            raise UsageError(
                f"{self._target.source} cuts {name!r} into {prod(cells[0].count)} parts, of which its {devices} ranks "
                f"would hold {len(boxes)}: optimizer shards must divide the ranks that hold the same"
            )
        return TargetCut(cells=tuple(cell.index for cell in cells), boxes=boxes)

    def _box(self, layout: Layout, cell: Cell, name: str, shape: tuple[int, ...]) -> Box:
        rows = layout.split_shape
        if rows:
            if len(rows) != cell.count[0] or sum(rows) != shape[0]:
                raise UsageError(
                    f"{self._target.source} cuts the {shape[0]} rows of {name!r} into {list_some(map(str, rows))}: "
                    "that is not all of them"
                )
            local = (rows[cell.index[0]], *self._local(cell, name, shape, 1))
        else:
            local = self._local(cell, name, shape, 0)
        box = region_of(layout, cell, local)
        assert box is not None
        return box

    def _local(self, cell: Cell, name: str, shape: tuple[int, ...], start: int) -> tuple[int, ...]:
        for axis in range(start, len(shape)):
            if shape[axis] % cell.count[axis]:
                raise UsageError(
                    f"{self._target.source} cuts {name!r} of {list(shape)} into {cell.count[axis]} parts in dimension "
                    f"{axis}, which {shape[axis]} cannot be divided into"
                )
        return tuple(size // count for size, count in zip(shape[start:], cell.count[start:], strict=True))


def _merged(layout: Layout, shape: Iterable[int]) -> Layout | None:
    """Return a layout of the JSON form with one entry for each dimension, None when it is of another shape."""
    rest = list(zip(layout.tensor_shape, layout.tensor_map, strict=True))
    merged: list[tuple[int, ...]] = []
    for size in shape:
        if not rest:
            return None
        full, axes = rest.pop(0)
        while full < size and rest:
            dimension, more = rest.pop(0)
            full, axes = full * dimension, axes + more
        if full != size:
            return None
        merged.append(axes)
    if any(size != 1 for size, _ in rest):
        return None
    return replace(layout, tensor_map=tuple(merged), tensor_shape=())


def groups_of(cuts: Iterable[TargetCut], devices: int) -> list[tuple[int, ...]]:
    """Return for each place of a stage the places that hold the same part of every parameter."""
    ways = {id(cut): cut.cells for cut in cuts}
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    cells_of = [tuple(cells[place] for cells in ways.values()) for place in range(devices)]
    for place, parts in enumerate(cells_of):
        alike[parts].append(place)
    return [tuple(alike[parts]) for parts in cells_of]
