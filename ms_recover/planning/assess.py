"""One step: what each rank has, and who can replace what is gone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.plan import CopyAction, FileState, RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.redundancy.groups import GroupMap
from ms_recover.redundancy.structure import StructureFindings, compare_structure


@dataclass(frozen=True)
class Situation:
    """Everything a step is judged by; made once for all steps.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    groups : GroupMap
        Who holds the same slice.
    findings : StructureFindings
        What comparing the slices with each other showed.
    files : dict of Step to dict of int to list of SliceFile
        The slices by step and rank.
    ranks : frozenset of int
        Ranks that have a directory or a file.
    lost : frozenset of int
        Ranks declared lost.
    newest : bool
        Of two sound slices of one rank and step take the one modified last.
    """

    world_size: int
    groups: GroupMap
    findings: StructureFindings
    files: dict[Step, dict[int, list[SliceFile]]]
    ranks: frozenset[int]
    lost: frozenset[int]
    newest: bool


def make_situation(
    inventory: Inventory, groups: GroupMap, world_size: int, lost: Collection[int] = (), newest: bool = False
) -> Situation:
    """Put together what steps are judged by; slices of lost ranks are no evidence either."""
    files: dict[Step, dict[int, list[SliceFile]]] = defaultdict(lambda: defaultdict(list))
    for file in inventory.slices:
        files[file.step][file.rank].append(file)
    alive = [file for file in inventory.slices if file.rank not in lost]
    return Situation(
        world_size,
        groups,
        compare_structure(alive, groups),
        {step: dict(ranks) for step, ranks in files.items()},
        frozenset(inventory.ranks),
        frozenset(lost),
        newest,
    )


@dataclass(frozen=True)
class _Holding:
    """What one rank has of the step: a sound file, or why not."""

    state: str
    reason: str
    file: SliceFile | None = None
    ambiguous: bool = False


def assess_step(situation: Situation, step: Step) -> StepAssessment:
    """Judge every rank at `step` and choose a source for each that needs one.

    Sources within a group are spread evenly: each lost rank takes the member that serves fewest others so far, the
    lowest rank among equals.

    Parameters
    ----------
    situation : Situation
        What is known.
    step : Step
        The step.

    Returns
    -------
    StepAssessment
        The same for the same input.
    """
    files = situation.files.get(step, {})
    holdings = [_holding(situation, step, rank, files.get(rank, [])) for rank in range(situation.world_size)]
    serves: Counter[int] = Counter()
    verdicts, actions = [], []
    for rank, holding in enumerate(holdings):
        if holding.file is not None:
            verdicts.append(RankVerdict(rank, "ok", "keep", holding.reason, holding.file.path))
            continue
        source, why = _source(situation, step, rank, holdings, serves)
        if source is None:
            verdicts.append(RankVerdict(rank, holding.state, "unrecoverable", f"{holding.reason}; {why}"))
            continue
        serves[source.rank] += 1
        target, replaces = _target(rank, source, files.get(rank, []))
        reason = f"{holding.reason}; {why}"
        verdicts.append(RankVerdict(rank, holding.state, "copy", reason, target, source.rank, source.path))
        state = FileState(source.size, source.mtime_ns)
        actions.append(CopyAction(rank, source.rank, source.path, target, state, replaces, reason))
    return StepAssessment(step, tuple(verdicts), tuple(actions))


def _holding(situation: Situation, step: Step, rank: int, files: list[SliceFile]) -> _Holding:
    if rank in situation.lost:
        return _Holding("lost", "declared lost")
    damaged = situation.findings.damaged
    sound = [file for file in files if file.problem is None and file.path not in damaged]
    if len(sound) > 1:
        if not situation.newest:
            paths = " and ".join(file.path for file in sound)
            text = f"two slices for one step, {paths}: remove the wrong one or choose the newest with --newest"
            return _Holding("damaged", text, ambiguous=True)
        sound = [max(sound, key=lambda file: (file.mtime_ns, file.path))]
        return _Holding("ok", "newest of several slices for this step", sound[0])
    if sound:
        named = "encrypted, contents not checked" if sound[0].encryption else "sound"
        return _Holding("ok", named, sound[0])
    if files:
        return _Holding("damaged", "; ".join(f"{file.path} {file.problem or damaged[file.path]}" for file in files))
    if rank in situation.ranks:
        return _Holding("missing", f"no slice of step {step}")
    return _Holding("missing", "no directory")


def _source(
    situation: Situation, step: Step, rank: int, holdings: list[_Holding], serves: Counter[int]
) -> tuple[SliceFile | None, str]:
    """Return the slice to copy from, or None and why there is none."""
    group = situation.groups.of(rank)
    if holdings[rank].ambiguous:
        return None, "nothing is copied over slices that may be right"
    if not situation.groups.knows(rank):
        return None, "no group_info.pb says who holds the same slice"
    others = [other for other in group if other != rank and other < situation.world_size]
    if not others:
        return None, f"its group is [{rank}]: no other rank holds the same slice"
    for problem in (situation.findings.conflicts.get((group, step)), situation.findings.deduplicated.get(step)):
        if problem is not None:
            return None, f"its group is no set of replicas at this step: {problem}"
    able = [file for other in others if (file := holdings[other].file) is not None]
    if not able:
        return None, f"nobody else of its group {list(group)} has a sound slice ({_states(others, holdings)})"
    chosen = min(able, key=lambda file: (serves[file.rank], file.rank))
    return chosen, f"rank {chosen.rank} holds the same slice by {situation.groups.sources[rank]}"


def _states(ranks: Iterable[int], holdings: list[_Holding]) -> str:
    return ", ".join(f"rank {rank} {holdings[rank].state}" for rank in ranks)


def _target(rank: int, source: SliceFile, own: list[SliceFile]) -> tuple[str, FileState | None]:
    """Return the name that the copy gets, and what lies there: a bad file is replaced under its own name."""
    usual = source.place.of(rank)
    if not own:
        return usual, None
    there = next((file for file in own if file.path == usual), max(own, key=lambda file: (file.mtime_ns, file.path)))
    return there.path, FileState(there.size, there.mtime_ns)
