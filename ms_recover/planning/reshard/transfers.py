"""The plan: which region of the source goes where, grouped by how parameters are cut and not by parameter.

And where the files of the output lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.errors import UsageError
from ms_recover.file_names import FULL_STEM, PARTIAL_MARK, WeightKind, ending_of, marked
from ms_recover.model.compose import MissingRegion
from ms_recover.model.inventory import SliceFile
from ms_recover.model.reshard import (
    MovedParameter,
    OutputFormat,
    ReshardPlan,
    TakenPiece,
    TargetFile,
    TargetPart,
    Transfer,
)
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.layouts import NOT_SHARDED
from ms_recover.planning.claims.regions import Box, Grid, cover, runs_of
from ms_recover.planning.reshard.iteration import metadata_of, saved_parameters, split_parameters, weights_path
from ms_recover.planning.reshard.rename import Rule, rename_all
from ms_recover.planning.reshard.source import Source
from ms_recover.planning.reshard.target import Target, TargetCut, TargetCuts, groups_of
from ms_recover.planning.supply.whole import WholeParameter

_DEFAULT_PATTERN = "rank_{rank}/{prefix}-{epoch}_{step}"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The tree and the step that the source is of."""

    root: str
    step: Step
    run_id: str | None
    world_size: int


@dataclass(frozen=True, kw_only=True)
class Output:
    """The files to write.

    Parameters
    ----------
    path : str
        The folder.
    form, pattern, prefix
        Format of the files; where they lie in the folder, and the prefix of their names.
    rules, casts
        The new names of parameters, and the types that they are cast to, by their names in the source.
    shard_size : int
        For a full checkpoint: bytes of contents of a file at most, 0 for no limit.
    common : CommonInfo or None
        For MindFormers' format, its ``common.json``.
    """

    path: str
    form: OutputFormat
    pattern: str
    prefix: str | None
    rules: Sequence[Rule]
    casts: Mapping[str, str]
    shard_size: int
    common: CommonInfo | None


