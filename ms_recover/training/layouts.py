"""Strategy files for networks built from explicit collectives; MindSpore's compiler writes none for these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ms_recover.arguments import check_type
from ms_recover.errors import UsageError
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import cells_of, cut_alike
from ms_recover.stores.atomic import write_small


def cut(
    parameter: str,
    devices: Mapping[str, int],
    *dimensions: str | Sequence[str] | None,
    optimizer_sharded: bool = False,
    optimizer_shards: int = 0,
) -> Layout:
    """Return the layout of one parameter: how it is cut over the ranks.

    Parameters
    ----------
    parameter : str
        Its name in slices.
    devices : mapping of str to int
        The ranks as a matrix: names and sizes of its axes; the last axis is that of neighbouring ranks.
    *dimensions : str, sequence of str or None
        For each dimension of the tensor the axis that it is split over; several axes, the coarsest first; or None.
    optimizer_sharded : bool
        Split dimension 0 once more, over all ranks that would otherwise hold the same part, as MindSpore's optimizer
        parallel does.
    optimizer_shards : int
        Split it into so many shards instead, as MindSpore's ``optimizer_weight_shard_size`` does: neighbours among the
        ranks that would otherwise hold the same part hold one shard each, and every n-th rank the same one.

    Returns
    -------
    Layout
        For `write_strategy`, or the `layouts` of a `SliceCheckpoint`.

    Raises
    ------
    UsageError
        When an axis is unknown or used twice, there is no dimension to split, or the shards do not divide the ranks
        that hold the same part.

    Examples
    --------
    A weight whose rows are split over the model-parallel ranks, and a bias that all ranks hold:

    >>> devices = {"dp": 2, "mp": 4}
    >>> cut("fc.weight", devices, "mp", None).tensor_map
    ((0,), ())
    >>> cut("fc.bias", devices, None).tensor_map
    ((),)

    Of the weight's four replicas two neighbours each hold one half:

    >>> cut("fc.weight", {"dp": 4, "mp": 2}, "mp", None, optimizer_shards=2).copies
    2
    """
    names, sizes = list(devices), tuple(devices.values())
    if not sizes or min(sizes) < 1:
        raise UsageError(f"{parameter}: devices={dict(devices)}: every axis must have at least one rank")
    axes = [() if axis is None else (axis,) if isinstance(axis, str) else tuple(axis) for axis in dimensions]
    used = [axis for several in axes for axis in several]
    for axis in used:
        if axis not in names or used.count(axis) > 1:
            problem = "is split over more than once" if axis in names else f"is none of {', '.join(names)}"
            raise UsageError(f"{parameter}: axis {axis!r} {problem}")
    shards = -1 if optimizer_sharded and not optimizer_shards else optimizer_shards
    if shards and not axes:
        raise UsageError(f"{parameter}: a scalar has no dimension that an optimizer shard could be cut from")
    replicated = [place for place, name in enumerate(names) if name not in used and sizes[place] > 1]
    replicas = prod(sizes[place] for place in replicated)
    if shards < -1 or (shards > 0 and replicas % shards):
        raise UsageError(
            f"{parameter}: optimizer_shards={shards} does not divide the {replicas} ranks that hold the same part; "
            "give 0 for none, -1 for as many as there are such ranks, or a divisor"
        )
    sharded = shards not in (0, 1) and replicas > 1
    return Layout(
        parameter=parameter,
        device_matrix=sizes,
        tensor_map=tuple(tuple(len(names) - 1 - names.index(axis) for axis in several) for several in axes),
        opt_shard_step=prod(sizes[replicated[-1] + 1 :]) if sharded else 0,
        opt_shard_size=shards if sharded else 0,
    )


def write_strategy(
    path: str | os.PathLike[str], layouts: Iterable[Layout], network: Any = None, stage: int = 0
) -> None:
    """Write layouts in the format of MindSpore's strategy file.

    Each rank writes it beside its slices as ``strategy.ckpt``; all ranks of a pipeline stage write the same. Parameters
    that it does not name count as held whole by all ranks.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced, whole or not at all.
    layouts : iterable of Layout
        One per parameter, as `cut` returns them.
    network : mindspore.nn.Cell, optional
        The train network. With it, optimizer states get the layouts of their weights, and layouts that do not match its
        parameters are refused.
    stage : int
        Pipeline stage of the parameters.

    Raises
    ------
    UsageError
        When a layout is invalid.
    StorageError
        When the file cannot be written.
    """
    listed = list(layouts)
    check_layouts(listed)
    if network is not None:
        listed = with_states(listed, network)
    data = encode_strategy(Strategy((stage,), 1, tuple(sorted(listed, key=lambda layout: layout.parameter))))
    write_small(path, data, mode=0o600)


def layouts_given(name: str, layouts: Any) -> tuple[Layout, ...]:
    """Return the layouts that a program gives as a tuple; UsageError when they are none."""
    check_type(name, layouts, Iterable, "a list of layouts, as ms_recover.training.cut returns them")
    listed = tuple(layouts)
    for one in listed:
        check_type(f"{name}: one", one, Layout, "a layout, as ms_recover.training.cut returns it")
    return listed


def check_layouts(layouts: Sequence[Layout], world_size: int | None = None) -> None:
    """Raise UsageError, which names the contradiction, when layouts contradict each other."""
    if not layouts:
        raise UsageError("layouts=[]: it names no parameter; leave it out when the layouts are unknown")
    names = [layout.parameter for layout in layouts]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"layouts: parameter {twice} has two")
    matrices = {layout.device_matrix for layout in layouts}
    devices = {prod(matrix) for matrix in matrices}
    if len(devices) > 1:
        shown = ", ".join(str(list(matrix)) for matrix in sorted(matrices))
        raise UsageError(f"layouts: the device matrices {shown} are of different numbers of ranks")
    if world_size is not None and world_size % max(devices):
        raise UsageError(f"layouts: a device matrix of {max(devices)} ranks does not fit into {world_size}")


def same_slice(layouts: Iterable[Layout], rank: int, world_size: int) -> list[int]:
    """Return the ranks that hold the same part of every parameter as `rank` does, itself included, ascending."""
    same = set(range(world_size))
    for kind in {cut_alike(layout) for layout in layouts}:
        devices = prod(kind.device_matrix)
        first = rank // devices * devices
        ranks = range(first, first + devices)
        cells = cells_of(kind, ranks)
        same &= {other for other, cell in zip(ranks, cells, strict=True) if cell == cells[rank - first]}
    return sorted(same)


def with_states(layouts: Sequence[Layout], network: Any) -> list[Layout]:
    """Add the layouts of optimizer states, and compare all layouts with the network.

    MindSpore names the states of a weight by a word and a dot before the weight's name, as ``moment1.fc.weight``;
    states with the weight's shape have its layout. A parameter without layout counts as held whole by all ranks. That
    must not happen to a weight by mistake, because a recovery would take another rank's part for a copy.

    Raises UsageError when a layout names no parameter of the network, is for another number of dimensions, or is
    missing.
    """
    shapes = {parameter.name: tuple(parameter.shape) for parameter in network.get_parameters()}
    given = {layout.parameter: layout for layout in layouts}
    for name, layout in given.items():
        if name not in shapes:
            raise UsageError(f"layouts: the network has no parameter {name}")
        if len(layout.tensor_map) != len(shapes[name]):
            raise UsageError(
                f"layouts: {name} has the shape {list(shapes[name])}, its layout is for {len(layout.tensor_map)} "
                "dimension(s)"
            )
    optimized = (getattr(cell, "parameters", ()) for _, cell in network.cells_and_names())
    weights = {parameter.name for parameters in optimized if isinstance(parameters, tuple) for parameter in parameters}
    unknown = sorted(weights - given.keys())
    if unknown:
        raise UsageError(
            f"layouts: none for {unknown[0]}; where all ranks hold it whole, give it None for each dimension"
        )
    states = []
    for name, shape in shapes.items():
        weight = given.get(name.partition(".")[2])
        if name in given or weight is None:
            continue
        if shape == shapes[weight.parameter]:
            states.append(replace(weight, parameter=name))
        elif prod(shape) > 1 and (any(weight.tensor_map) or weight.opt_shard_size):
            raise UsageError(
                f"layouts: none for {name}, whose shape differs from that of {weight.parameter}, so that it cannot "
                "have the same layout"
            )
    return [*layouts, *states]
