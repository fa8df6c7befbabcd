"""A ``metadata.json`` that no iteration has, from the layouts of strategy files and the files' own headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ms_recover.file_names import WeightKind, WeightsName, weights_name
from ms_recover.model.shard_metadata import SavedLayout, ShardedParameter, ShardMetadata, StoredShard
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Strategy
from ms_recover.planning.claims.compare_documents import GLOBAL_STEP, ListedFile
from ms_recover.planning.claims.metadata_layouts import saved_layout
from ms_recover.planning.claims.rebuild_metadata import RebuiltMetadata


def metadata_from_layouts(
    stages: Mapping[int, Strategy], source: str, files: Mapping[str, ListedFile]
) -> RebuiltMetadata:
    """Make the metadata of an iteration that was saved without removing redundancy.

    Every sound file of a stage and kind must list the same parameters, and a layout must be known for each of them but
    ``global_step``: MindFormers leaves a parameter that metadata does not list at its initial value, without an error.
    The text equals MindFormers' own but for ``accu_grads.*``, which are never read and are left out.

    Parameters
    ----------
    stages
        The strategy of each pipeline stage, by its first rank; all stages of the job.
    source
        Where the layouts come from, for messages.
    files
        The files of the iteration by name.
    """
    present = {name: parsed for name in files if (parsed := weights_name(name))}
    named = {file: name for file, name in present.items() if not files[file].problem}
    kinds: list[WeightKind] = sorted({name.kind for name in present.values()} | {"model"})
    sizes = {strategy.devices_per_stage for strategy in stages.values()}
    size = max(sizes, default=0)
    world = size * len(stages)
    if len(sizes) != 1 or sorted(stages) != list(range(0, world, size or 1)):
        return _refused(f"{source} is not one strategy for each pipeline stage")
    if not named or len({name.prefix for name in named.values()}) > 1:
        return _refused("there is no sound file, or their prefixes differ")
    if any(name.file_count != world for name in named.values()):
        return _refused(f"the names of the files do not count the {world} ranks of {source}: redundancy may be removed")
    names = {name.kind: name for name in present.values()}
    parameters: dict[str, ShardedParameter] = {}
    stored: dict[str, tuple[tuple[StoredShard, ...], ...]] = {}
    for first, strategy in sorted(stages.items()):
        layouts = {layout.parameter: layout for layout in strategy.layouts}
        listed: dict[str, tuple[WeightKind, Parameter]] = {}
        for kind in kinds:
            held_by = (
                files[file].parameters
                for file, name in named.items()
                if name.kind == kind and first <= name.file_index < first + size
            )
            lists = {frozenset(held) for held in {id(held): held for held in held_by}.values()}
            if len(lists) != 1:  # files that list differently were dealt out: layouts alone do not say to whom
                what = "do not list the same parameters" if lists else "are all missing or damaged"
                return _refused(f"the {kind} files of ranks {first} to {first + size - 1} {what}")
            listed |= {one.name: (kind, one) for held in lists for one in held if one != GLOBAL_STEP}
        known: dict[SavedLayout, SavedLayout] = {}
        files_of: dict[tuple[str, SavedLayout], tuple[tuple[StoredShard, ...], ...]] = {}
        for name in _in_order(listed):
            kind, one = listed[name]
            layout = saved_layout(layouts[name], first) if name in layouts else None
            if not layout or len(layout.counts) != len(one.shape):
                return _refused(f"{source} has no layout of {name!r} that metadata.json could state")
            layout = known.setdefault(layout, layout)
            if name in parameters:
                joined = _joined(parameters[name], stored[name], _parameter(one, layout), _files(names[kind], layout))
                if joined is None:
                    return _refused(f"several pipeline stages have {name!r} and cut it differently")
                stored[name] = joined
                continue
            parameters[name] = _parameter(one, layout)
            stored[name] = files_of.setdefault((kind, layout), _files(names[kind], layout))
    words = f"{source}, with which {len(named)} of {world * len(kinds)} files agree"
    sources = (
        ("state_dict_metadata", f"layouts: {words}; types and shapes: the files"),
        ("storage_data", f"the names of the files; rank groups: {source}"),
    )
    return RebuiltMetadata(metadata=ShardMetadata(parameters=parameters, stored=stored), sources=sources)


def _in_order(listed: Mapping[str, tuple[WeightKind, Parameter]]) -> list[str]:
    """Return the names of parameters in MindFormers' order: each of the network before its optimizer states."""
    network = {name for name, (kind, _) in listed.items() if kind == "model"}

    def key(name: str) -> tuple[str, bool, str]:
        rest = name
        while rest not in network and "." in rest:
            rest = rest.partition(".")[2]
        return (rest if rest in network else name), name not in network, name

    return sorted(listed, key=key)


def _parameter(one: Parameter, layout: SavedLayout) -> ShardedParameter:
    seen: Counter[int] = Counter()
    replicas = []
    for fragment in layout.fragments:
        replicas.append(seen[fragment])
        seen[fragment] += 1
    return ShardedParameter(
        dtype=one.dtype.lower(),
        replica_id=tuple(replicas),
        global_shape=tuple(length * count for length, count in zip(one.shape, layout.counts, strict=True)),
        axis_fragmentations=layout.counts,
        layout=layout,
        chunks=tuple(layout.holders),
        allow_shape_mismatch=False,
        allow_to_save=True,
        type_name=one.dtype,
        item_size=one.nbytes // (prod(one.shape) or 1),
    )


def _files(name: WeightsName, layout: SavedLayout) -> tuple[tuple[StoredShard, ...], ...]:
    return tuple(
        tuple(StoredShard(name._replace(file_index=rank).name, rank, group) for rank in group)
        for group in layout.holders.values()
    )


def _joined(
    first: ShardedParameter,
    held: tuple[tuple[StoredShard, ...], ...],
    other: ShardedParameter,
    more: tuple[tuple[StoredShard, ...], ...],
) -> tuple[tuple[StoredShard, ...], ...] | None:
    """Return the files of a parameter that another stage holds, too; None where that one cuts it differently."""
    if first.layout is None or other.layout is None:
        return None
    if replace(other, layout=replace(other.layout, rank_list=first.layout.rank_list)) != first:
        return None
    joined = []
    for one, another in zip(held, more, strict=True):
        group = (*one[0].rank_group, *another[0].rank_group)
        joined.append(tuple(replace(item, rank_group=group) for item in (*one, *another)))
    return tuple(joined)


def _refused(problem: str) -> RebuiltMetadata:
    return RebuiltMetadata(metadata=None, problem=problem)
