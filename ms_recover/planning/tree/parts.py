"""The parts of a MindFormers "weights 2.0" tree, each as an inventory of its own (pure).

A rank's slice of an iteration is its model file and its optimizer file: two parts, each a set of slices like those of
any tree, one file a rank. What ``metadata.json`` states of a part becomes layouts, rank lists and parameter lists, if
most of the files agree with it. Iterations of which the same is stated share an inventory, so that a file is compared
with those of other iterations, and one of another layout or world size beside them disturbs nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.file_names import WEIGHT_KINDS, WeightKind
from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile, Inventory, PartClaims, SliceFile, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.rank_path import RankPath
from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import find_cuts
from ms_recover.planning.claims.metadata import expected_files, find_document_stages

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stated:
    """What one metadata states of one part."""

    path: str
    world_size: int
    expected: Mapping[int, ParameterList]
    """The parameters of each rank's file."""
    strategies: tuple[tuple[int, Strategy], ...]
    """The first rank and the layouts of each pipeline stage."""
    groups: tuple[Group, ...]
    """The ranks that hold the same file."""
    place: RankPath
    """Where the files lie in the directory of an iteration."""

    @property
    def key(self) -> object:
        """What makes two of them equal, wherever they stand."""
        return self.world_size, tuple(sorted(self.expected.items())), self.strategies


def split_parts(inventory: Inventory) -> tuple[Inventory, ...]:
    """Return the parts of a tree with iterations, newest first, model files first.

    Each has the slices of its part and iterations, and as its `Inventory.part` what is stated of them.
    """
    by_part: dict[tuple[Step, WeightKind], list[SliceFile]] = defaultdict(list)
    for file in inventory.slices:
        if file.kind is not None:
            by_part[file.step, file.kind].append(file)
    reader = _Claims()
    parts: list[Inventory] = []
    required = required_parts(inventory)
    for kind in WEIGHT_KINDS:
        own = {
            iteration.step: reader.read(iteration, kind, by_part[iteration.step, kind])
            for iteration in inventory.iterations
        }
        classes: dict[object, list[tuple[Step, _Stated | None]]] = defaultdict(list)
        for iteration in inventory.iterations:
            if kind not in required[iteration.step]:
                continue
            files = by_part[iteration.step, kind]
            stated = own[iteration.step] or _borrowed(iteration.step, files, own)
            key = stated.key if stated is not None else (_count_of(files), "by names")
            classes[key].append((iteration.step, stated))
        parts += [_part(inventory, kind, alike, by_part) for alike in classes.values()]
    parts.sort(key=lambda part: max(part.part.steps), reverse=True)  # stable: model files first
    return tuple(parts)


def required_parts(inventory: Inventory) -> dict[Step, tuple[WeightKind, ...]]:
    """Return the parts that each iteration must have.

    Those that its metadata or its files name. Where metadata is not there, also those of the other iterations; so too
    where ``remove_redundancy`` wrote it, which adds the optimizer last, unless the save went on: ``common.json`` was
    written after that, and the tracker after all files of the iteration.
    """
    named: dict[Step, set[WeightKind]] = {
        iteration.step: set(parts_named(iteration.metadata.value)) for iteration in inventory.iterations
    }
    latest: dict[Step, int] = defaultdict(int)
    for file in inventory.slices:
        if file.kind is not None:
            named.setdefault(file.step, set()).add(file.kind)
            latest[file.step] = max(latest[file.step], file.mtime_ns)
    everywhere: set[WeightKind] = set().union(*named.values())
    for iteration in inventory.iterations:
        metadata = iteration.metadata.value
        whole = metadata is not None and (
            not metadata.removed_redundancy or _is_vouched_for(iteration, latest[iteration.step], inventory.tracker)
        )
        if not whole:
            named[iteration.step] |= everywhere
    return {step: tuple(kind for kind in WEIGHT_KINDS if kind in kinds) for step, kinds in named.items()}


def _is_vouched_for(iteration: Iteration, latest: int, tracker: Document[int] | None) -> bool:
    """Whether the save went on when all files of an iteration, the last of them written at `latest`, were there."""
    if iteration.common.value is None or tracker is None or tracker.value is None or tracker.state is None:
        return False
    written = [state.mtime_ns for state in (iteration.metadata.state, iteration.common.state) if state is not None]
    return tracker.value >= iteration.step.step and tracker.state.mtime_ns >= max(latest, *written)


def parts_named(metadata: ShardMetadata | None) -> tuple[WeightKind, ...]:
    """Return the parts of which metadata names files."""
    if metadata is None:
        return ()
    kinds = {file.name.kind for file in expected_files(metadata).values()}
    return tuple(kind for kind in WEIGHT_KINDS if kind in kinds)


def _count_of(files: Sequence[SliceFile]) -> int:
    """Return the number of files that the names of files state; 0 without files."""
    ending = files[0].place.parts[-1] if files else ""
    digits = ending.partition(".")[0].lstrip("-")
    return int(digits) if digits.isdigit() else 0


