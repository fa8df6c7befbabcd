"""The number of ranks of the job, from the evidence that survived."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile, Inventory, Note, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.claims.axes import count_ranks, product_text
from ms_recover.planning.claims.word import check_options, find_word

_MOST_RANKS = 1 << 20
BY_FILES = "the ranks that have files"
"""The ground of a world that only files bound."""
BY_AGREEMENT = "the strategy files and the rank lists"
"""The ground of a world that these state together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """The number of ranks, and its ground in words: ``"as given"``, ``"the manifests of step 2_77"``, ...

    It is guessed where the evidence bounds it from below only: neither the operator nor a manifest states it, and
    strategy files and rank lists do not agree that there is no further stage. Rank lists of another world are rejected,
    each path with the reason. Where the operator's word makes it larger, `doubt` has the number of ranks that have
    files, and what the word says.
    """

    ranks: int
    source: str
    guessed: bool = False
    rejected_lists: dict[str, str] = field(default_factory=dict)
    doubt: tuple[int, str] | None = None


def find_world_size(inventory: Inventory, given: int | None = None) -> WorldSize:
    """Return the world size: as given, else by manifests, strategy files, rank lists and files, in this order.

    Of an inventory of one part it is what the part states.

    Manifests state it. A strategy file states the devices of its stage, and stages own consecutive ranks, so it bounds
    the world from below (device matrix and stage fields of MindSpore's ``node_strategy.proto``); so do rank lists and
    files, which name single ranks. Where all of these agree and exclude a further stage, they state it together.

    Raises
    ------
    UsageError
        When `given` is smaller than the ranks that have files.
    ContradictionError
        When the evidence gives an absurd number.
    """
    if inventory.part.kind is not None:
        return WorldSize(ranks=inventory.part.world_size, source=inventory.part.source)
    highest = max(inventory.ranks, default=-1)
    if given is not None:
        if given <= highest:
            raise UsageError(
                f"the world size is given as {given}, but there are files of rank {highest}: "
                f"give at least {highest + 1}"
            )
        rejected = _beyond(inventory, given, "are given") if inventory.strategy_files else {}
        return WorldSize(ranks=given, source="as given", rejected_lists=rejected)
    stated = _by_manifests(inventory.slices)
    if stated is not None:
        ranks, step = stated
        rejected = _beyond(inventory, ranks, "the manifests state")
        return WorldSize(ranks=ranks, source=f"the manifests of step {step}", rejected_lists=rejected)
    world = _by_lower_bounds(inventory, highest)
    return replace(world, source=BY_AGREEMENT, guessed=False) if _is_agreed(inventory, world) else world


def _beyond(inventory: Inventory, ranks: int, stated: str) -> dict[str, str]:
    """Return the rank lists that name ranks beyond a stated world, each path with the reason."""
    why = f"names ranks of another world than the {ranks} that {stated}"
    return {file.path: why for file in inventory.group_files if file.info and file.info.highest >= ranks}


def with_word(world: WorldSize, options: PlanOptions, inventory: Inventory) -> WorldSize:
    """Compare the world with the operator's word, which may make a guessed one larger.

    It may where only files bound the world, the word groups every rank, some group has two ranks with files, and less
    than one rank for each group is added: a slip of the pen adds no ranks.

    Raises
    ------
    UsageError
        When the axes do not multiply to the world size, or a group names a rank beyond the world.
    """
    check_options(options)
    if options.axes is not None:
        ranks = _meant(count_ranks(options.axes), world.ranks)
        source, problem = f"--axes {options.axes}", f"--axes {options.axes}: {product_text(options.axes)} ranks"
        if ranks == world.ranks:
            return replace(world, source=source, guessed=False) if world.guessed else world
    else:
        ranks = max((max(group) + 1 for group in options.groups), default=0)
        source, problem = "the ranks that --group names", f"--group names rank {ranks - 1}"
        if ranks <= world.ranks:
            return world
    if world.guessed and world.source == BY_FILES and world.ranks < ranks < 2 * world.ranks:
        groups, present = find_word(options, ranks).groups, frozenset(inventory.ranks)
        whole = sum(map(len, groups)) == ranks and any(len(present.intersection(group)) > 1 for group in groups)
        if whole and ranks - world.ranks < len(groups):
            guessed = options.axes is None
            return replace(world, ranks=ranks, source=source, guessed=guessed, doubt=(world.ranks, problem))
    more = f", or give --world-size {ranks} if the others left no files" if ranks > world.ranks else ""
    raise UsageError(f"{problem}, but there are {world.ranks}, {_by(world)}: correct it{more if world.guessed else ''}")


def _meant(counts: Sequence[int], ranks: int) -> int:
    """Return the count that is the number of ranks, else the next larger one, else the usual one."""
    return min((count for count in counts if count >= ranks), key=lambda count: count - ranks, default=counts[0])


def _by(world: WorldSize) -> str:
    return world.source if world.source == "as given" else f"by {world.source}"


def _by_manifests(slices: Iterable[SliceFile]) -> tuple[int, Step] | None:
    """Return the size that manifests state, and the newest step of those.

    Of several sizes the newest counts, unless less than half as many ranks state it as state another: a slice of an
    older job that was left behind does not make the world smaller.
    """
    stating: dict[int, set[int]] = defaultdict(set)
    newest: dict[int, Step] = {}
    for file in slices:
        if file.manifest is not None:
            size = file.manifest.world_size
            stating[size].add(file.rank)
            newest[size] = max(newest.get(size, file.step), file.step)
    if not stating:
        return None
    most = max(map(len, stating.values()))
    size = max((size for size in stating if 2 * len(stating[size]) >= most), key=lambda size: (newest[size], size))
    return size, newest[size]


