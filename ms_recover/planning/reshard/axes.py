"""A target in words, ``tp=2,dp=4,pp=2``: the cuts of the source, over other numbers of ranks.

The axes of the source are read off its layouts. The ranks of a stage that any layout cuts over, by the ``tensor_map``
and optimizer shards aside, are the tensor-parallel ones: they must be neighbours, or whole rows of data-parallel
neighbours where the order says so. The other ranks are data-parallel: they hold the same, or an optimizer shard of it.
What this leaves open is refused, and never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.errors import UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import NOT_SHARDED
from ms_recover.planning.reshard.target import Target

_INSTEAD = "name the strategy files of the job to come with --to"


def target_of_axes(
    stages: Sequence[Mapping[str, Layout]], devices: int, axes: Axes, order: Sequence[str], shards: int
) -> Target:
    """Return a target whose parameters are cut like those of the source.

    Parameters
    ----------
    stages : sequence of mapping of str to Layout
        By stage of the source, the layouts by the target's names; with one entry for each dimension.
    devices : int
        Ranks of a stage of the source.
    axes : Axes
        Sizes of the axes of the target.
    order : sequence of str
        Of the source and the target, the axis that neighbouring ranks differ in first.
    shards : int
        Optimizer shards of what is sharded in the source; 0 as there, 1 for none, -1 for as many as there are replicas.

    Raises
    ------
    UsageError
        When the layouts leave it open.
    """
    if axes.size("ep") > 1:
        raise UsageError(f"--axes {axes}: layouts do not tell experts from other parameters; {_INSTEAD}")
    merged = _merge_stages(stages, axes)
    first, tensor, widest = _find_tensor_ranks(merged, devices)
    copies, wanted = devices // tensor, axes.size("tp")
    new_copies = axes.size("dp") * axes.size("cp")
    inner = [axis for axis in order if axis in ("dp", "tp")] == ["dp", "tp"]
    if tensor > 1 and first != (copies if inner else 1):
        raise UsageError(
            f"--axes: parameters of the source are cut over ranks that are {first} apart, which is no order "
            f"{','.join(order)} of its {copies} data-parallel and {tensor} tensor-parallel ranks: give --order, or "
            f"{_INSTEAD}"
        )
    if wanted > 1 and tensor == 1:  # no layout shows in which dimension each parameter would be cut
        raise UsageError(f"--axes {axes}: nothing in the source is cut, so that tp={wanted} says nothing; {_INSTEAD}")
    if shards not in (0, 1) and not any(_shards_of(layout) for layouts in merged for layout in layouts.values()):
        raise UsageError(f"--optimizer-shards: the optimizer of the source shards no parameter; {_INSTEAD}")
    made = _Axes(
        tensor=tensor,
        copies=copies,
        wanted=wanted,
        new_copies=new_copies,
        first=first,
        inner=inner,
        shards=shards,
        widest=widest,
    )
    return Target(
        devices=wanted * new_copies,
        stages=tuple({name: made.layout(layout) for name, layout in layouts.items()} for layouts in merged),
        source=f"--axes {axes}",
    )


@dataclass(frozen=True, kw_only=True)
class _Axes:
    """The axes of a stage of the source, and those of the target.

    There are `tensor` ranks with `copies` of each in the source, `wanted` with `new_copies` in the target. Neighbours
    of the `tensor` ones are `first` apart; the parameter `widest` is cut over all of them.
    """

    tensor: int
    copies: int
    wanted: int
    new_copies: int
    first: int
    inner: bool
    shards: int
    widest: str

    def layout(self, layout: Layout) -> Layout:
        """Return the layout of a parameter in the target."""
        sizes = layout.device_matrix[::-1]
        strides = [prod(sizes[:axis]) for axis in range(len(sizes))]
        cut = [[(strides[axis], sizes[axis]) for axis in axes if sizes[axis] > 1] for axes in layout.tensor_map]
        fine = self._tensor_axes(layout, cut)
        places = {stride: number for number, (stride, _) in enumerate(fine)}
        behind = 1 if self.inner else 0
        matrix = [size for _, size in fine]
        matrix = [self.new_copies, *matrix] if self.inner else [*matrix, self.new_copies]
        if self.wanted != self.tensor:
            tensor_map: tuple[tuple[int, ...], ...] = tuple((behind,) if axes else () for axes in cut)
        else:
            tensor_map = tuple(tuple(places[stride] + behind for stride, _ in axes) for axes in cut)
        parts = prod(size for axes in cut for _, size in axes)
        ours = self.wanted if parts > 1 and self.wanted != self.tensor else parts
        size = self._optimizer(layout, self.tensor * self.copies // parts, self.wanted * self.new_copies // ours)
        return replace(
            layout,
            device_matrix=tuple(matrix[::-1]),
            tensor_map=tensor_map,
            opt_shard_step=_distance(matrix, tensor_map) if size else 0,
            opt_shard_size=size,
            split_shape=() if self.wanted != self.tensor else layout.split_shape,
        )

    def _tensor_axes(self, layout: Layout, cut: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
        """Return the tensor-parallel axes of the layout's target, finest first, by their strides in the source."""
        name = layout.parameter
        used = sorted(axis for axes in cut for axis in axes)
        if self.wanted != self.tensor:
            # One dimension cut over all of them can be cut over any number; of any other cut nothing says what remains.
            cuts = [axes for axes in cut if axes]
            whole = not cuts or (
                len(cuts) == 1
                and prod(size for _, size in cuts[0]) == self.tensor
                and list(cuts[0]) == sorted(cuts[0], reverse=True)
            )
            if not whole or layout.split_shape or layout.field:
                raise UsageError(
                    f"--axes: {name!r} is not cut over all {self.tensor} tensor-parallel ranks of the source (those "
                    f"that {self.widest!r} is cut over) in one dimension, so that nothing says how {self.wanted} "
                    f"would cut it; {_INSTEAD}"
                )
            return [(0, self.wanted)]
        # The axes that the parameter is whole on lie between those that cut it: negative, no stride of the source.
        fine, at = [], self.first
        for stride, size in used:
            if stride > at:
                fine.append((-at, stride // at))
            fine.append((stride, size))
            at = stride * size
        end = self.first * self.tensor
        if at < end:
            fine.append((-at, end // at))
        return fine

    def _optimizer(self, cut: Layout, before: int, now: int) -> int:
        """Return the optimizer shards of a parameter with so many replicas."""
        size = _shards_of(cut)
        if not size or self.shards == 1 or now == 1:
            return 0
        if self.shards:
            return self.shards
        if size < 0 or now == before or (size < before and now % size == 0):
            return size
        raise UsageError(
            f"--axes: {cut.parameter!r} is cut into {size} optimizer shards over {before} replicas, and the target has "
            f"{now}: say with --optimizer-shards how many, or all"
        )


def _distance(sizes: Sequence[int], tensor_map: Sequence[Sequence[int]]) -> int:
    """Return the distance of neighbours among the ranks that hold the same, which MindSpore calls the shards' step.

    MindSpore takes a parameter without it for one that has no shards. The axes have the finest first.
    """
    used = {axis for axes in tensor_map for axis in axes}
    return next((prod(sizes[:axis]) for axis, size in enumerate(sizes) if axis not in used and size > 1), 1)


def _shards_of(one: Layout) -> int:
    return 0 if one.parameter.startswith(NOT_SHARDED) else one.opt_shard_size


def _merge_stages(stages: Sequence[Mapping[str, Layout]], axes: Axes) -> list[Mapping[str, Layout]]:
    wanted = axes.size("pp")
    if wanted > len(stages) or len(stages) % wanted:
        raise UsageError(
            f"--axes {axes}: nothing says which parameters of the {len(stages)} stages of the source go into which of "
            f"{wanted}; {_INSTEAD}"
        )
    each = len(stages) // wanted
    merged: list[Mapping[str, Layout]] = []
    for start in range(0, len(stages), each):
        together: dict[str, Layout] = {}
        for layouts in stages[start : start + each]:
            for name, layout in layouts.items():
                known = together.setdefault(name, layout)
                if replace(known, opt_shard_step=0) != replace(layout, opt_shard_step=0):
                    raise UsageError(f"--axes {axes}: stages that become one cut {name!r} differently; {_INSTEAD}")
        merged.append(together)
    return merged


def _find_tensor_ranks(stages: Sequence[Mapping[str, Layout]], devices: int) -> tuple[int, int, str]:
    """Return the distance of tensor-parallel neighbours, how many ranks they are together, and a parameter of the most.

    Without any they are 1 and 1.
    """
    first, last, widest, most = devices, 1, "", 0
    for layouts in stages:
        for layout in layouts.values():
            sizes = layout.device_matrix[::-1]
            axes = [axis for axes in layout.tensor_map for axis in axes if sizes[axis] > 1]
            first = min([first, *(prod(sizes[:axis]) for axis in axes)])
            last = max([last, *(prod(sizes[: axis + 1]) for axis in axes)])
            count = prod(sizes[axis] for axis in axes)
            widest, most = (layout.parameter, count) if count > most else (widest, most)
    return (first, last // first, widest) if first < last else (1, 1, "")