class _Claims:
    """Reads what metadata states; that of one metadata, which iterations may share, is worked out once."""

    def __init__(self) -> None:
        self._lists: dict[ParameterList, ParameterList] = {}
        self._known: dict[tuple[int, WeightKind], _Stated | None] = {}

    def read(self, iteration: Iteration, kind: WeightKind, files: Sequence[SliceFile]) -> _Stated | None:
        """Return what the metadata of an iteration states of a part; None when most of its files say otherwise."""
        metadata = iteration.metadata.value
        if metadata is None:
            return None
        key = (id(metadata), kind)
        if key not in self._known:
            self._known[key] = self._stated(metadata, kind)
        stated = self._known[key]
        if stated is None:
            return None
        stated = replace(_completed(stated, files), path=iteration.metadata.path)
        return stated if agrees(stated.expected, files) else None

    def _stated(self, metadata: ShardMetadata, kind: WeightKind) -> _Stated | None:
        shared: dict[int, ParameterList] = {}
        expected: dict[int, ParameterList] = {}
        numbers: dict[int, int] = {}
        first = None
        for file in expected_files(metadata).values():
            if file.name.kind == kind:
                first = first or file.name
                known = shared.get(id(file.parameters))
                if known is None:
                    listed = ParameterList(file.parameters)
                    known = shared[id(file.parameters)] = self._lists.setdefault(listed, listed)
                expected[file.rank], numbers[file.rank] = known, file.name.file_index
        if first is None:
            return None
        world = max(metadata.world_size, first.file_count)
        # The layouts of each stage, of the parameters of this kind alone.
        names = {parameter.name for listed in shared.values() for parameter in listed}
        strategies = tuple(
            (
                stage.ranks[0],
                _strategy_of(
                    stage.ranks,
                    stage.strategy.layouts,
                    frozenset().union(*(names for names, _ in stage.holders)),
                    names,
                    shared.values(),
                ),
            )
            for stage in find_document_stages(metadata)
        )
        # Where the files lie, by their numbers where these are not those of the ranks.
        start = "" if first.prefix is None else f"{first.prefix}-"
        moved = any(rank != number for rank, number in numbers.items())
        order = tuple(numbers.get(rank, rank) for rank in range(world)) if moved else ()
        place = RankPath((f"{start}{kind}-", f"-{first.file_count:07d}.safetensors"), 7, order)
        return _Stated(
            path="",
            world_size=world,
            expected=expected,
            strategies=strategies,
            groups=_groups_of(expected, strategies),
            place=place,
        )


def _strategy_of(
    ranks: Sequence[int],
    layouts: Iterable[Layout],
    whole: frozenset[str],
    names: set[str],
    lists: Iterable[ParameterList],
) -> Strategy:
    """Return the layouts of a part's parameters; those that every rank of the stage holds whole have one, too."""
    known = {layout.parameter: layout for layout in layouts if layout.parameter in names}
    shapes = {parameter.name: parameter.shape for listed in lists for parameter in listed if parameter.name in whole}
    for name, shape in shapes.items():
        known.setdefault(name, _whole(name, shape, len(ranks)))
    stage = ranks[0] // len(ranks)
    return Strategy((stage,), 0, tuple(known[name] for name in sorted(known)))


def _whole(name: str, shape: Sequence[int], devices: int) -> Layout:
    return Layout(parameter=name, device_matrix=(devices,), tensor_map=((),) * len(shape))


def _groups_of(expected: Mapping[int, ParameterList], strategies: Sequence[tuple[int, Strategy]]) -> tuple[Group, ...]:
    """Return the ranks that must hold the same file: they list the same, and the same part of each parameter.

    Where redundancy was removed, ranks that hold the same in memory have different files: no list says so of them.
    """
    groups: list[Group] = []
    for first, strategy in strategies:
        devices = strategy.devices_per_stage
        cuts = find_cuts({layout.parameter: layout for layout in strategy.layouts}, devices)
        alike: dict[tuple[int, object], list[int]] = defaultdict(list)
        holders: Counter[object] = Counter()
        for place in range(devices):
            rank, parts = first + place, tuple(cut.parts[place] for cut in cuts)
            holders[parts] += 1
            if rank in expected:
                alike[id(expected[rank]), parts].append(rank)
        groups += (tuple(ranks) for (_, parts), ranks in alike.items() if len(ranks) == holders[parts])
    return tuple(groups)


