"""Compare what pipeline stages hold of one parameter that they cut differently, such as a shared embedding."""

from __future__ import annotations

from ms_recover.errors import MsRecoverError
from ms_recover.execution.bad_source import BadSourceError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece
from ms_recover.model.reshard import HeldRegion, Overlap, ReshardPlan
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.regions import intersect, runs_of, volume
from ms_recover.stores.urls import open_store


def find_unequal(plan: ReshardPlan) -> tuple[str, ...]:
    """Return the parameters of a plan whose overlaps differ, by their names in the source; they are read once more.

    Errors are those of reading a slice that is not what the plan saw.
    """
    with open_store(plan.root) as origin:
        context = ActionContext(root=plan.output, elsewhere={one.replica.path: origin for one in plan.sources})
        unequal: dict[str, None] = {}
        for overlap in plan.overlaps:
            if overlap.parameter not in unequal and not _are_equal(plan, overlap, context):
                unequal[overlap.parameter] = None
    return tuple(unequal)


def _are_equal(plan: ReshardPlan, overlap: Overlap, context: ActionContext) -> bool:
    box = intersect(overlap.one.box, overlap.other.box)
    assert box is not None
    item = overlap.item_size
    shape = tuple(stop - start for start, stop in box)
    listed = Parameter(overlap.parameter, overlap.dtype, shape, volume(box) * item)

    def part(number: int, region: HeldRegion) -> ComposedParameter:
        runs = runs_of(box, region.box, box, item)
        return ComposedParameter(listed, (Piece(number, runs, volume(region.box) * item),))

    action = ComposeAction(
        rank=0,
        sources=tuple(plan.sources[region.holders[0]].replica for region in (overlap.one, overlap.other)),
        model=0,
        parameters=(),
        target="",
        replaces=None,
        reason="",
    )
    try:
        with PieceReader(action, context) as first, PieceReader(action, context) as second:
            windows = zip(first.contents(part(0, overlap.one)), second.contents(part(1, overlap.other)), strict=True)
            return all(mine == theirs for mine, theirs in windows)
    except BadSourceError as failure:
        error: MsRecoverError = failure.error
        raise error from failure
