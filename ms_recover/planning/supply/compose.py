"""Compose slices that have no replica: from layouts and contents to actions, or to what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ms_recover.file_names import ending_of, marked
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction, MissingRegion
from ms_recover.model.rank_local import share_nothing
from ms_recover.model.slices import Parameter
from ms_recover.model.texts import list_some, name_some
from ms_recover.model.verdicts import ComposeKind, Evidence
from ms_recover.planning.supply.expected_parameters import NotComposableError, expected_parameters
from ms_recover.planning.supply.parameters import ParameterIndex, replica_of
from ms_recover.planning.supply.pieces import Giving, PieceBook, choose_parameters
from ms_recover.planning.supply.supply import Supply
from ms_recover.planning.supply.target_path import format_conflict, same_format_sources, target_of
from ms_recover.planning.tree.facts import Facts, SliceFacts

_MOST_REPLICAS = 4


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The way to compose one rank's slice, or the reason why it cannot be composed.

    Parameters
    ----------
    reason, action
        How it can be had, or why it cannot; what brings its whole slice back.
    missing, bytes
        What nobody holds; bytes of contents that the slice had, None when nothing states it.
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


def compose_slice(supply: Supply, rank: int, own: Sequence[SliceFacts], load: Mapping[int, int]) -> Composition:
    """Find the sources of one rank's slice, parameter by parameter.

    `own` are the rank's files of this step, none of them sound; `load` counts the slices each rank gives to already.
    """
    index = supply.index
    choices = _choose(supply, rank, own, load, "parameter by parameter was not tried")
    if isinstance(choices, Composition):
        return choices
    total = _bytes(choices)
    rank_local = {pick.parameter.name for pick in choices if index.is_rank_local(pick.parameter.name, pick.ranks)}
    if share_nothing({pick.parameter.name: prod(pick.parameter.shape) for pick in choices}, rank_local):
        return Composition(reason="every rank has its own values of every parameter", bytes=total)
    if not any(choice.settled.parts for choice in choices):
        whole = _whole_replicas(index, rank, choices, load)
        replicas, why = same_format_sources(index.facts, rank, own, whole) if whole else ([], None)
        if why is not None:
            return Composition(reason=why, bytes=total)
        if replicas:
            reason = f"rank {replicas[0].rank} holds the same slice by the layouts in {_strategy_file(index, rank)}"
            replicas, borrowed = replicas[:_MOST_REPLICAS], _borrowed(choices)
            copy = copy_action(index.facts, rank, own, replicas, evidence="layout", borrowed=borrowed)
            return Composition(reason=reason, action=copy.because(reason), bytes=total)
    action = _action(index, rank, own, choices)
    if action is None:
        return Composition(reason="no sound slice has any of its parameters", bytes=total)
    why = format_conflict(index.facts, rank, index.slices[action.sources[action.model].rank])
    if why is not None:
        return Composition(reason=why, bytes=total)
    return Composition(reason=action.reason, action=action, bytes=total)


def complete_slice(supply: Supply, rank: int) -> Composition:
    """Find the sources of a slice with every parameter of the rank's stage; the rank's own slice may be sound."""
    index = supply.index
    choices = _choose(supply, rank, (), {}, "it cannot be composed", complete=True)
    if isinstance(choices, Composition):
        return choices
    own = index.facts.at(index.judgement.step, rank)
    return Composition(reason="", action=_action(index, rank, own, choices, "complete"), bytes=_bytes(choices))


def copy_action(
    facts: Facts,
    rank: int,
    own: Iterable[SliceFacts],
    replicas: Sequence[SliceFacts],
    *,
    evidence: Evidence,
    borrowed: tuple[str, ...],
) -> CopyAction:
    """Return the copy of a whole slice from the first of its replicas, to be replaced by the others where it fails."""
    target, replaces = target_of(facts, rank, replicas[0], own)
    first, *others = map(replica_of, replicas)
    return CopyAction(
        rank=rank,
        replica=first,
        target=target,
        replaces=replaces,
        reason="",
        evidence=evidence,
        group=facts.groups.of(rank),
        alternatives=tuple(others),
        borrowed=borrowed,
    )


def _choose(
    supply: Supply,
    rank: int,
    own: Sequence[SliceFacts],
    load: Mapping[int, int],
    refusal: str,
    *,
    complete: bool = False,
) -> tuple[Giving, ...] | Composition:
    """Choose the source of each parameter; where not all can be had, return why: behind `refusal` if none was tried."""
    index = supply.index
    try:
        expected = find_composable(supply, rank, complete=complete)
    except NotComposableError as error:
        return Composition(reason=f"{refusal}: {error}", dispute=str(error) if error.disputed else None)
    choices = choose_parameters(supply, rank, expected, load)
    odd = supply.settlement.why_outvoted(rank, ((choice.parameter, choice.settled) for choice in choices))
    missing = tuple(region for choice in choices for region in choice.settled.missing)
    unlisted = supply.unlisted(rank, complete=complete)
    if missing or unlisted:  # what is gone is gone, whatever the rest is worth
        composed = _incomplete(index, rank, own, choices, missing, unlisted)
        return composed if odd is None else replace(composed, partial=None)
    return choices if odd is None else Composition(reason=odd, bytes=_bytes(choices), dispute=odd)


def find_composable(supply: Supply, rank: int, *, complete: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of a rank's slice, as `expected_parameters` does, if it may be composed by its layouts.

    Raises
    ------
    NotComposableError
        When it may not, whoever holds its parameters.
    """
    index = supply.index
    unknown = index.stages.why_unknown(rank)
    if unknown is not None:
        raise NotComposableError(unknown)
    path = _strategy_file(index, rank)
    refuted = index.judgement.refuted.get(path)
    if refuted is not None:
        raise NotComposableError(refuted, disputed=True)
    expected = expected_parameters(index, rank, complete=complete)
    if supply.names_too_few(index.stages.of(rank), expected):
        raise NotComposableError(f"{path} names too few of its parameters to be of the same network")
    return expected


