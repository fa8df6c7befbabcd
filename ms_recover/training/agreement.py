"""Which step to resume from: the newest that every rank has or can get, proven by each."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial

from ms_recover import api
from ms_recover.errors import MsRecoverError, UnrecoverableError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.planner import plan_for_rank
from ms_recover.storage.atomic import sync_directory
from ms_recover.training.network import OwnSlice
from ms_recover.training.stock import Stock
from ms_recover.training.world import World

_log = logging.getLogger(__name__)
"""Appended to the name of a slice that is newer than the step that training resumed from."""


def settle(world: World, stock: Stock, root: str) -> tuple[OwnSlice, int | None] | None:
    """Find the newest step that every rank has proven, and get this rank's slice of it.

    A slice that turns out to be damaged is replaced by a peer's; where no peer has a sound one, all ranks go back to
    the next older step.

    Returns
    -------
    (OwnSlice, int or None) or None
        The slice and the rank it was copied from, if it was; None when no rank sees any slice of any step.

    Raises
    ------
    UnrecoverableError
        When there are slices, but no such step.
    VerificationError
        When replicas differ with nothing to say who is right.
    MsRecoverError
        When a copy failed on any rank.
    """
    while (step := agree(world, stock, root)) is not None:
        found = world.together(f"getting the slice of step {step}", partial(get_slice, stock, step))
        told = world.gather([found is not None, stock.run_mark(step)])
        if len({mark for _, mark in told if mark}) > 1:
            stock.withdrawn[step] = "its slices are of different runs"
            _log.warning("rank %d, step %s: %s; trying an older step", world.rank, step, stock.withdrawn[step])
        elif found is not None and all(able for able, _ in told):
            return found
    return None


def agree(world: World, stock: Stock, root: str) -> Step | None:
    """Return the newest step that every rank has or can get; None when no rank sees any slice of any step.

    Raises
    ------
    UnrecoverableError
        When there are slices, but no such step.
    """
    steps = stock.steps
    counts = world.gather([len(steps), len(stock.assessments)])
    if not any(seen for _, seen in counts):
        return None
    width = max(able for able, _ in counts)
    flat = [number for step in steps for number in (step.epoch, step.step)]
    rows = world.gather([*flat, *[0] * (2 * width - len(flat)), 0])
    offers = [
        [Step(row[2 * index], row[2 * index + 1]) for index in range(able)]
        for row, (able, _) in zip(rows, counts, strict=True)
    ]
    step = newest_common_step(offers)
    if step is None:
        raise UnrecoverableError(_why_none(offers, stock, world.rank, root))
    return step


def newest_common_step(offers: Sequence[Sequence[Step]]) -> Step | None:
    """Return the newest step that every rank offers, None when there is none."""
    return max(set(offers[0]).intersection(*offers[1:]), default=None)


def get_slice(stock: Stock, step: Step) -> tuple[OwnSlice, int | None] | None:
    """Prove this rank's slice, or copy it from a peer.

    Returns
    -------
    (OwnSlice, int or None) or None
        The slice and the rank it was copied from, if it was; None when nobody's proved sound: the step is withdrawn.

    Raises
    ------
    VerificationError
        When replicas differ with nothing to say who is right.
    MsRecoverError
        When the copy failed.
    """
    before = stock.verdict(step)
    stock.prove(step)
    verdict = stock.verdict(step)
    inventory = stock.inventory
    assert inventory is not None
    if verdict.verdict != before.verdict:
        _log.warning("rank %d, step %s: %s", stock.rank, step, verdict.reason)
    if verdict.verdict == "unrecoverable":
        return None
    assert verdict.path is not None
    own = OwnSlice(stock.rank, step, os.path.join(inventory.root, verdict.path))
    if verdict.verdict == "keep":
        _log.info("%s: %s", own, verdict.reason)
        return own, None
    try:
        source = _copy(stock, step, own)
    except VerificationError as error:
        stock.withdrawn[step] = str(error)
        _log.warning("%s: %s; trying an older step", own, error)
        return None
    how = "copied from" if verdict.verdict == "copy" else "put together from slices of other ranks, first"
    _log.warning("%s: %s rank %d; %s", own, how, source, verdict.reason)
    return own, source


def _copy(stock: Stock, step: Step, own: OwnSlice) -> int:
    """Carry out this rank's action alone; return the rank whose slice it was, the first one of several."""
    assert stock.inventory is not None
    assert stock.compared is not None
    plan = plan_for_rank(stock.inventory, stock.compared, stock.assessments[step], stock.rank)
    stock.outdated = True
    outcome = api.apply(plan, ranks={stock.rank})
    (result,) = outcome.results
    for error in [*([result.error] if result.error else []), *outcome.errors]:
        kind = VerificationError if outcome.exit_code == VerificationError.exit_code else MsRecoverError
        raise kind(f"{own}: not copied: {error}")
    if result.source_rank is not None:
        return result.source_rank
    (action,) = plan.actions
    assert isinstance(action, ComposeAction)
    return action.source_ranks[0]


def set_aside(stock: Stock, step: Step, pattern: str | None = None) -> None:
    """Rename this rank's slices that are newer than the step that training goes on from, manifests along with them.

    Raises
    ------
    MsRecoverError
        As `ms_recover.api.scan` does.
    OSError
        When one cannot be renamed.
    """
    inventory = stock.inventory
    assert inventory is not None
    if stock.outdated:
        inventory = api.scan(inventory.root, ScanOptions(pattern=pattern, crc=False, may_be_empty=True))
    while newer := [file for file in inventory.slices if file.rank == stock.rank and file.step > step]:
        for file in newer:
            path = os.path.join(inventory.root, file.path)
            aside = _free_name(path)
            if os.path.exists(path + MANIFEST_SUFFIX):  # first, so that it never stays without its slice
                os.rename(path + MANIFEST_SUFFIX, aside + MANIFEST_SUFFIX)
            os.rename(path, aside)
            sync_directory(os.path.dirname(path))
            name = os.path.basename(aside)
            _log.warning("rank %d: %s is newer than step %s, renamed to %s", stock.rank, path, step, name)
        inventory = api.scan(
            inventory.root, ScanOptions(pattern=pattern, crc=False, may_be_empty=True)
        )  # shows one of several with the same bytes


def _free_name(path: str) -> str:
    name, count = path + SUPERSEDED_SUFFIX, 1
    while os.path.lexists(name) or (
        os.path.lexists(name + MANIFEST_SUFFIX) and os.path.lexists(path + MANIFEST_SUFFIX)
    ):
        count += 1
        name = f"{path}.{count}{SUPERSEDED_SUFFIX}"
    return name


def _why_none(offers: Sequence[Sequence[Step]], stock: Stock, rank: int, root: str) -> str:
    """Say which ranks could be brought to which steps, and what this rank lacks at each."""
    by_offer: dict[tuple[Step, ...], list[int]] = {}
    for other, steps in enumerate(offers):
        by_offer.setdefault(tuple(steps), []).append(other)
    have = "; ".join(
        f"rank(s) {', '.join(map(str, ranks))}: {', '.join(map(str, steps)) or 'none'}"
        for steps, ranks in by_offer.items()
    )
    lacks = "; ".join(f"step {step}: {reason}" for step, reason in stock.lacks.items())
    return (
        f"there is no step under {root} that every rank can be brought to ({have})"
        + (f"; rank {rank} lacks {lacks}" if lacks else "")
        + f"; see: recover-ckpt plan {root}"
    )
