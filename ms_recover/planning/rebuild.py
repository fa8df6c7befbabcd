"""Rebuild slices that have no replica: from layouts and contents to actions, or to what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ms_recover.file_names import ending_of, marked
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction, MissingRegion
from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import ComposeKind
from ms_recover.planning.compose import Choice, PieceBook, choose
from ms_recover.planning.expected import NotComposableError, expected_parameters
from ms_recover.planning.parts import Parts, replica_of
from ms_recover.planning.redundancy.contents import check_manifest
from ms_recover.planning.redundancy.vote import name_some
from ms_recover.planning.situation import Situation
from ms_recover.planning.targets import of_one_format, target_of, why_beside

_MOST_REPLICAS = 4


@dataclass(frozen=True)
class Rebuilt:
    """What can be done for one rank.

    Parameters
    ----------
    reason : str
        How it can be had, or why it cannot.
    action : CopyAction, ComposeAction or None
        What brings its whole slice back.
    missing : tuple of MissingRegion
        What nobody holds.
    bytes : int or None
        Bytes of contents that the slice had; None when nothing tells.
    partial : ComposeAction or None
        What brings back the parameters that survive.
    dispute : str or None
        Holders that differ, with nothing to say who is right.
    """

    reason: str
    action: CopyAction | ComposeAction | None = None
    missing: tuple[MissingRegion, ...] = ()
    bytes: int | None = None
    partial: ComposeAction | None = None
    dispute: str | None = None


def parts_at(situation: Situation, step: Step, held: Mapping[int, SliceFile], run_id: str | None) -> Parts:
    """Return who holds what at one step; slices that were saved under another strategy file give nothing.

    Parameters
    ----------
    situation : Situation
        What is known.
    step : Step
        The step.
    held : mapping of int to SliceFile
        Its sound slices, by rank.
    run_id : str or None
        The run they are of.
    """
    held = {rank: file for rank, file in held.items() if situation.stages.covers(file)}
    salvaged = {}
    for rank, files in situation.files.get(step, {}).items():
        for file in files if rank not in situation.lost and rank not in held else ():
            good = _proven(situation, file, run_id)
            if good:
                salvaged[rank] = (file, good)
    return Parts(situation, situation.stages, held, salvaged)


def _proven(situation: Situation, file: SliceFile, run_id: str | None) -> frozenset[str]:
    """Return the parameters of a damaged slice whose contents are those of its manifest."""
    read, told = situation.contents.digests.get(file.path), file.manifest
    if read is None or told is None or file.problem is not None or file.path in situation.findings.damaged:
        return frozenset()
    if not situation.stages.covers(file) or run_id not in (None, told.run_id):
        return frozenset()
    if check_manifest(file, situation.world_size, situation.groups.of(file.rank)):
        return frozenset()
    pairs = zip(file.parameters, read.parameters, told.digests.parameters, strict=False)
    return frozenset(parameter.name for parameter, found, expected in pairs if found == expected)


def rebuild(parts: Parts, step: Step, rank: int, own: list[SliceFile], serves: Counter[int]) -> Rebuilt:
    """Say how the slice of one rank can be rebuilt.

    Parameters
    ----------
    parts : Parts
        Who holds what at `step`.
    step : Step
        The step.
    rank : int
        Whose slice.
    own : list of SliceFile
        The rank's own files of this step, none of them sound.
    serves : Counter of int
        How many slices each rank gives to already; counted on.
    """
    choices = _choose(parts, step, rank, serves, "parameter by parameter was not tried")
    if isinstance(choices, Rebuilt):
        return choices
    total = sum(choice.parameter.nbytes for choice in choices)
    path = parts.stages.paths[parts.stages.of(rank)]
    missing = tuple(region for choice in choices for region in choice.missing)
    if missing:
        disputed = [choice for choice in choices if choice.part.disputed]
        dispute = None
        if disputed:
            dispute = (
                f"{name_some([one.parameter.name for one in disputed])} of rank {rank}: {disputed[0].part.problem}"
            )
        partial = _action(parts, step, rank, own, [choice for choice in choices if not choice.missing], "", "partial")
        return Rebuilt(_missing_text(missing, total, path), None, missing, total, partial, dispute)
    replicas, why = _replicas(parts, rank, own, choices, serves)
    if why is not None:
        return Rebuilt(why, bytes=total)
    if replicas:
        serves[replicas[0].rank] += 1
        reason = f"rank {replicas[0].rank} holds the same slice by the layouts in {path}"
        return Rebuilt(reason, _copy(parts, rank, own, replicas, choices, reason), bytes=total)
    action = _action(parts, step, rank, own, choices, path)
    if action is None:
        return Rebuilt("no sound slice has any of its parameters", bytes=total)
    why = why_beside(parts.situation, rank, parts.files[action.sources[action.model].rank])
    if why is not None:
        return Rebuilt(why, bytes=total)
    serves.update(source for source in action.source_ranks if source != rank)
    return Rebuilt(action.reason, action, bytes=total)


def complete(parts: Parts, step: Step, rank: int) -> Rebuilt:
    """Say how a slice with every parameter of the rank's stage can be put together.

    Parameters
    ----------
    parts, step, rank
        As for `rebuild`; the rank's own slice may be sound.
    """
    choices = _choose(parts, step, rank, Counter(), "it cannot be put together", complete=True)
    if isinstance(choices, Rebuilt):
        return choices
    total = sum(choice.parameter.nbytes for choice in choices)
    path = parts.stages.paths[parts.stages.of(rank)]
    missing = tuple(region for choice in choices for region in choice.missing)
    if missing:
        return Rebuilt(_missing_text(missing, total, path), None, missing, total)
    own = parts.situation.files.get(step, {}).get(rank, [])
    return Rebuilt("", _action(parts, step, rank, own, choices, path, "complete"), bytes=total)


def _choose(
    parts: Parts, step: Step, rank: int, serves: Counter[int], refusal: str, *, complete: bool = False
) -> tuple[Choice, ...] | Rebuilt:
    """Choose where each parameter comes from; or return, behind `refusal`, why nothing is chosen."""
    unknown = parts.stages.why_unknown(rank)
    if unknown is not None:
        return Rebuilt(f"{refusal}: {unknown}")
    try:
        expected = expected_parameters(parts, rank, step, complete=complete)
    except NotComposableError as error:
        return Rebuilt(f"{refusal}: {error}")
    strange = _why_strange(parts, rank, expected)
    if strange is not None:
        return Rebuilt(f"{refusal}: {strange}")
    choices = choose(parts, rank, expected, serves)
    odd = parts.outvoted(rank, ((choice.parameter, choice.part) for choice in choices))
    if odd is not None:
        return Rebuilt(odd, bytes=sum(parameter.nbytes for parameter in expected), dispute=odd)
    return choices


def _why_strange(parts: Parts, rank: int, expected: Iterable[Parameter]) -> str | None:
    """Return why the strategy file cannot be that of a slice; MindSpore's tells of all but a few scalars."""
    stage = parts.stages.of(rank)
    layouts = parts.stages.layouts.get(stage, {})
    told = {False: 0, True: 0}
    for parameter in expected:
        told[parameter.name in layouts] += parameter.nbytes
    if told[False] <= told[True]:
        return None
    return f"{parts.stages.paths[stage]} tells of too few of its parameters to be of the same network"