def _completed(stated: _Stated, files: Sequence[SliceFile]) -> _Stated:
    """Return the same with the parameters that metadata never names and most files hold: ``global_step``.

    Lists that files have in their own order are theirs, so that they are one object.
    """
    sound = [file for file in files if _is_readable(file)]
    extra: Counter[Parameter] = Counter()
    cache: dict[tuple[int, int], tuple[Parameter, ...]] = {}
    for file in sound:
        listed = stated.expected.get(file.rank)
        if listed is None:
            continue
        key = (id(file.parameters), id(listed))
        if key not in cache:
            cache[key] = tuple(parameter for parameter in file.parameters if parameter.name not in listed.index)
        extra.update(cache[key])
    # Most files must have it, and it is a scalar: then each rank has it whole.
    more = tuple(
        parameter for parameter, count in extra.items() if 2 * count > len(sound) and prod(parameter.shape) == 1
    )
    by_names = {
        frozenset(file.parameters): file.parameters for file in {id(file.parameters): file for file in sound}.values()
    }
    # A list that files have is theirs: comparing what is expected with them compares objects.
    made: dict[int, ParameterList] = {}
    for listed in {id(listed): listed for listed in stated.expected.values()}.values():
        full = (*listed, *more)
        known = by_names.get(frozenset(full))
        made[id(listed)] = known if isinstance(known, ParameterList) else ParameterList(known or full)
    strategies = stated.strategies
    if more:
        strategies = tuple((first, replace(strategy, layouts=_with(strategy, more))) for first, strategy in strategies)
    return replace(
        stated, expected={rank: made[id(listed)] for rank, listed in stated.expected.items()}, strategies=strategies
    )


def _with(strategy: Strategy, more: Sequence[Parameter]) -> tuple[Layout, ...]:
    added = [_whole(parameter.name, parameter.shape, strategy.devices_per_stage) for parameter in more]
    return tuple(sorted((*strategy.layouts, *added), key=lambda layout: layout.parameter))


def agrees(expected: Mapping[int, ParameterList], files: Iterable[SliceFile]) -> bool:
    """Whether at least half of the files that can be read list what is expected."""
    cache: dict[tuple[int, int], bool] = {}
    right = wrong = 0
    for file in files:
        listed = expected.get(file.rank)
        if not _is_readable(file):
            continue
        key = (id(file.parameters), id(listed))
        if key not in cache:
            cache[key] = (
                listed is not None and len(listed) == len(file.parameters) and set(listed) == set(file.parameters)
            )
        right += cache[key]
        wrong += not cache[key]
    return right >= wrong


def _is_readable(file: SliceFile) -> bool:
    return file.problem is None and file.encryption is None


def _borrowed(step: Step, files: Sequence[SliceFile], own: Mapping[Step, _Stated | None]) -> _Stated | None:
    """Return what the metadata of the nearest other iteration of the same files states; older ones go first."""
    nearest = sorted((near for near in own if near != step), key=lambda near: (near > step, abs(near.step - step.step)))
    count = _count_of(files)
    for other in nearest:
        stated = own[other]
        if stated is None:
            continue
        same = not files or (f"-{count:07d}.safetensors" == stated.place.parts[-1] and agrees(stated.expected, files))
        if same:
            return stated
    return None


def _part(
    inventory: Inventory,
    kind: WeightKind,
    statements: Sequence[tuple[Step, _Stated | None]],
    by_part: Mapping[tuple[Step, WeightKind], Sequence[SliceFile]],
) -> Inventory:
    """Return the inventory of one part of iterations of which the same is stated."""
    steps = [step for step, _ in statements]
    slices = [file for step in steps for file in by_part.get((step, kind), ())]
    own = {iteration.step: iteration for iteration in inventory.iterations}
    first = next((stated for _, stated in statements if stated is not None), None)
    places = {}
    for step, stated in statements:
        files = by_part.get((step, kind), ())
        if stated is not None:
            name, *rest = stated.place.parts
            directory = own[step].directory
            places[step] = replace(stated.place, parts=(f"{directory}/{name}" if directory else name, *rest))
        elif files:
            places[step] = files[0].place
    # Strategy files that the operator named go before what metadata states.
    named = tuple(file for file in inventory.strategy_files if file.path.startswith("/"))
    groups = tuple(file for file in inventory.group_files if file.place is None)
    strategies = inventory.strategy_files
    if first is not None:
        source = f"the files that {first.path} names"
        world = first.world_size
        strategies = named or tuple(StrategyFile(rank, first.path, strategy) for rank, strategy in first.strategies)
        groups = (*groups, *(GroupFile(None, first.path, None, GroupInfo(ranks)) for ranks in first.groups))
    else:
        world = max([_count_of(slices), *(file.rank + 1 for file in slices)])
        source = "the names of the files"
    claims = PartClaims(
        kind=kind,
        steps=tuple(sorted(steps, reverse=True)),
        world_size=world,
        source=source,
        expected={step: stated.expected for step, stated in statements if stated is not None},
        places=places,
    )
    return replace(
        inventory,
        ranks=tuple(range(world)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=groups,
        strategy_files=strategies,
        notes=(),
        orphans=tuple(orphan for orphan in inventory.orphans if orphan.kind == kind and orphan.step in set(steps)),
        iterations=(),
        tracker=None,
        part=claims,
    )
