"""Which step to resume from: what this rank can get, and what all ranks can."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError, UnrecoverableError
from ms_recover.model.inventory import Inventory
from ms_recover.model.plan import RankVerdict
from ms_recover.model.steps import Step
from ms_recover.training.network import OwnSlice
from ms_recover.training.world import World

_log = logging.getLogger(__name__)
SUPERSEDED = ".superseded"
"""Appended to the name of a slice that is newer than the step that training resumed from."""


@dataclass(frozen=True)
class Stock:
    """What one rank sees of the tree.

    Parameters
    ----------
    inventory : Inventory or None
        None when there is no tree.
    verdicts : dict of Step to RankVerdict
        The verdict on this rank at every step, newest step first.
    newest : bool
        Whether of two slices of one step the one modified last counts.
    """

    inventory: Inventory | None = None
    verdicts: dict[Step, RankVerdict] = field(default_factory=dict)
    newest: bool = False

    @property
    def steps(self) -> list[Step]:
        """Steps at which this rank has its slice or can get it, newest first."""
        return [step for step, verdict in self.verdicts.items() if verdict.verdict in ("keep", "copy")]


def take_stock(root: str, world: World, pattern: str | None, group_info: Sequence[str], newest: bool) -> Stock:
    """Judge this rank at every step by what it can see; other ranks may see more.

    Raises
    ------
    MsRecoverError
        As `ms_recover.api.scan` and `ms_recover.api.assess` do; a root without slices is an empty stock.
    """
    try:
        inventory = api.scan(root, pattern=pattern, group_info=group_info)
    except MissingInputError as error:
        _log.warning("rank %d: %s", world.rank, error)
        return Stock()
    verdicts = {
        step: api.assess(inventory, step, world_size=world.size, newest=newest).ranks[world.rank]
        for step in inventory.steps
    }
    return Stock(inventory, verdicts, newest)


def agree(world: World, stock: Stock, root: str) -> Step | None:
    """Return the newest step that every rank has or can get; None when no rank sees any slice of any step.

    Raises
    ------
    UnrecoverableError
        When there are slices, but no such step.
    """
    steps = stock.steps
    counts = world.gather([len(steps), len(stock.verdicts)])
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


def get_slice(stock: Stock, step: Step, world: World) -> tuple[OwnSlice, int | None]:
    """Return this rank's slice and the rank it was copied from; None when this rank had it already.

    Raises
    ------
    MsRecoverError
        When the copy failed.
    """
    inventory, verdict = stock.inventory, stock.verdicts[step]
    assert inventory is not None
    assert verdict.path is not None
    own = OwnSlice(world.rank, step, os.path.join(inventory.root, verdict.path))
    if verdict.verdict == "keep":
        return own, None
    plan = api.plan(inventory, step=step, world_size=world.size, newest=stock.newest)
    if plan.step is None:  # the others have what they need, though it cannot be seen from here
        actions = api.assess(inventory, step, world_size=world.size, newest=stock.newest).actions
        plan = replace(plan, step=step, actions=actions)
    outcome = api.apply(plan, ranks={world.rank})
    for error in [*outcome.errors, *(result.error for result in outcome.results if result.error is not None)]:
        raise MsRecoverError(f"{own}: not copied from rank {verdict.source_rank}: {error}")
    _log.warning("%s: copied from rank %s; %s", own, verdict.source_rank, verdict.reason)
    return own, verdict.source_rank


def set_aside(stock: Stock, step: Step, rank: int) -> None:
    """Rename this rank's slices that are newer than the step that training goes on from."""
    assert stock.inventory is not None
    for file in stock.inventory.slices:
        if file.rank == rank and file.step > step:
            path = os.path.join(stock.inventory.root, file.path)
            os.replace(path, path + SUPERSEDED)
            _log.warning("rank %d: %s is newer than step %s, renamed to *%s", rank, path, step, SUPERSEDED)


def _why_none(offers: Sequence[Sequence[Step]], stock: Stock, rank: int, root: str) -> str:
    """Say which ranks could be brought to which steps, and what this rank lacks at each."""
    by_offer: dict[tuple[Step, ...], list[int]] = {}
    for other, steps in enumerate(offers):
        by_offer.setdefault(tuple(steps), []).append(other)
    have = "; ".join(
        f"rank(s) {', '.join(map(str, ranks))}: {', '.join(map(str, steps)) or 'none'}"
        for steps, ranks in by_offer.items()
    )
    lacks = "; ".join(
        f"step {step}: {own.reason}" for step, own in stock.verdicts.items() if own.verdict == "unrecoverable"
    )
    return (
        f"there is no step under {root} that every rank can be brought to ({have})"
        + (f"; rank {rank} lacks {lacks}" if lacks else "")
        + f"; see: recover-ckpt plan {root}"
    )
