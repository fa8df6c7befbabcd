"""Compose slices that have no replica: from layouts and contents to actions, or to what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ms_recover.file_names import ending_of
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction, MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.texts import list_some, name_some
from ms_recover.model.verdicts import ComposeKind
from ms_recover.planning.facts import SliceFacts
from ms_recover.planning.sourcing.expected_parameters import NotComposableError, expected_parameters
from ms_recover.planning.sourcing.parameters import replica_of
from ms_recover.planning.sourcing.pieces import Choice, PieceBook, choose_parameters
from ms_recover.planning.sourcing.settle import Settlement
from ms_recover.planning.sourcing.target_path import format_conflict, same_format_sources, target_of

_MOST_REPLICAS = 4


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The way to compose one rank's slice, or the reason why it cannot be composed.

    Parameters
    ----------
    reason : str
        How it can be had, or why it cannot.
    action : CopyAction, ComposeAction or None
        The action that brings its whole slice back.
    missing : tuple of MissingRegion
        What nobody holds.
    bytes : int or None
        Bytes of contents that the slice had; None when nothing states it.
    partial : ComposeAction or None
        The action that brings back the parameters that survive.
    dispute : str or None
        Sources that differ, with nothing to settle who is right.
    """

    reason: str
    action: CopyAction | ComposeAction | None = None
    missing: tuple[MissingRegion, ...] = ()
    bytes: int | None = None
    partial: ComposeAction | None = None
    dispute: str | None = None


class _RefusedError(Exception):
    """A slice cannot be composed."""

    def __init__(self, refusal: Composition) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def compose_slice(settlement: Settlement, rank: int, own: Sequence[SliceFacts], load: Mapping[int, int]) -> Composition:
    """Find the sources of one rank's slice, parameter by parameter.

    `own` are the rank's files of this step, none of them sound; `load` counts the slices each rank gives to already.
    """
    index = settlement.index
    try:
        choices = _choose(settlement, rank, load, "parameter by parameter was not tried")
    except _RefusedError as error:
        return error.refusal
    total = sum(choice.parameter.nbytes for choice in choices)
    path = index.stages.paths[index.stages.of(rank)]
    missing = tuple(region for choice in choices for region in choice.settled.missing)
    if missing:
        return _incomplete(settlement, rank, own, choices, missing)
    if not any(choice.settled.parts for choice in choices):
        whole = _whole_replicas(settlement, rank, choices, load)
        replicas, why = same_format_sources(index.facts, rank, own, whole) if whole else ([], None)
        if why is not None:
            return Composition(reason=why, bytes=total)
        if replicas:
            reason = f"rank {replicas[0].rank} holds the same slice by the layouts in {path}"
            copy = _copy(settlement, rank, own, replicas[:_MOST_REPLICAS], choices, reason)
            return Composition(reason=reason, action=copy, bytes=total)
    action = _action(settlement, rank, own, choices)
    if action is None:
        return Composition(reason="no sound slice has any of its parameters", bytes=total)
    why = format_conflict(index.facts, rank, index.slices[action.sources[action.model].rank])
    if why is not None:
        return Composition(reason=why, bytes=total)
    return Composition(reason=action.reason, action=action, bytes=total)


def complete_slice(settlement: Settlement, rank: int) -> Composition:
    """Find the sources of a slice with every parameter of the rank's stage; the rank's own slice may be sound."""
    index = settlement.index
    try:
        choices = _choose(settlement, rank, {}, "it cannot be composed", complete=True)
    except _RefusedError as error:
        return error.refusal
    missing = tuple(region for choice in choices for region in choice.settled.missing)
    if missing:
        return _incomplete(settlement, rank, (), choices, missing)
    own = index.facts.at(index.judgement.step, rank)
    total = sum(choice.parameter.nbytes for choice in choices)
    return Composition(reason="", action=_action(settlement, rank, own, choices, "complete"), bytes=total)


def _choose(
    settlement: Settlement, rank: int, load: Mapping[int, int], refusal: str, *, complete: bool = False
) -> tuple[Choice, ...]:
    """Choose the source of each parameter; `_RefusedError` has the reason behind `refusal` when none can be chosen."""
    index = settlement.index
    unknown = index.stages.why_unknown(rank)
    if unknown is not None:
        raise _RefusedError(Composition(reason=f"{refusal}: {unknown}"))
    try:
        expected = expected_parameters(index, rank, complete=complete)
    except NotComposableError as error:
        raise _RefusedError(Composition(reason=f"{refusal}: {error}")) from None
    mismatch = _why_mismatch(settlement, rank, expected)
    if mismatch is not None:
        raise _RefusedError(Composition(reason=f"{refusal}: {mismatch}"))
    choices = choose_parameters(settlement, rank, expected, load)
    odd = settlement.why_outvoted(rank, ((choice.parameter, choice.settled) for choice in choices))
    if odd is not None:
        total = sum(parameter.nbytes for parameter in expected)
        raise _RefusedError(Composition(reason=odd, bytes=total, dispute=odd))
    return choices


