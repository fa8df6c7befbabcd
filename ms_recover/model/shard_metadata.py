"""The documents that MindFormers writes beside the files of one iteration in its format "weights 2.0".

``metadata.json`` names each parameter's cut, each shard's files and the ranks that hold it; ``common.json`` has the
progress of training. Both are claims: the files decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ms_recover.file_names import weights_name
from ms_recover.model.strategy import Layout
from ms_recover.model.units import Count, Rank

NEVER_SAVED = "accu_grads."
"""How the names of parameters begin that ``metadata.json`` lists with pipeline stages and that are in no file."""


@dataclass(frozen=True)
class SavedLayout:
    """The layout of one parameter as ``metadata.json`` states it; optimizer shards are part of the cut."""

    device_matrix: tuple[int, ...]
    """Devices of the stage per axis, most significant axis first."""
    tensor_map: tuple[int | tuple[int, ...], ...]
    """For each dimension -1 for a whole one, the axis it is split over, counted from the right of the device matrix,
    or several such axes, the most significant first.
    """
    interleaved_parallel: bool
    alias_name: tuple[str, ...]
    """A name for each axis of the device matrix."""
    rank_list: tuple[int, ...]
    """The ranks of the stage, consecutive; their places count row by row over the device matrix."""

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """For each dimension the axes it is split over, as `ms_recover.model.strategy.Layout.tensor_map`."""
        return tuple(item if isinstance(item, tuple) else (() if item == -1 else (item,)) for item in self.tensor_map)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut."""
        sizes = self.device_matrix[::-1]
        return tuple(prod(sizes[axis] for axis in axes) for axes in self.axes)

    @cached_property
    def fragments(self) -> tuple[int, ...]:
        """The index of the fragment that each rank of the stage holds, in the grid `counts`, row by row."""
        sizes = self.device_matrix[::-1]
        held = [0] * len(self.rank_list)
        for axis in (axis for axes in self.axes for axis in axes):
            size, stride = sizes[axis], prod(sizes[:axis])
            held = [at * size + place // stride % size for place, at in enumerate(held)]
        return tuple(held)

    @cached_property
    def holders(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks of the stage that hold each fragment, ascending, by its index, in the order of their first rank."""
        found: dict[int, list[int]] = {}
        for rank, fragment in zip(self.rank_list, self.fragments, strict=True):
            found.setdefault(fragment, []).append(rank)
        return {fragment: tuple(ranks) for fragment, ranks in found.items()}

    def layout_of(self, parameter: str) -> Layout:
        """Return the same cut of the parameter of this name as a strategy file's layout."""
        return Layout(parameter=parameter, device_matrix=self.device_matrix, tensor_map=self.axes)


@dataclass(frozen=True)
class ShardedParameter:
    """An entry of ``state_dict_metadata``: how one parameter, or many that are equal in this, is cut."""

    dtype: str
    """As it is written: ``"float32"``, or ``"Float32"`` where MindFormers merged the metadata of two saves."""
    replica_id: tuple[int, ...] | int
    """Of each rank of the layout the how-manieth holder of its fragment it is; 0 without a layout."""
    global_shape: tuple[int, ...]
    axis_fragmentations: tuple[int, ...]
    """Into how many parts each dimension is cut."""
    layout: SavedLayout | None
    chunks: tuple[int, ...]
    """The indices of the fragments in the grid `axis_fragmentations`, row by row, in the order of their first rank."""
    allow_shape_mismatch: bool
    allow_to_save: bool
    type_name: str
    """MindSpore's name of the type, as slices list it: ``"Float32"``."""
    item_size: int
    """Bytes per element."""

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of every fragment."""
        return tuple(whole // parts for whole, parts in zip(self.global_shape, self.axis_fragmentations, strict=True))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of every fragment."""
        return prod(self.local_shape) * self.item_size

    def region_of(self, fragment: int) -> tuple[tuple[int, int], ...]:
        """Return the extents of a fragment in the global tensor, by its index: a start and a stop per dimension."""
        index: list[int] = []
        for parts in reversed(self.axis_fragmentations):
            fragment, at = divmod(fragment, parts)
            index.append(at)
        return tuple(
            (at * length, (at + 1) * length) for at, length in zip(reversed(index), self.local_shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One file that is listed for one shard."""

    file_name: str
    storage_rank: int
    """The rank that wrote the file."""
    rank_group: tuple[int, ...]
    """All ranks that hold the shard, ascending. Versions of 2025 do not write it: then by the layout, or the storage
    ranks of the shard's files.
    """


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that metadata names, and the rank that wrote it."""

    file: str
    rank: Rank


@dataclass(frozen=True, slots=True)
class Sharded:
    """A parameter as metadata states it: the cut, and for each fragment, by its index, the ranks that hold it."""

    name: str
    dtype: str
    global_shape: tuple[Count, ...]
    axis_fragmentations: tuple[Count, ...]
    fragments: tuple[tuple[Count, tuple[Rank, ...]], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardMetadata:
    """The contents of one ``metadata.json``.

    Equal parts are one object: `parameters` that are equal but for their names, and the `stored` shards of parameters
    that are cut and saved alike. So planning can go by identity, and a tree of thousands of ranks stays small.
    """

    RECORD = "world_size removed_redundancy files=named_files sharded"

    parameters: Mapping[str, ShardedParameter]
    """By name, in file order."""
    stored: Mapping[str, tuple[tuple[StoredShard, ...], ...]]
    """For each parameter the files of each of its `ShardedParameter.chunks`, in that order."""
    order: tuple[tuple[str, int], ...] | None = None
    """The shards, name and fragment index, in the order of ``storage_data``; None for the order in which MindFormers
    lists the shards of a save that removes no redundancy, rank by rank.
    """
    states_groups: bool = True
    """Whether the file states the rank groups."""
    unknown: tuple[str, ...] = ()
    """The names of members that are not known; they are lost when it is written again."""

    @cached_property
    def shards(self) -> tuple[tuple[StoredShard, ...], ...]:
        """The files of each shard, each object once however many shards it belongs to."""
        alike = {id(held): held for held in self.stored.values()}
        return tuple({id(items): items for held in alike.values() for items in held}.values())

    @cached_property
    def files(self) -> Mapping[str, int]:
        """The rank that wrote each file that is named, by the file's name."""
        return {item.file_name: item.storage_rank for items in self.shards for item in items}

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each pipeline stage that a layout names, ascending."""
        layouts = {id(one.layout): one.layout for one in self.parameters.values() if one.layout}
        return tuple(sorted({layout.rank_list for layout in layouts.values()}))

    @cached_property
    def world_size(self) -> Count:
        """One more than the highest rank that is named."""
        groups = {id(items[0].rank_group): items[0].rank_group for items in self.shards}
        highest = [ranks[-1] for ranks in (*self.stages, *groups.values())]
        return max((*highest, *self.files.values()), default=-1) + 1

    @cached_property
    def removed_redundancy(self) -> bool | None:
        """Whether only one of the ranks that hold a shard wrote it; None where no shard has a second holder.

        Files that were taken out of the metadata by hand do not count as removed redundancy: their names still count.
        """
        shared = [items for items in self.shards if len(items[0].rank_group) > 1]
        if not shared:
            return None
        if any(len(items) > 1 for items in shared):
            return False
        listed = Counter(name.kind for name in map(weights_name, self.files) if name)
        name = weights_name(shared[0][0].file_name)
        return name is not None and name.file_count == listed[name.kind]

    @property
    def named_files(self) -> tuple[NamedFile, ...]:
        """The files that are named, sorted."""
        return tuple(NamedFile(name, rank) for name, rank in sorted(self.files.items()))

    @property
    def sharded(self) -> tuple[Sharded, ...]:
        """The parameters with the ranks that hold their fragments, in file order."""
        found = []
        for name, one in self.parameters.items():
            holders = (items[0].rank_group for items in self.stored[name])
            fragments = tuple(zip(one.chunks, holders, strict=True))
            found.append(Sharded(name, one.type_name, one.global_shape, one.axis_fragmentations, fragments))
        return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonInfo:
    """The contents of one ``common.json``; None for null, and for members that the file does not have."""

    RECORD = "common=stated"

    epoch_num: int | None = None
    step_num: int | None = None
    """The iteration."""
    global_step: int | None = None
    loss_scale: float | None = None
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    """Written by MindFormers from 2026 on; 2.0.0 refuses a file that has it."""
    ckpt_status: int | None = None
    """0 healthy, 1 unhealthy, None when no monitor of health ran."""
    members: tuple[str, ...] = ()
    """The members that the file has, in their order, those of other programs included."""

    @property
    def stated(self) -> dict[str, float | int | None]:
        """The members that MindFormers writes and this file has, in its order."""
        known = CommonInfo.__dataclass_fields__.keys() - {"members"}
        return {name: getattr(self, name) for name in self.members if name in known}


def shards_by_rank(parameters: Mapping[str, ShardedParameter]) -> Iterator[tuple[str, int]]:
    """Yield the shards in the order in which MindFormers lists them when it removes no redundancy.

    That is rank by rank, each by the order of the parameters, and each shard once, at the first rank that holds it.
    Parameters without a layout are left out: no document states which ranks have them.
    """
    stages: dict[tuple[int, ...], list[tuple[str, SavedLayout]]] = {}
    for name, one in parameters.items():
        if one.layout:
            stages.setdefault(one.layout.rank_list, []).append((name, one.layout))
    for ranks, held in sorted(stages.items()):
        layouts = {id(layout): layout for _, layout in held}
        first: dict[int, dict[int, int]] = {}
        for key, layout in layouts.items():
            for fragment, holders in layout.holders.items():
                first.setdefault(holders[0], {})[key] = fragment
        for rank in ranks:
            if fresh := first.get(rank):
                yield from ((name, fresh[id(layout)]) for name, layout in held if id(layout) in fresh)