def _replicas(
    parts: Parts, rank: int, own: list[SliceFile], choices: tuple[Choice, ...], serves: Counter[int]
) -> tuple[list[SliceFile], str | None]:
    """Return slices that are the lost one whole, best first; or why they cannot be used."""
    common: set[int] | None = None
    for choice in choices:
        ranks = set(choice.part.ranks) if choice.parameter.nbytes else None
        if ranks is not None:
            common = ranks if common is None else common & ranks
    if any(choice.pieces for choice in choices):
        return [], None
    expected = tuple(choice.parameter for choice in choices)
    files = [parts.files[one] for one in common or () if one != rank]
    whole = [file for file in files if file.parameters == expected and parts.is_sound(file.rank)]
    whole.sort(key=lambda file: (serves[file.rank], file.rank))
    if not whole:
        return [], None
    usable, why = of_one_format(parts.situation, rank, own, whole, lambda file: file)
    return usable[:_MOST_REPLICAS], why


def _copy(
    parts: Parts, rank: int, own: list[SliceFile], replicas: list[SliceFile], choices: tuple[Choice, ...], reason: str
) -> CopyAction:
    first, *others = [replica_of(parts.situation, file) for file in replicas]
    target, replaces = target_of(parts.situation, rank, replicas[0], own)
    borrowed = tuple(choice.parameter.name for choice in choices if choice.part.tolerated)
    group = parts.situation.groups.of(rank)
    return CopyAction(rank, first, target, replaces, reason, "layout", group, tuple(others), borrowed)


def _action(
    parts: Parts,
    step: Step,
    rank: int,
    own: list[SliceFile],
    choices: list[Choice] | tuple[Choice, ...],
    path: str,
    kind: ComposeKind = "compose",
) -> ComposeAction | None:
    book = PieceBook(parts)
    parameters = tuple(book.take(choice) for choice in choices)
    if not book.sources:
        return None
    number = book.model_for(rank, parameters, {ending_of(file.path) for file in own})
    model = book.sources[number]
    target, replaces = target_of(parts.situation, rank, parts.files[model.rank], own)
    if kind != "compose":
        target, replaces = marked(target, f".{kind}"), None
    action = ComposeAction(
        rank=rank,
        sources=tuple(book.sources),
        model=number,
        parameters=parameters,
        target=target,
        replaces=replaces,
        reason="",
        group=parts.situation.groups.of(rank),
        borrowed=tuple(choice.parameter.name for choice in choices if choice.part.tolerated),
        kind=kind,
    )
    return action.because(f"{_givers_text(action)} hold all of it by the layouts in {path}")


def _givers_text(action: ComposeAction) -> str:
    ranks = [f"rank {one}" if one != action.rank else "its own damaged slice" for one in action.source_ranks]
    return ", ".join(ranks[:_MOST_REPLICAS]) + (
        f" and {len(ranks) - _MOST_REPLICAS} more" if len(ranks) > _MOST_REPLICAS else ""
    )


def _missing_text(missing: tuple[MissingRegion, ...], total: int, path: str) -> str:
    names = list(dict.fromkeys(region.parameter for region in missing))
    gone = sum(region.bytes for region in missing)
    share = f"{gone / total:.1%} of its bytes" if total else "nothing in bytes"
    return f"of {len(names)} parameters no sound slice holds all by the layouts in {path} ({share}): {name_some(names)}"
