"""The plan of one step, from what its slices show and what the operator wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.file_names import format_of
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.reshard import CAST_TYPES, FLOATS, CastType, OutputFormat, ReshardOptions, ReshardPlan
from ms_recover.model.shard_metadata import NEVER_SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.model.texts import list_some, name_some
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.reshard.axes import target_of_axes
from ms_recover.planning.reshard.iteration import common_of, prefix_of, split_parameters
from ms_recover.planning.reshard.rename import rename_all
from ms_recover.planning.reshard.source import Source, disputed, find_source
from ms_recover.planning.reshard.target import FULL, Target, TargetCuts
from ms_recover.planning.reshard.transfers import Origin, Output, pattern_like, plan_transfers
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.runs import Run


@dataclass(frozen=True, kw_only=True)
class ReshardTask:
    """What a step is to be cut into; without a target it follows from the axes, or is the full checkpoint.

    For an output in MindFormers' format, `inventory` is the whole tree, and `values` what its slices hold of the
    progress of training, by name.
    """

    target: Target | None
    options: ReshardOptions
    output: str = ""
    inventory: Inventory | None = None
    values: Mapping[str, float] = field(default_factory=dict)


def plan_step(
    parts: Sequence[Comparison], step: Step, run: Run, task: ReshardTask, unequal: Collection[str] = ()
) -> ReshardPlan:
    """Plan one step, as slices of one run.

    `unequal` are parameters of which stages were found to hold different contents.

    Raises
    ------
    MissingInputError
        When the step has no slice, or nothing states how parameters are cut.
    UsageError
        When the target does not fit the parameters.
    """
    compared_parts = [part for part in parts if step in part.facts.steps]
    for compared in compared_parts:
        _check_layouts_known(compared.facts)
    if not compared_parts:
        raise MissingInputError(f"there is no slice of step {step}")
    facts = compared_parts[0].facts
    files = [slice_.file for compared in compared_parts for slice_ in compared.facts.counted_at(step)]
    if not files:
        raise MissingInputError(f"{facts.inventory.root} holds no slice of step {step} that counts")
    source = find_source(compared_parts, step, run)
    if unequal:
        source = disputed(source, unequal)
    maps = [name for name, parameter in source.parameters.items() if parameter.dtype.startswith("MapTensor")]
    if maps:
        raise UsageError(f"{name_some(maps)} are map parameters, which cannot be cut anew")
    target, wanted = task.target, task.options
    if wanted.full:
        target = FULL
    elif target is None:
        target = _target_of_axes(compared_parts, source, wanted)
    form = wanted.form or _form_of(files)
    common = None  # only MindFormers' format states progress beside the slices
    if form == "mindformers":
        common = common_of(task.inventory or facts.inventory, step, files, task.values, wanted.common)
    elif wanted.common:
        raise UsageError(f"common.json is of MindFormers' format alone, and slices are written as {form}")
    world_size = max(compared.facts.world.ranks for compared in compared_parts)
    origin = Origin(root=facts.inventory.root, step=step, run_id=run.run_id, world_size=world_size)
    output = Output(
        path=task.output,
        form=form,
        pattern=wanted.pattern or pattern_like(files[0]),
        prefix=prefix_of(files[0]) if common is not None else files[0].prefix,
        rules=wanted.rename,
        casts=casts_of(source, wanted.dtype) if wanted.dtype is not None else {},
        shard_size=wanted.shard_size if wanted.full else 0,
        common=common,
    )
    plan = plan_transfers(source, target, origin, output)
    unsaved = [name for name in source.parameters if name.startswith(NEVER_SAVED)] if common is not None else []
    if unsaved:
        plan = replace(plan, warnings=(f"MindFormers' format has no place for {name_some(unsaved)}: left out",))
    return replace(plan, notes=facts.notes)


def casts_of(source: Source, dtype: CastType) -> dict[str, str]:
    """Return the parameters whose values are cast, and the type.

    These are the floating-point parameters of the network. States of the optimizer keep their type, and so do single
    values without a layout: they count, scale and schedule the training.
    """
    name, _ = CAST_TYPES[dtype]
    kinds = split_parameters(source)
    return {
        parameter.name: name
        for parameter in source.parameters.values()
        if parameter.dtype in FLOATS and parameter.dtype != name
        if kinds[parameter.name] == "model" and (parameter.cut or prod(parameter.shape) != 1)
    }


def why_incomplete(plan: ReshardPlan) -> str | None:
    """Return what a plan lacks, as one clause; None for a complete one."""
    if plan.complete:
        return None
    if plan.disagreements:
        return plan.disagreements[0]
    names = list(dict.fromkeys(region.parameter for region in plan.missing))
    return f"nobody holds all of {name_some(names)} ({plan.missing[0].reason})"


def _form_of(files: Sequence[SliceFile]) -> OutputFormat:
    forms = Counter(format_of(file.path) or "ckpt" for file in files)
    return max(sorted(forms), key=lambda form: forms[form])


def _target_of_axes(held: Sequence[Comparison], source: Source, wanted: ReshardOptions) -> Target:
    assert wanted.axes is not None
    stages, devices = _stages_of(held, source)
    names = rename_all(list(source.parameters), wanted.rename)
    renamed = [{names[name]: replace(one, parameter=names[name]) for name, one in found.items()} for found in stages]
    return target_of_axes(renamed, devices, wanted.axes, wanted.order, wanted.optimizer_shards)


def _stages_of(parts: Sequence[Comparison], source: Source) -> tuple[list[Mapping[str, Layout]], int]:
    """Return the layouts of each stage of the source for the parameters that its slices hold, and its ranks."""
    world = parts[0].facts.world.ranks
    devices = {compared.facts.stages.devices or world for compared in parts}
    if len(devices) > 1:
        raise UsageError(
            f"parts of the source state {list_some(sorted(devices))} ranks in a stage: name strategy files"
        )
    (each,) = devices
    by_stage: list[dict[str, Layout]] = [{} for _ in range(max(world // each, 1))]
    cuts = TargetCuts(Target(devices=each, stages=(), source="the source"))
    for compared in parts:
        for stage, layouts in compared.facts.stages.layouts.items():
            for name, layout in layouts.items():
                parameter = source.parameters.get(name)
                if parameter is not None and parameter.known:
                    by_stage[stage][name] = cuts.fitted(layout, name, parameter.shape)
    empty = [stage for stage, layouts in enumerate(by_stage) if not layouts]
    if empty and source.stage_names:
        raise UsageError(f"--axes: no strategy file of stage {empty[0]} of the source is left; name strategy files")
    return list(by_stage), each


def _check_layouts_known(facts: Facts) -> None:
    """Check that something states how the parameters of a tree are cut.

    Raises
    ------
    MissingInputError
        When there are several ranks, no strategy file, and no claim that all ranks hold the same.
    """
    world, stages = facts.world.ranks, facts.stages
    if stages.layouts or world == 1 or len(facts.groups.of(0)) == world:
        return
    why = stages.problem or "no strategy file states how parameters are cut"
    raise MissingInputError(
        f"{facts.inventory.root}: {why}, so that no parameter can be put together from {world} ranks: name the "
        "strategy files with --strategy, or, where all ranks hold the same, say it with --group"
    )
