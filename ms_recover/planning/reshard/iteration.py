"""An output in MindFormers' format "weights 2.0": which file holds a parameter, and the documents beside the files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from ms_recover.errors import UsageError
from ms_recover.file_names import WEIGHT_KINDS, WeightKind, WeightsName, last_named_rank
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.reshard import ReshardPlan, Transfer
from ms_recover.model.shard_metadata import NEVER_SAVED, CommonInfo, ShardMetadata
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.compare_documents import GLOBAL_STEP, ListedFile
from ms_recover.planning.claims.rebuild import MEMBERS, REQUIRED, metadata_from_layouts, rebuild_common, saved_layout
from ms_recover.planning.reshard.source import Source
from ms_recover.planning.supply.whole import WholeParameter

PROGRESS = ("epoch_num", "step_num", "loss_scale", "global_batch_size", "consumed_samples")
"""Parameters of MindFormers' old slices that the new format has in ``common.json`` and in no file."""

_INSTEAD = "choose another --format"


def split_parameters(source: Source) -> dict[str, WeightKind | None]:
    """Return the file that each parameter goes to, None for none.

    Of a tree in another format the optimizer's are ``global_step``, and those that are another parameter's name behind
    a beginning which nothing else has: ``adam_m.layer.weight``, but not ``encoder.bias`` of ``bias`` where there is an
    ``encoder.layer.weight``.
    """
    prefixes = _state_prefixes(source.parameters.keys())
    kinds: dict[str, WeightKind | None] = {}
    for name, whole in source.parameters.items():
        if name in PROGRESS or name.startswith(NEVER_SAVED):
            kinds[name] = None
        else:
            kinds[name] = whole.kind or ("opt" if name == GLOBAL_STEP.name or _is_state(name, prefixes) else "model")
    return kinds


def saved_parameters(listed: Sequence[WholeParameter], kinds: Mapping[str, WeightKind | None]) -> list[WholeParameter]:
    """Return the parameters of a stage that are in files; ``global_step`` alone, which common.json has, is no file."""
    kept = [one for one in listed if kinds[one.name] is not None]
    optimizer = {one.name for one in kept if kinds[one.name] == "opt"}
    return [one for one in kept if one.name != GLOBAL_STEP.name] if optimizer == {GLOBAL_STEP.name} else kept


def _state_prefixes(names: Collection[str]) -> frozenset[str]:
    """Return the dotted beginnings of names behind which only names of other parameters stand."""
    prefixes: dict[str, bool] = {}
    for name in names:
        for prefix, rest in _beginnings(name):
            prefixes[prefix] = prefixes.get(prefix, True) and rest in names
    return frozenset(prefix for prefix, whole in prefixes.items() if whole)


def _is_state(name: str, prefixes: Collection[str]) -> bool:
    return any(prefix in prefixes for prefix, _ in _beginnings(name))


