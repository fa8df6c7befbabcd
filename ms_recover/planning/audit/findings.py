"""What makes losses fatal, and the one setting that mends each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ms_recover.model.audit import Finding
from ms_recover.model.strategy import Layout
from ms_recover.model.texts import list_some
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.blocks import HeldBlock, StepHolders, block_text
from ms_recover.planning.audit.evidence import find_evidence
from ms_recover.planning.audit.families import FamilyIndex
from ms_recover.planning.audit.hosts import hosts_in_manifests
from ms_recover.planning.audit.losses import Level
from ms_recover.planning.audit.placement import propose_placement
from ms_recover.planning.audit.shards import Sharding
from ms_recover.planning.claims.axes import tensor_groups
from ms_recover.planning.tree.facts import Facts

_MOST_NAMED = 8
_REDUNDANCY = (
    "save with remove_redundancy=False: of CheckpointConfig in MindSpore, of CheckpointMonitor in MindFormers' YAML"
)
_SHARDS = "optimizer_weight_shard_size at most half the number of replicas, where the optimizer is sharded"
_LISTS = (
    "set GROUP_INFO_FILE to ckpt_dir{rank}/group_info.pb in the environment of each rank before anything is compiled; "
    "SliceCheckpoint does it"
)
_STRATEGIES = (
    'give each rank strategy_ckpt_config={"save_file": "ckpt_dir{rank}/strategy.ckpt", "only_trainable_params": False} '
    "in its parallel context, or save_strategy in MindFormers"
)
_BACKUP = "or a backup of each step elsewhere: recover-ckpt copy"
_REPLICAS = f"data parallel of 2 or more, {_BACKUP}"
_CUT = f"data parallel of 2 or more, and a layout that does not cut it over these ranks as well, {_BACKUP}"
_HOSTS = "name them with --hostfile, --rank-table, --scheduler-log, --nodelist, --topology or --ranks-per-host N"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What findings are made from.

    Parameters
    ----------
    facts : Facts
        Of the tree or of the claims.
    held : StepHolders
        Who holds what at the newest step that can be recovered.
    dealt : bool
        ``remove_redundancy=True`` dealt its parameters out.
    topology : Topology or None
        Where ranks live.
    sharding : Sharding or None
        How the optimizer's states are cut, where that is known.
    """

    facts: Facts
    held: StepHolders
    dealt: bool
    topology: Topology | None
    sharding: Sharding | None


def find_findings(case: Case) -> tuple[Finding, ...]:
    """Return the findings, the gravest first."""
    facts = case.facts
    files_say_it = facts.kind is None and facts.options.axes is None  # who holds the same, and no document or operator
    findings = [*_slices(case), *_redundancy(case), *_optimizer(case), *(_unknown(facts) if files_say_it else ())]
    if not findings:  # the others may be no more than what these bring about
        alone = list(_alone(case))
        findings = [*alone, *(_evidence(facts) if files_say_it else ()), *(_placement(case) if not alone else ())]
    return (*findings, *_topology(case))


def _redundancy(case: Case) -> Iterator[Finding]:
    if case.dealt:
        alone = sum(len(block.holders) == 1 for block in case.held.blocks)
        yield Finding(
            kind="redundancy",
            text=f"step {case.held.step} was saved with remove_redundancy=True: the ranks that hold the same share "
            f"their parameters out, and {alone:,} blocks have a single copy",
            mend=_REDUNDANCY,
        )