def _why_mismatch(settlement: Settlement, rank: int, expected: Iterable[Parameter]) -> str | None:
    """Return the reason why the strategy file cannot be that of a slice; MindSpore's names all but a few scalars."""
    stages = settlement.index.stages
    stage = stages.of(rank)
    layouts = stages.layouts.get(stage, {})
    named = {False: 0, True: 0}
    for parameter in expected:
        named[parameter.name in layouts] += parameter.nbytes
    if named[False] <= named[True]:
        return None
    return f"{stages.paths[stage]} names too few of its parameters to be of the same network"


def _incomplete(
    settlement: Settlement,
    rank: int,
    own: Sequence[SliceFacts],
    choices: Sequence[Choice],
    missing: tuple[MissingRegion, ...],
) -> Composition:
    total = sum(choice.parameter.nbytes for choice in choices)
    disputed = [choice for choice in choices if choice.settled.disputed]
    dispute = None
    if disputed:
        names = name_some([one.parameter.name for one in disputed])
        dispute = f"{names} of rank {rank}: {disputed[0].settled.problem}"
    partial = _action(settlement, rank, own, [choice for choice in choices if not choice.settled.missing], "partial")
    path = settlement.index.stages.paths[settlement.index.stages.of(rank)]
    reason = _missing_text(missing, total, path)
    return Composition(reason=reason, missing=missing, bytes=total, partial=partial, dispute=dispute)


def _whole_replicas(
    settlement: Settlement, rank: int, choices: Sequence[Choice], load: Mapping[int, int]
) -> list[SliceFacts]:
    """Return sound slices that are the lost one whole, those with the lowest load first."""
    index = settlement.index
    common: set[int] | None = None
    for choice in choices:
        if choice.parameter.nbytes:
            ranks = set(choice.settled.ranks)
            common = ranks if common is None else common & ranks
    expected = tuple(choice.parameter for choice in choices)
    slices = [index.slices[one] for one in common or () if one != rank]
    whole = [one for one in slices if one.listed == expected and index.is_sound(one.rank)]
    return sorted(whole, key=lambda one: (load.get(one.rank, 0), one.rank))


def _copy(
    settlement: Settlement,
    rank: int,
    own: Sequence[SliceFacts],
    replicas: Sequence[SliceFacts],
    choices: Sequence[Choice],
    reason: str,
) -> CopyAction:
    facts = settlement.index.facts
    target, replaces = target_of(facts, rank, replicas[0], own)
    first, *others = map(replica_of, replicas)
    return CopyAction(
        rank=rank,
        replica=first,
        target=target,
        replaces=replaces,
        reason=reason,
        evidence="layout",
        group=facts.groups.of(rank),
        alternatives=tuple(others),
        borrowed=_borrowed(choices),
    )


def _borrowed(choices: Iterable[Choice]) -> tuple[str, ...]:
    return tuple(choice.parameter.name for choice in choices if choice.settled.tolerated)


def _action(
    settlement: Settlement,
    rank: int,
    own: Sequence[SliceFacts],
    choices: Sequence[Choice],
    kind: ComposeKind = "compose",
) -> ComposeAction | None:
    index = settlement.index
    book = PieceBook(index)
    parameters = tuple(book.take(choice) for choice in choices)
    if not book.sources:
        return None
    number = book.model_for(rank, parameters, {ending_of(one.path) for one in own})
    model = book.sources[number]
    target, replaces = target_of(index.facts, rank, index.slices[model.rank], own)
    if kind != "compose":
        stem, dot, suffix = target.rpartition(".")
        target, replaces = f"{stem}.{kind}{dot}{suffix}", None
    action = ComposeAction(
        rank=rank,
        sources=tuple(book.sources),
        model=number,
        parameters=parameters,
        target=target,
        replaces=replaces,
        reason="",
        group=index.facts.groups.of(rank),
        borrowed=_borrowed(choices),
        kind=kind,
    )
    path = index.stages.paths[index.stages.of(rank)]
    ranks = [f"rank {one}" if one != rank else "its own damaged slice" for one in action.source_ranks]
    return action.because(f"{list_some(ranks, _MOST_REPLICAS)} hold all of it by the layouts in {path}")


def _missing_text(missing: tuple[MissingRegion, ...], total: int, path: str) -> str:
    names = list(dict.fromkeys(region.parameter for region in missing))
    gone = sum(region.bytes for region in missing)
    share = f"{gone / total:.1%} of its bytes" if total else "nothing in bytes"
    return f"of {len(names)} parameters no sound slice holds all by the layouts in {path} ({share}): {name_some(names)}"