def plan_transfers(source: Source, target: Target, origin: Origin, output: Output) -> ReshardPlan:
    """Return the plan for one step.

    Raises
    ------
    UsageError
        When the target does not fit the parameters: it does not divide them, or names others.
    """
    names, common = rename_all(list(source.parameters), output.rules), output.common
    wanted, left_out = _wanted(source, target, names)
    kinds = split_parameters(source) if common is not None else dict.fromkeys(source.parameters)
    if common is not None:
        wanted = [saved_parameters(listed, kinds) for listed in wanted]
    cuts = TargetCuts(target)
    numbers: dict[object, int] = {}
    transfers: list[Transfer] = []
    parameters: list[MovedParameter] = []
    lists: list[dict[WeightKind | None, list[int]]] = []
    groups: list[dict[WeightKind | None, list[tuple[int, ...]]]] = []
    lacking = set(range(len(wanted))) if source.lost else set()
    missing: dict[MissingRegion, None] = {}
    for stage, listed in enumerate(wanted):
        mine: dict[WeightKind | None, list[int]] = {}
        used: dict[WeightKind | None, list[TargetCut]] = {}
        for whole in listed:
            missing.update(dict.fromkeys(whole.missing))
            if not whole.known:
                lacking.add(stage)
                continue
            name = names[whole.name]
            cut = cuts.cut(target.stages[stage].get(name), name, whole.shape)
            # Parameters that are cut alike share one transfer: a plan stays small where parameters are many.
            key = (whole.dtype, whole.shape, id(whole.regions), id(cut))
            if key not in numbers:
                numbers[key] = len(transfers)
                transfers.append(_transfer(whole, cut))
            mine.setdefault(kinds[whole.name], []).append(len(parameters))
            used.setdefault(kinds[whole.name], []).append(cut)
            parameters.append(MovedParameter(name, whole.name, numbers[key], whole.own, output.casts.get(whole.name)))
        if not mine:  # each rank of the target gets a file, also where a stage has nothing for it
            mine, used = {None: []}, {None: []}
        lists.append(mine)
        groups.append({kind: groups_of(cuts_of, target.devices) for kind, cuts_of in used.items()})
    # Of a lost stage nothing is known, so that any file may lack something of it.
    missing.update(dict.fromkeys(source.lost))
    plan = ReshardPlan(
        root=origin.root,
        output=output.path,
        form=output.form,
        step=origin.step,
        run_id=origin.run_id,
        world_size=origin.world_size,
        ranks=target.ranks,
        full=target.full and common is None,
        sources=source.slices,
        transfers=tuple(transfers),
        parameters=tuple(parameters),
        strategies=() if target.full and common is None else tuple(_strategies(target, wanted, names)),
        devices=target.devices,
        missing=tuple(missing),
        disagreements=source.disagreements,
        left_out=tuple(left_out),
        common=common,
        overlaps=tuple(overlap for listed in wanted for whole in listed if whole.known for overlap in whole.overlaps),
    )
    if plan.full:
        files = _full_files(plan, lists[0].get(None, []), output.shard_size, lacks=bool(lacking))
    else:
        files = [
            TargetFile(
                rank=stage * target.devices + place,
                target=_name_of(output, stage * target.devices + place, origin.step, part, target.ranks),
                parameters=tuple(mine),
                place=place,
                stage=stage,
                group=tuple(stage * target.devices + other for other in groups[stage][part][place]),
                lacks=stage in lacking,
                kind=part,
            )
            for stage, kinds_of in enumerate(lists)
            for part, mine in sorted(kinds_of.items(), key=lambda kind: kind[0] or "")
            for place in range(target.devices)
        ]
    twice = next((name for name, count in Counter(file.target for file in files).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"pattern {output.pattern!r} gives several ranks one file, {twice}: put {{rank}} into it")
    plan = replace(plan, files=tuple(files))
    if not plan.complete:
        return replace(plan, files=tuple(_as_it_can_be(plan, file) for file in files))
    return replace(plan, metadata=metadata_of(plan, output.prefix, target.source)) if common is not None else plan


def _as_it_can_be(plan: ReshardPlan, file: TargetFile) -> TargetFile:
    return replace(file, target=marked(file.target, PARTIAL_MARK)) if plan.is_partial(file) else file


def _wanted(source: Source, target: Target, names: Mapping[str, str]) -> tuple[list[list[WholeParameter]], list[str]]:
    """Return the parameters of each stage of the target, in the order of the network, and those that no stage takes."""
    wholes = list(source.parameters.values())
    if target.full:
        return [wholes], []
    _check_names(source, target, names)
    taken: list[set[str]] = [set() for _ in target.stages]
    for stage, layouts in enumerate(target.stages):
        taken[stage].update(whole.name for whole in wholes if names[whole.name] in layouts)
    origins = [
        {at for at, names_of in enumerate(source.stage_names) if any(names.get(name) in layouts for name in names_of)}
        for layouts in target.stages
    ]
    for whole in wholes:
        if (not whole.cut or prod(whole.shape) == 1) and not any(whole.name in here for here in taken):
            for here, origin in zip(taken, origins, strict=True):
                if origin & whole.stages or whole.stages >= source.alive or len(taken) == 1:
                    here.add(whole.name)
    anywhere = set().union(*taken)
    wanted = [[whole for whole in wholes if whole.name in here] for here in taken]
    return wanted, [whole.name for whole in wholes if whole.name not in anywhere]


def _check_names(source: Source, target: Target, names: Mapping[str, str]) -> None:
    """Check that the source has what the target names, unless nothing is known of a part of the source."""
    new = set(names.values())
    own = set().union(*source.stage_names) if source.stage_names else set()
    never_saved = {names.get(name, name) for name in own}
    unknown = [
        name
        for layouts in target.stages
        for name in sorted(layouts)
        if name not in new and name not in never_saved and not name.startswith(NOT_SHARDED)
    ]
    if unknown and not source.lost:
        known = sum(name in new for layouts in target.stages for name in layouts)
        raise UsageError(
            f"{target.source} names {name_some(unknown)}, which no slice of the source holds ({known} others it does): "
            "it is the strategy of another model, or its parameters have other names: give --rename OLD=NEW"
        )


def _transfer(whole: WholeParameter, cut: TargetCut) -> Transfer:
    grid = Grid([region.box for region in whole.regions])
    return Transfer(
        dtype=whole.dtype,
        shape=whole.shape,
        item_size=whole.item_size,
        regions=whole.regions,
        cells=cut.cells,
        parts={cell: _part(box, grid, whole.item_size) for cell, box in cut.boxes.items()},
    )


def _part(box: Box, grid: Grid, item_size: int) -> TargetPart:
    near = grid.near(box)
    pieces, uncovered = cover(box, [grid.boxes[number] for number in near])
    taken = [TakenPiece(near[at], runs_of(part, grid.boxes[near[at]], box, item_size)) for at, part in pieces]
    return TargetPart(box, tuple(sorted(taken, key=lambda piece: piece.runs.target)), whole=not uncovered)


def _strategies(
    target: Target, wanted: Sequence[Sequence[WholeParameter]], names: Mapping[str, str]
) -> Iterable[Strategy]:
    """Return the strategy of each stage as it is written: the layouts of the parameters that its slices hold."""
    for stage, layouts in enumerate(target.stages):
        shapes = {names[one.name]: one.shape for one in wanted[stage]}
        cuts = TargetCuts(target)
        kept = tuple(cuts.fitted(layouts[name], name, shapes[name]) for name in sorted(layouts) if shapes.get(name))
        yield Strategy((stage,), 1, kept)


def _full_files(plan: ReshardPlan, numbers: Sequence[int], shard_size: int, *, lacks: bool) -> list[TargetFile]:
    """Deal the parameters of a full checkpoint out to files, in order."""
    shards: list[list[int]] = [[]]
    filled = 0
    for number in numbers:
        parameter = plan.parameters[number]
        transfer = plan.transfers[parameter.transfer]
        size = prod(transfer.shape) * parameter.item_size(transfer)
        if shard_size and shards[-1] and filled + size > shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(number)
        filled += size
    return [
        TargetFile(
            rank=0, target=_full_name(index, len(shards), plan.form), parameters=tuple(shard), group=(0,), lacks=lacks
        )
        for index, shard in enumerate(shards)
    ]


def pattern_like(file: SliceFile) -> str:
    """Return the pattern of a tree like that of a slice; the usual one where its place does not name the rank."""
    place = file.place
    if file.kind is not None or not place.names_rank or place.numbers or any("{" in part for part in place.parts):
        return _DEFAULT_PATTERN
    stem = "{rank}".join(place.parts)
    stem = stem.removesuffix(ending_of(stem))
    ending = f"-{file.step}"
    return stem.removesuffix(ending) + "-{epoch}_{step}" if stem.endswith(ending) else _DEFAULT_PATTERN


def _name_of(output: Output, rank: int, step: Step, kind: WeightKind | None, ranks: int) -> str:
    """Return the path of a rank's slice, or its file of a kind, below the output; an iteration has epoch 0.

    Raises
    ------
    UsageError
        When the pattern has another format's ending.
    """
    if output.common is not None:
        return weights_path(output.common, output.prefix, kind or "model", rank, ranks)
    epoch = 0 if step.is_iteration else step.epoch
    prefix, path = output.prefix or "checkpoint", output.pattern
    fields = {"{rank}": str(rank), "{prefix}": prefix, "{epoch}": str(epoch), "{step}": str(step.step)}
    for field, value in fields.items():
        path = path.replace(field, value)
    ending = ending_of(output.pattern)
    if ending not in ("", f".{output.form}"):
        raise UsageError(
            f"pattern {output.pattern!r} ends in {ending}, and slices are written as {output.form}: see --format"
        )
    return path if ending else f"{path}.{output.form}"


def _full_name(index: int, count: int, form: OutputFormat) -> str:
    """Return the name of one of the files of a full checkpoint."""
    numbers = f"-{index + 1:05d}-of-{count:05d}" if count > 1 else ""
    return f"{FULL_STEM}{numbers}.{form}"