def _optimizer(case: Case) -> Iterator[Finding]:
    sharding = case.sharding
    if sharding is None or case.dealt:
        return
    where = _first_level(case)
    fatal = FamilyIndex(map(where.places, case.held.family))
    lost = [place for place in range(len(where.domains)) if fatal.find(frozenset((place,))) is not None]
    if not lost:
        return
    chosen = sharding.choose(where)
    everywhere = max(1, sharding.replicas // sharding.now)
    if chosen is None and everywhere > 1:
        return  # fewer shards alone do not mend it: it is the placement
    copies = f"there {'is one copy' if everywhere == 1 else f'are {everywhere} copies'} of each shard"
    if sharding.replicas % sharding.now:
        copies = "nothing says which ranks hold the same: MindSpore shards some of them otherwise, by version"
    text = (
        f"the optimizer's states are cut into {sharding.now} shards over {sharding.replicas} replicas, so that "
        f"{copies}; {len(lost):,} of {len(where.domains):,} {where.name}s may not be lost alone"
    )
    if chosen is None:
        few = max((n for n in range(1, sharding.replicas) if sharding.replicas % n == 0), default=1)
        mend = f"optimizer_weight_shard_size={few}, and a placement that keeps the copies of a shard on different hosts"
    elif chosen == 1:
        mend = f"enable_parallel_optimizer=False: no shards, and {sharding.replicas} copies"
    else:
        mend = (
            f"optimizer_weight_shard_size={chosen}: {sharding.replicas // chosen} copies of each shard, on different "
            f"{where.name}s"
        )
    yield Finding(kind="optimizer", text=text, mend=mend)


def _alone(case: Case) -> Iterator[Finding]:
    """Yield a finding where there is one copy, and nothing is known to have taken the others away."""
    facts, alone = case.facts, [block for block in case.held.blocks if len(block.holders) == 1]
    if not alone:
        return
    text = f"{_have(len(alone), 'block')} a single copy, such as {block_text(alone[0])}"
    if not alone[0].kind.names:
        lone = [rank for rank in range(facts.world.ranks) if facts.groups.of(rank) == (rank,)]
        text = f"by the rank lists {_ranks(lone, facts.world.ranks)} alone has its slice"
        yield Finding(kind="redundancy", text=text, mend=f"{_SHARDS}; where there are no replicas, {_REPLICAS}")
    elif case.sharding is None and _is_unique(facts, alone[0]):
        mend = _REPLICAS if facts.options.axes is not None else _CUT
        yield Finding(kind="redundancy", text=f"{text}: there are no replicas of it", mend=mend)
    else:
        yield Finding(kind="redundancy", text=text, mend=f"{_SHARDS}; or {_REDUNDANCY}, where that dealt them out")


def _is_unique(facts: Facts, block: HeldBlock) -> bool:
    """Whether the axes or layouts say that one rank alone has such a block, without shards of the optimizer."""
    stages, name = facts.stages, block.kind.names[0]
    cut = next((one for one in stages.cuts.get(block.kind.stage, ()) if name in one.names), None)
    if cut is None:
        return facts.options.axes is not None
    return cut.parts.count(cut.parts[block.holders[0] % stages.devices]) == 1


def _bare(facts: Facts) -> list[int]:
    """Return the ranks of which no layouts are known."""
    return [rank for rank in range(facts.world.ranks) if facts.stages.why_unknown(rank) is not None]


def _unknown(facts: Facts) -> Iterator[Finding]:
    unknown = [rank for rank in _bare(facts) if not facts.groups.knows(rank)]
    if unknown:
        text = (
            f"nothing says who else holds the slice of {_ranks(unknown, facts.world.ranks)}: no group_info.pb lists "
            f"them, and no strategy file states how they are cut"
        )
        yield Finding(kind="evidence", text=text, mend=_LISTS)


def _evidence(facts: Facts) -> Iterator[Finding]:
    evidence, bare = find_evidence(facts), _bare(facts)
    thin = []
    for stage in () if bare else sorted({facts.stages.of(rank) for rank in range(facts.world.ranks)}):
        having = evidence.strategies(stage)
        if having is not None and len(having) < len(facts.stages.ranks(stage)):
            thin.append(f"{len(having)} of {len(facts.stages.ranks(stage))} ranks of stage {stage}")
    if thin:
        text = f"the strategy file lies with {list_some(thin, _MOST_NAMED)} only, and is lost with them"
        yield Finding(kind="evidence", text=text, mend=_STRATEGIES)
    few = [
        group
        for group in dict.fromkeys(facts.groups.members.values())
        if len(group) > 1
        and (lists := evidence.lists(group)) is not None
        and len(lists.intersection(group)) < len(group)
    ]
    if few and (bare or thin):
        text = f"{_have(len(few), 'group')} a rank list with some members only, such as {list(few[0][:_MOST_NAMED])}"
        yield Finding(kind="evidence", text=text, mend=_LISTS)


def _placement(case: Case) -> Iterator[Finding]:
    topology = case.topology
    if topology is None:
        return
    for number, name in enumerate(topology.levels):
        level = Level.of_topology(topology, number)
        together = [members for members in case.held.family if len(level.places(members)) == 1]
        if not together or (number and len(level.domains) < 2):
            continue
        members = min(together, key=lambda ranks: (len(ranks), sorted(ranks)))
        place = level.domains[level.of[min(members)]]
        text = (
            f"{_have(len(together), 'block')} all holders on one {name}, such as {case.held.why[members]}, on {place}"
        )
        proposal = propose_placement(case.held.family, topology, find_tensor_groups(case.facts))
        mend = proposal.reason  # why there is none; a placement survives what is survived now, and this level
        if proposal.topology is not None:
            mend = f"place the ranks otherwise, as --write-placement FILE writes it: {proposal.reason}"
        yield Finding(kind="placement", text=text, mend=mend, topology=proposal.topology)
        return


def _slices(case: Case) -> Iterator[Finding]:
    missing = sorted(case.held.missing)
    if missing:
        have = "has" if len(missing) == 1 or len(missing) == case.held.ranks else "have"
        text = f"{_ranks(missing, case.held.ranks)} {have} no sound slice of step {case.held.step} now"
        yield Finding(
            kind="slices",
            text=text,
            mend="recover-ckpt apply, which writes what is missing from the ranks that hold the same; then audit again",
        )


def _topology(case: Case) -> Iterator[Finding]:
    if case.topology is not None:
        return
    text, world = "nothing says which ranks share a host", case.facts.world.ranks
    named = hosts_in_manifests(case.facts.inventory)
    if named and (unnamed := [rank for rank in range(world) if rank not in named]):
        text = f"{text}: manifests do not name that of {_ranks(unnamed, world)}"
    yield Finding(kind="topology", text=text, mend=_HOSTS)


def _first_level(case: Case) -> Level:
    ranks = case.held.ranks
    own = Topology(("rank",), (tuple(map(str, range(ranks))),), "")
    return Level.of_topology(case.topology or own, 0)


def _have(count: int, noun: str) -> str:
    return f"{count:,} {noun} has" if count == 1 else f"{count:,} {noun}s have"


def _ranks(ranks: Sequence[int], world: int) -> str:
    if len(ranks) == world:
        return "every rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {list_some(map(str, ranks), _MOST_NAMED)}"


def find_tensor_groups(facts: Facts) -> tuple[frozenset[int], ...]:
    """Return the groups of ranks that hold the parts of one copy of most weights; empty where nothing says it.

    By the operator's axes; else by the layouts of each stage: of the ways in which parameters are cut, optimizer shards
    aside, that of most of them.
    """
    options, stages = facts.options, facts.stages
    if options.axes is not None:
        return tuple(map(frozenset, tensor_groups(options.axes, options.order, facts.world.ranks)))
    groups: list[frozenset[int]] = []
    for stage, cuts in stages.cuts.items():
        divided = [cut for cut in cuts if max(cut.layout.counts, default=1) > 1]
        if divided:
            layout = max(divided, key=lambda cut: (len(cut.names), sorted(cut.names))).layout
            groups += _tensor_groups(layout, stages.ranks(stage))
    return tuple(groups)


def _tensor_groups(layout: Layout, ranks: range) -> Iterator[frozenset[int]]:
    """Return groups of ranks that differ in the axes only that a parameter is cut over."""
    used = {axis for axes in layout.tensor_map for axis in axes}
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        place, key = rank - ranks.start, []
        for axis, size in enumerate(reversed(layout.device_matrix)):
            if axis not in used:
                key.append(place % size)
            place //= size
        groups[tuple(key)].append(rank)
    return map(frozenset, groups.values())