def _beginnings(name: str) -> Iterator[tuple[str, str]]:
    """Yield each dotted beginning of a name, and the rest behind it."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end]), ".".join(parts[end:])


def prefix_of(file: SliceFile) -> str | None:
    """Return the prefix of the files of an iteration that is made of slices like this one."""
    if file.kind is not None:
        return file.prefix or None
    named = last_named_rank(file.prefix)
    return (file.prefix[: named.start()] if named is not None else file.prefix) or None


def weights_path(common: CommonInfo, prefix: str | None, part: WeightKind, rank: int, ranks: int) -> str:
    """Return the path of a file below the output."""
    return f"iteration_{common.step_num:08d}/{WeightsName(prefix, part, rank, ranks).name}"


def common_of(
    inventory: Inventory,
    step: Step,
    files: Sequence[SliceFile],
    values: Mapping[str, float],
    given: Sequence[tuple[str, float]],
) -> CommonInfo:
    """Return the ``common.json`` of an output.

    Parameters
    ----------
    inventory, step, files
        The source, and its slices of the step.
    values : mapping of str to float
        What slices hold as parameters, by name.
    given : sequence of (str, float)
        What the operator says; it goes before everything else.

    Raises
    ------
    UsageError
        When the iteration is not known, or what MindFormers cannot resume without.
    """
    known: dict[str, float | None] = {}
    members: tuple[str, ...] = MEMBERS
    for saved in inventory.iterations:
        if saved.step == step:
            info = saved.common.value
            if info is None:
                stated = ((other.step.step, other.common.value) for other in inventory.iterations)
                sound = {number: common for number, common in stated if common is not None}
                info = rebuild_common(step.step, sound, global_step=saved.global_step).common
            if info is not None:
                members, known = info.members, info.stated
            known["step_num"] = step.step
    if not inventory.iterations:  # slices of another format hold progress as parameters, and in manifests
        known = {name: value for name, value in values.items() if name in (*MEMBERS, "consumed_samples")}
        cumulative = {file.manifest.cumulative_step for file in files if file.manifest is not None} - {None}
        counted = [*cumulative, known.get("global_step"), step.step if step.epoch == 1 else None]
        known["step_num"] = next((number for number in counted if number is not None), None)
        if len(cumulative) > 1:
            known["step_num"] = None
        known.setdefault("epoch_num", step.epoch)
    known.update(given)  # the operator's word goes before all that was found
    if not inventory.iterations:
        known.setdefault("global_step", known["step_num"])
    members = tuple(dict.fromkeys((*members, *known)))
    missing = [name for name in REQUIRED if known.get(name) is None]
    if missing:
        words = " ".join(f"--common {name}=NUMBER" for name in missing if name != "global_step")
        raise UsageError(
            f"{inventory.root}: nothing in step {step} states {' or '.join(missing)}, without which MindFormers does "
            f"not resume: give {words or '--common global_step=NUMBER'}"
        )
    counts = {name: value if name == "loss_scale" or value is None else int(value) for name, value in known.items()}
    return CommonInfo(**counts, members=members)  # type: ignore[arg-type]


def metadata_of(plan: ReshardPlan, prefix: str | None, source: str) -> ShardMetadata:
    """Return the ``metadata.json`` of a complete plan; `source` is what states the cut, for messages.

    ``global_step``, and what has no dimension, is in files and not listed, as MindFormers does it.

    Raises
    ------
    UsageError
        When the document cannot state how a parameter is cut.
    """
    stages: dict[int, Strategy] = {}
    files: dict[str, ListedFile] = {}
    moves: dict[str, list[Transfer]] = {}
    kinds = [kind for kind in WEIGHT_KINDS if any(file.kind == kind for file in plan.files)]
    for stage, strategy in enumerate(plan.strategies):
        first = stage * plan.devices
        layouts = {layout.parameter: layout for layout in strategy.layouts}
        for kind in kinds:
            like = next((file for file in plan.files if (file.stage, file.kind) == (stage, kind)), None)
            listed = []
            for moved, part, transfer in plan.parts_of(like) if like is not None else ():
                name = moved.name
                if name == GLOBAL_STEP.name or not transfer.shape:
                    continue
                # The document has a layout for all that it lists, where no strategy needs to name what is whole.
                layout = layouts.setdefault(name, Layout(name, (plan.devices,), ((),) * len(transfer.shape)))
                if saved_layout(layout, first) is None:
                    raise UsageError(f"{source} cuts {name!r} in a way that metadata.json cannot state: {_INSTEAD}")
                moves.setdefault(name, []).append(transfer)
                nbytes = prod(part.shape) * moved.item_size(transfer)
                listed.append(Parameter(name, moved.cast or transfer.dtype, part.shape, nbytes))
            same = ListedFile(parameters=ParameterList(listed))
            for rank in range(first, first + plan.devices):
                files[WeightsName(prefix, kind, rank, plan.ranks).name] = same
        stages[first] = Strategy(strategy.stages, strategy.save_count, tuple(layouts.values()))
    made = metadata_from_layouts(stages, source, files)
    if made.metadata is None:
        raise UsageError(f"--format mindformers: {made.problem}: {_INSTEAD}")
    _check_regions(made.metadata, moves, source)
    return made.metadata


def _check_regions(metadata: ShardMetadata, moves: Mapping[str, Sequence[Transfer]], source: str) -> None:
    """Check that each rank's file holds the regions that metadata says."""
    for name, transfers in moves.items():
        stated = metadata.parameters[name]
        assert stated.layout is not None
        for transfer in transfers:
            for cell, fragment in zip(transfer.cells, stated.layout.fragments, strict=True):
                if stated.region_of(fragment) != transfer.parts[cell].box:
                    raise UsageError(
                        f"{source} cuts {name!r} over ranks in an order that metadata.json cannot state: {_INSTEAD}"
                    )
