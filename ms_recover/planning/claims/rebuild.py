"""Lost documents of an iteration, rebuilt: ``metadata.json`` and ``common.json``.

The metadata is that of another iteration of the same run, or is made from the layouts of strategy files and the files'
own headers; what is common comes from the iteration, from the files and from other iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from ms_recover.file_names import WeightKind, WeightsName, weights_name
from ms_recover.model.shard_metadata import (
    NEVER_SAVED,
    CommonInfo,
    SavedLayout,
    ShardedParameter,
    ShardMetadata,
    StoredShard,
)
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.compare_documents import GLOBAL_STEP, ListedFile, compare_files

REQUIRED = ("epoch_num", "step_num", "global_step", "global_batch_size")
"""MindFormers computes with these when it resumes; it takes null for the others."""

MEMBERS = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "ckpt_status")
"""The members that every version of MindFormers reads."""

_LARGEST = 1 << 62


@dataclass(frozen=True, kw_only=True, eq=False)
class RebuiltMetadata:
    """A ``metadata.json``, or why there is none."""

    metadata: ShardMetadata | None
    sources: tuple[tuple[str, str], ...] = ()
    """Each part of the document, and where it comes from."""
    problem: str = ""
    """Why it cannot be rebuilt; empty when it was."""


def rebuild_metadata(
    other: ShardMetadata, iteration: int, files: Mapping[str, ListedFile], *, kinds: frozenset[WeightKind] | None = None
) -> RebuiltMetadata:
    """Rebuild the metadata of an iteration.

    No part of ``metadata.json`` depends on the iteration: MindFormers writes the same bytes as long as the job, its
    layouts and its prefix stay the same. Every file that is there must be as the other iteration's metadata says; files
    that are missing or damaged are expected to be recovered.

    Parameters
    ----------
    other
        The metadata of another iteration, which was found to fit that one's files.
    iteration
        That iteration, for messages.
    files
        The files of the iteration whose metadata is rebuilt, by name.
    kinds
        The kinds of files that were saved; all that the other iteration has by default. Without ``"opt"`` the
        parameters of the optimizer are left out.
    """
    if other.unknown:
        members = ", ".join(other.unknown)
        return _refused(f"the metadata.json of iteration {iteration} has members that are not known: {members}")
    metadata = other if kinds is None else only_kinds(other, kinds)
    named = [name for name in map(weights_name, files) if name]
    prefixes = {name.prefix for name in named}
    if not named:
        return _refused("no file of the iteration is there that could prove its layouts")
    if len(prefixes) > 1:
        shown = ", ".join(sorted(map(repr, prefixes)))
        return _refused(f"the files have different prefixes: {shown}")
    metadata = _with_prefix(metadata, named[0].prefix)
    findings = compare_files(metadata, files)
    wrong = [finding for finding in findings if finding.kind not in ("file missing", "file damaged")]
    if wrong:
        rest = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return _refused(f"the files are not as in iteration {iteration}: {wrong[0].file}: {wrong[0].words}{rest}")
    agreeing = len(metadata.files) - len({finding.file for finding in findings})
    if not agreeing:
        return _refused("no sound file of the iteration is there that could prove it")
    source = f"the metadata.json of iteration {iteration}, with which {agreeing} of {len(metadata.files)} files agree"
    names = "the names of the files" if metadata is not other else source
    return RebuiltMetadata(
        metadata=metadata, sources=(("state_dict_metadata", source), ("storage_data", source), ("file_name", names))
    )


def only_kinds(metadata: ShardMetadata, kinds: frozenset[WeightKind]) -> ShardMetadata:
    """Return what MindFormers would have written had it saved only files of these kinds."""
    kept = {
        name: parameter
        for name, parameter in metadata.parameters.items()
        if (file := weights_name(metadata.stored[name][0][0].file_name)) and file.kind in kinds
    }
    if len(kept) == len(metadata.parameters):
        return metadata
    order = metadata.order and tuple(shard for shard in metadata.order if shard[0] in kept)
    return replace(metadata, parameters=kept, stored={name: metadata.stored[name] for name in kept}, order=order)


def _with_prefix(metadata: ShardMetadata, prefix: str | None) -> ShardMetadata:
    """Return the same metadata of files with another prefix."""
    names: dict[str, str] = {}
    for file in metadata.files:
        if weights := weights_name(file):
            names[file] = weights._replace(prefix=prefix).name
    if all(old == new for old, new in names.items()):
        return metadata
    items: dict[int, tuple[StoredShard, ...]] = {
        id(shards): tuple(replace(item, file_name=names[item.file_name]) for item in shards)
        for shards in metadata.shards
    }
    known: dict[int, tuple[tuple[StoredShard, ...], ...]] = {}
    stored = {}
    for name, shards in metadata.stored.items():
        if id(shards) not in known:
            known[id(shards)] = tuple(items[id(fragment)] for fragment in shards)
        stored[name] = known[id(shards)]
    return replace(metadata, stored=stored)


def metadata_from_layouts(
    stages: Mapping[int, Strategy], source: str, files: Mapping[str, ListedFile]
) -> RebuiltMetadata:
    """Make the metadata of an iteration that was saved without removing redundancy.

    Every sound file of a stage and kind must list the same parameters, and a layout must be known for each of them but
    ``global_step``: MindFormers leaves a parameter that metadata does not list at its initial value, without an error.
    The text equals MindFormers' own but for ``accu_grads.*``, which are never read and are left out. `stages` has the
    strategy of each pipeline stage of the job, by its first rank, and `files` the files of the iteration by name;
    `source` is where the layouts come from, for messages.
    """
    present = {name: weights for name in files if (weights := weights_name(name))}
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
            lists = {frozenset(items) for items in {id(items): items for items in held_by}.values()}
            if len(lists) != 1:
                what = "do not list the same parameters" if lists else "are all missing or damaged"
                return _refused(f"the {kind} files of ranks {first} to {first + size - 1} {what}")
            listed |= {item.name: (kind, item) for items in lists for item in items if item != GLOBAL_STEP}
        known: dict[SavedLayout, SavedLayout] = {}
        files_of: dict[tuple[str, SavedLayout], tuple[tuple[StoredShard, ...], ...]] = {}
        for name in _in_order(listed):
            kind, item = listed[name]
            layout = saved_layout(layouts[name], first) if name in layouts else None
            if not layout or len(layout.counts) != len(item.shape):
                return _refused(f"{source} has no layout of {name!r} that metadata.json could state")
            layout = known.setdefault(layout, layout)
            if name in parameters:
                # The stages of a shared parameter hold all of it each, so that its files are those of all of them.
                joined = _joined(parameters[name], stored[name], _parameter(item, layout), _files(names[kind], layout))
                if joined is None:
                    return _refused(f"several pipeline stages have {name!r} and cut it differently")
                stored[name] = joined
                continue
            parameters[name] = _parameter(item, layout)
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


def _parameter(parameter: Parameter, layout: SavedLayout) -> ShardedParameter:
    seen: Counter[int] = Counter()
    replicas = []
    for fragment in layout.fragments:
        replicas.append(seen[fragment])
        seen[fragment] += 1
    return ShardedParameter(
        dtype=parameter.dtype.lower(),
        replica_id=tuple(replicas),
        global_shape=tuple(length * count for length, count in zip(parameter.shape, layout.counts, strict=True)),
        axis_fragmentations=layout.counts,
        layout=layout,
        chunks=tuple(layout.holders),
        allow_shape_mismatch=False,
        allow_to_save=True,
        type_name=parameter.dtype,
        item_size=parameter.nbytes // (prod(parameter.shape) or 1),
    )


def _files(name: WeightsName, layout: SavedLayout) -> tuple[tuple[StoredShard, ...], ...]:
    return tuple(
        tuple(StoredShard(name._replace(file_index=rank).name, rank, group) for rank in group)
        for group in layout.holders.values()
    )


def _joined(
    first: ShardedParameter,
    files: tuple[tuple[StoredShard, ...], ...],
    other: ShardedParameter,
    other_files: tuple[tuple[StoredShard, ...], ...],
) -> tuple[tuple[StoredShard, ...], ...] | None:
    """Return the files of a parameter that another stage holds, too; None where that one cuts it differently."""
    assert first.layout is not None
    assert other.layout is not None
    if replace(other, layout=replace(other.layout, rank_list=first.layout.rank_list)) != first:
        return None
    joined = []
    for fragment, other_fragment in zip(files, other_files, strict=True):
        group = (*fragment[0].rank_group, *other_fragment[0].rank_group)
        joined.append(tuple(replace(item, rank_group=group) for item in (*fragment, *other_fragment)))
    return tuple(joined)


def _refused(problem: str) -> RebuiltMetadata:
    return RebuiltMetadata(metadata=None, problem=problem)


def saved_layout(layout: Layout, first_rank: int) -> SavedLayout | None:
    """Return a layout as ``metadata.json`` states it for the stage that begins with this rank.

    MindFormers has no optimizer shards there: they are one more cut of the first dimension, over the finest axes that
    the parameter leaves free, one of which is taken apart where that is needed. A layout over 4 x 2 devices whose rows
    are split over the second axis and over 2 shards is one over 2 x 2 x 2 devices with the map ``[[0, 1], -1]``.

    Returns
    -------
    SavedLayout or None
        None for embeddings that are cut by hand or by field, for nested dimensions, and for shards that do not fit.
    """
    if layout.split_shape or layout.field or layout.tensor_shape:
        return None
    matrix, axes = list(layout.device_matrix[::-1]), list(layout.tensor_map)
    if layout.opt_shard_size and axes and not layout.parameter.startswith(NEVER_SAVED):
        used = {axis for dimension in axes for axis in dimension}
        free = [axis for axis in range(len(matrix)) if axis not in used and matrix[axis] > 1]
        shards = prod(matrix[axis] for axis in free) if layout.opt_shard_size < 0 else layout.opt_shard_size
        taken: list[int] = []
        for axis in free:
            if shards % matrix[axis] == 0:
                shards //= matrix[axis]
            elif shards > 1 and matrix[axis] % shards == 0:
                matrix[axis : axis + 1] = [shards, matrix[axis] // shards]
                axes = [tuple(other + (other > axis) for other in dimension) for dimension in axes]
                shards = 1
            else:
                break
            taken.insert(0, axis)
        if shards > 1:
            return None
        axes[0] = (*axes[0], *taken)
    ranks = tuple(range(first_rank, first_rank + prod(matrix)))
    names = tuple(chr(ord("a") + number) for number in range(len(matrix)))
    tensor_map = tuple(-1 if not over else over[0] if len(over) == 1 else over for over in axes)
    return SavedLayout(tuple(matrix[::-1]), tensor_map, False, names, ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuiltCommon:
    """A ``common.json``, or why there is none."""

    common: CommonInfo | None
    """None where a member that MindFormers requires is not known."""
    sources: tuple[tuple[str, str], ...] = ()
    """Each member that is known, and where its value comes from."""
    assumed: tuple[str, ...] = ()
    """Those of them that other iterations have and that nothing proves for this one."""
    unknown: tuple[str, ...] = ()
    """Members that are not known: null where MindFormers accepts that."""

    @property
    def problem(self) -> str:
        """Why it cannot be rebuilt; empty when it was."""
        if self.common:
            return ""
        missing = " and ".join(name for name in self.unknown if name in REQUIRED)
        return f"no file and no other iteration proves its {missing}, and MindFormers does not resume without"


def rebuild_common(
    iteration: int, others: Mapping[int, CommonInfo], *, global_step: int | None = None
) -> RebuiltCommon:
    """Rebuild the ``common.json`` of an iteration.

    Parameters
    ----------
    iteration
        The iteration, which its directory names.
    others
        The ``common.json`` of other iterations of the same job, by iteration.
    global_step
        The value of the parameter ``global_step`` in the ``opt`` files, where they agree on it.
    """
    sound = {at: document for at, document in sorted(others.items()) if document.step_num == at}
    values: dict[str, float | None] = {"step_num": iteration}
    sources = {"step_num": "the name of the directory"}
    assumed: list[str] = []
    if global_step is not None:
        values["global_step"], sources["global_step"] = global_step, "the opt files"
    elif sound and all(document.global_step == at for at, document in sound.items()):
        values["global_step"], sources["global_step"] = iteration, f"the iteration, as in {_named(sound)}"
    epochs = _epochs(iteration, sound)
    if len(epochs) == 1:
        values["epoch_num"], sources["epoch_num"] = epochs[0], f"the steps per epoch, by {_named(sound)}"
    elif (steps := _whole_epochs(sound)) and iteration % steps == 0:
        values["epoch_num"] = iteration // steps
        sources["epoch_num"] = f"{steps} steps per epoch, as in {_named(sound)}"
        assumed.append("epoch_num")
    for name in ("epoch_num", "global_batch_size", "loss_scale"):
        known = {at: value for at, document in sound.items() if (value := getattr(document, name)) is not None}
        if name not in values and known and (len(set(known.values())) == 1 or name == "loss_scale"):
            near = max((at for at in known if at < iteration), default=min(known))
            values[name] = known[near]
            sources[name] = _named(known) if len(set(known.values())) == 1 else f"iteration {near}"
            assumed += [name] * (name != "global_batch_size")
    samples = {at: document.consumed_samples for at, document in sound.items() if document.consumed_samples is not None}
    size = values.get("global_batch_size")
    if size and all(count == at * size for at, count in samples.items()):
        values["consumed_samples"] = iteration * int(size)
        sources["consumed_samples"] = f"the iteration and global_batch_size, as in {_named(samples)}"
    for name in ("loss_scale", "consumed_samples", "ckpt_status"):
        if sound and all(getattr(document, name) is None for document in sound.values()):
            values[name], sources[name] = None, f"null, as in {_named(sound)}"
    members = max((document.members for document in sound.values()), key=len, default=()) or MEMBERS
    unknown = tuple(name for name in members if name not in values)
    common = None
    if all(name in members and name in values for name in REQUIRED):
        common = CommonInfo(**values, members=members)  # type: ignore[arg-type]
    return RebuiltCommon(
        common=common,
        sources=tuple((name, sources[name]) for name in members if name in sources),
        assumed=tuple(assumed),
        unknown=unknown,
    )


def _epochs(iteration: int, others: Mapping[int, CommonInfo]) -> range:
    """Return the epochs that the iteration may be of, by the steps per epoch that fit all other iterations."""
    least, most = 1, _LARGEST
    for at, document in others.items():
        if not document.epoch_num or at < 1:
            return range(0)
        least = max(least, -(-at // document.epoch_num))
        if document.epoch_num > 1:
            most = min(most, (at - 1) // (document.epoch_num - 1))
    if least > most or not others or iteration < 1:
        return range(0)
    return range(-(-iteration // most), -(-iteration // least) + 1)


def _whole_epochs(others: Mapping[int, CommonInfo]) -> int:
    """Return the steps per epoch where several iterations were all saved at the end of an epoch, else 0."""
    epochs = {at: document.epoch_num for at, document in others.items()}
    steps = {at // epoch if epoch and at % epoch == 0 else 0 for at, epoch in epochs.items()}
    return steps.pop() if len(steps) == 1 and len(set(epochs.values())) > 1 else 0


def _named(iterations: Mapping[int, object]) -> str:
    numbers = sorted(iterations)
    shown = ", ".join(map(str, numbers[:4]))
    return f"iteration{'s' * (len(numbers) > 1)} {shown}{' ...' * (len(numbers) > 4)}"