def _by_lower_bounds(inventory: Inventory, highest: int) -> WorldSize:
    best, why = highest + 1, BY_FILES
    strategies = sorted(inventory.strategy_files, key=lambda file: file.path)
    sizes = Counter(file.devices_per_stage for file in strategies)
    devices = max(sizes, key=lambda size: (sizes[size], size), default=0)
    if devices:
        own = [file for file in strategies if file.devices_per_stage == devices]
        last_stage = max(own, key=lambda file: max(file.stages, default=0))
        ranks = (max(last_stage.stages, default=0) + 1) * devices
        # A stray file or two make no further stage.
        if 2 * sum(rank >= ranks for rank in inventory.ranks) < devices:
            best, why = ranks, f"the device matrix in {last_stage.path}"
    rejected = {}
    lists = [(file.path, file.info) for file in inventory.group_files if file.info]
    for path, info in lists:
        if devices and info.highest >= best and _crosses_stages(info, devices):
            rejected[path] = (
                f"lists ranks of different stages of {devices} devices by {strategies[0].path}, up to rank "
                f"{info.highest}, which nobody holds: it is of another world"
            )
    for path, info in sorted(lists, key=lambda entry: entry[0]):
        if path not in rejected and info.highest >= best:
            best, why = info.highest + 1, f"the ranks listed in {path}"
    if best > _MOST_RANKS:
        raise ContradictionError(
            f"{why} give a world of {best} ranks, more than {_MOST_RANKS}: give the real one with --world-size"
        )
    return WorldSize(ranks=best, source=why, guessed=True, rejected_lists=rejected)


def _is_agreed(inventory: Inventory, world: WorldSize) -> bool:
    """Whether strategy files and rank lists agree on a world, and exclude that a further stage is lost without trace.

    Every directory with a slice has its rank list, and nothing contradicts the stages. Then two things show the last
    stage. In a pipeline of networks with ``lazy_inline`` the compiler makes a group of one rank of each stage for what
    stages send each other (``CreateSendReceiveGroup`` of ``pipeline_interleave.cc``), which every list has. And every
    pipeline adds its gradients up: where a strategy file has states of an optimizer and no ``accu_grads``, there is
    none. Without either a stage may be missing: other pipelines send over the group of all ranks, which no list has.
    """
    strategies = inventory.strategy_files
    lists = [(file.rank, file.info) for file in inventory.group_files if file.rank is not None and file.info]
    devices = {file.devices_per_stage for file in strategies}
    size = devices.pop() if len(devices) == 1 else 0
    if not size or world.ranks % size or world.rejected_lists or max(inventory.ranks, default=-1) >= world.ranks:
        return False
    last = world.ranks // size - 1
    if not lists or not {rank for rank, _ in lists}.issuperset(file.rank for file in inventory.slices):
        return False
    if any(rank not in info.sorted_ranks or _crosses_stages(info, size) for rank, info in lists):
        return False
    if any(file.rank // size not in file.stages or max(file.stages) > last for file in strategies):
        return False
    if last > 0:
        # The list of a rank of the last stage has a group of the ranks at its place in all stages.
        columns = {rank: tuple(range(rank % size, rank + 1, size)) for rank, _ in lists if rank // size == last}
        return any(columns.get(rank) in {group.ranks for group in info.groups} for rank, info in lists)
    # The group of all ranks is no entry: where one has as many ranks as a stage, there are more.
    groups = [group for _, info in lists for group in info.groups]
    return not any(len(group.ranks) >= size > 1 for group in groups) and all(
        file.strategy.trains_at_once for file in strategies
    )


def _crosses_stages(info: GroupInfo, devices: int) -> bool:
    return len({rank // devices for rank in (info.sorted_ranks[:1] + info.sorted_ranks[-1:])}) > 1


def inside_world(file: GroupFile, world: WorldSize) -> GroupFile:
    """Return a rank list without the ranks outside the world: the operator's number is above all evidence.

    Where strategy files say how many ranks there are, such a list is rejected instead.
    """
    if file.info is None or all(rank < world.ranks for rank in file.info.sorted_ranks[-1:]):
        return file
    ranks = tuple(rank for rank in file.info.restore_ranks if rank < world.ranks)
    return replace(file, info=replace(file.info, restore_ranks=ranks) if ranks else None)


def outside_world(inventory: Inventory, world: WorldSize) -> list[Note]:
    """Return notes on slices of ranks outside the world."""
    why = f"its rank is outside the world of {world.ranks} ranks by {world.source}"
    paths = [file.path for file in inventory.slices if file.rank >= world.ranks]
    more = f", like {len(paths) - 2} more" if len(paths) > 2 else ""
    return [Note(path, why) for path in paths[:1]] + [Note(path, why + more) for path in paths[1:2]]


def check_rank(rank: int, world: WorldSize, what: str = "") -> None:
    """Refuse a rank that is not in the world.

    Raises
    ------
    UsageError
        It names the ranks of the world.
    """
    if not 0 <= rank < world.ranks:
        begin = f"rank {rank} is {what}, but the" if what else f"there is no rank {rank}: the"
        raise UsageError(
            f"{begin} ranks are 0 to {world.ranks - 1} by {world.source}; give another rank or --world-size"
        )