def _strategy_file(index: ParameterIndex, rank: int) -> str:
    return index.stages.paths[index.stages.of(rank)]


def _bytes(choices: Iterable[Giving]) -> int:
    return sum(choice.parameter.nbytes for choice in choices)


def _incomplete(
    index: ParameterIndex,
    rank: int,
    own: Sequence[SliceFacts],
    choices: Sequence[Giving],
    missing: tuple[MissingRegion, ...],
    unlisted: tuple[MissingRegion, ...],
) -> Composition:
    disputed = [choice for choice in choices if choice.settled.disputed]
    dispute = None
    if disputed:
        names = name_some([pick.parameter.name for pick in disputed])
        dispute = f"{names} of rank {rank}: {disputed[0].settled.problem}"
    whole = [choice for choice in choices if not choice.settled.missing]
    total = _bytes(choices) + sum(region.bytes for region in unlisted)
    missing += unlisted
    gone = sum(region.bytes for region in missing)
    share = f"{gone / total:.1%} of its bytes" if total else "nothing in bytes"
    lost = list(dict.fromkeys(region.parameter for region in missing))
    more = name_some([region.parameter for region in unlisted])
    dealt = f"; remove_redundancy=True dealt out {more}, which no slice lists any more" if unlisted else ""
    return Composition(
        reason=f"of {len(lost)} parameters no sound slice holds all by the layouts in {_strategy_file(index, rank)} "
        f"({share}): {name_some(lost)}{dealt}",
        missing=missing,
        bytes=total,
        partial=_action(index, rank, own, whole, "partial"),
        dispute=dispute,
    )


def _whole_replicas(
    index: ParameterIndex, rank: int, choices: Sequence[Giving], load: Mapping[int, int]
) -> list[SliceFacts]:
    """Return sound slices that are the lost one whole, those with the lowest load first."""
    common: set[int] | None = None
    for choice in choices:
        if choice.parameter.nbytes:
            ranks = set(choice.settled.ranks)
            common = ranks if common is None else common & ranks
    expected = tuple(choice.parameter for choice in choices)
    slices = [index.slices[giver] for giver in common or () if giver != rank]
    whole = [slice_ for slice_ in slices if slice_.listed == expected and index.is_sound(slice_.rank)]
    return sorted(whole, key=lambda slice_: (load.get(slice_.rank, 0), slice_.rank))


def _borrowed(choices: Iterable[Giving]) -> tuple[str, ...]:
    return tuple(choice.parameter.name for choice in choices if choice.settled.tolerated)


def _action(
    index: ParameterIndex,
    rank: int,
    own: Sequence[SliceFacts],
    choices: Sequence[Giving],
    kind: ComposeKind = "compose",
) -> ComposeAction | None:
    book = PieceBook(index)
    parameters = tuple(book.take(choice) for choice in choices)
    if not book.sources:
        return None
    number = book.model_for(rank, parameters, {ending_of(slice_.path) for slice_ in own})
    model = book.sources[number]
    target, replaces = target_of(index.facts, rank, index.slices[model.rank], own)
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
        group=index.facts.groups.of(rank),
        borrowed=_borrowed(choices),
        kind=kind,
    )
    ranks = [f"rank {giver}" if giver != rank else "its own damaged slice" for giver in action.source_ranks]
    named = list_some(ranks, _MOST_REPLICAS)
    return action.because(f"{named} hold all of it by the layouts in {_strategy_file(index, rank)}")
