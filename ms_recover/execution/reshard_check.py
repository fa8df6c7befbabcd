"""Compare what a reshard takes, and what it has written: overlaps of its sources, and its output cut back in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import xxhash

from ms_recover.errors import MsRecoverError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.execution.sources import without_others
from ms_recover.formats.cast import Caster
from ms_recover.formats.header import parse_header
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece
from ms_recover.model.reshard import HeldRegion, Overlap, ReshardPlan
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.regions import intersect, runs_of, volume
from ms_recover.planning.reshard.actions import CutBack, cut_back
from ms_recover.stores.digest import digest_file, name_digest
from ms_recover.stores.gather import WINDOW, Contents
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import open_store
from ms_recover.system_errors import explained


def compare_back(
    plan: ReshardPlan, origin: Store, digests: Mapping[str, Mapping[str, str]], *, jobs: int = 1
) -> tuple[tuple[int, int], list[str]]:
    """Compare each region of the source with the same bytes of the output, and files that hold the same.

    Parameters
    ----------
    plan : ReshardPlan
        What was carried out.
    origin : Store
        The tree that it was read from.
    digests : mapping of str to mapping of str to str
        By file of the output and parameter what was written.

    Returns
    -------
    compared : (int, int)
        How many regions, and their bytes.
    problems : list of str
        What differs, a sentence each.
    """
    context = ActionContext(tree=LocalStore(plan.output))
    back = CutBack(plan)

    def check(source: int) -> tuple[int, int, list[str]]:
        count = total = 0
        problems = []
        try:
            action, names, casts = cut_back(back, source, lambda number: _replica(plan, number))
            with PieceReader(action, context, names) as reader, without_others():
                for item in action.parameters:
                    name = item.parameter.name
                    known = plan.sources[source].digest_of(name)
                    if name in casts:
                        expected = _read(plan, source, name, origin, Caster(*casts[name]), known)
                    else:
                        expected = known or _read(plan, source, name, origin)
                    if reader.read(item) != expected:
                        where = os.path.join(plan.root, plan.sources[source].replica.path)
                        problems.append(f"{name!r} of {where} does not come back out of {plan.output}")
                    count, total = count + 1, total + item.parameter.nbytes
        except MsRecoverError as error:
            problems.append(str(error))
        return count, total, problems

    ends = in_threads(jobs, check, back.sources)
    problems = [text for _, _, found in ends for text in found]
    problems += _unequal(plan, back, digests)
    return (sum(count for count, _, _ in ends), sum(total for _, total, _ in ends)), problems


def _replica(plan: ReshardPlan, number: int) -> Replica:
    path = plan.files[number].target
    with explained("looking at", os.path.join(plan.output, path)):
        status = os.stat(os.path.join(plan.output, path))
    return Replica(plan.files[number].rank, path, FileState(status.st_size, status.st_mtime_ns))


def _read(
    plan: ReshardPlan, source: int, name: str, origin: Store, caster: Caster | None = None, known: str | None = None
) -> str:
    """Return the digest of a parameter of the source after it is cast; empty where it is not the `known` one."""
    replica = plan.sources[source].replica
    with origin.open(replica.path, replica.state) as opened:
        header = parse_header(opened.read_at, opened.size, name=opened.name)
        place = next(number for number, one in enumerate(header.parameters) if one.name == name)
        contents = Contents(opened.read, header.contents[place])
        buffer = memoryview(bytearray(min(WINDOW, contents.bytes)))
        before, after = xxhash.xxh3_128(), xxhash.xxh3_128()
        for offset in range(0, contents.bytes, WINDOW):
            window = buffer[: min(WINDOW, contents.bytes - offset)]
            contents.read(offset, window)
            before.update(window)
            after.update(window if caster is None else caster.cast(window))
        opened.check_unchanged()
    return name_digest(after) if known in (None, name_digest(before)) else ""


def _unequal(plan: ReshardPlan, back: CutBack, digests: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the files that do not hold what was written, or not the same as another that should."""
    for number, file in enumerate(plan.files):
        known = digests.get(file.target)
        if known is None:
            continue
        path = os.path.join(plan.output, file.target)
        with explained("reading", path):
            now = _parameters(path)
        for one, first in back.compared_with(number):
            expected = digests[plan.files[first].target].get(one.name)
            if now.get(one.name) != known.get(one.name):
                yield f"{path} does not hold {one.name!r} as it was written"
            elif first != number and not one.own and known.get(one.name) != expected:
                yield f"{path} and {plan.files[first].target} should hold the same of {one.name!r}, and do not"


def _parameters(path: str) -> dict[str, str]:
    from ms_recover.formats.header import read_header

    header = read_header(path)
    found = digest_file(path, header.contents).parameters
    return dict(zip((one.name for one in header.parameters), found, strict=True))


def find_unequal(plan: ReshardPlan) -> tuple[str, ...]:
    """Return the parameters of a plan whose overlaps differ, by their names in the source; they are read once more.

    Errors are those of reading a slice that is not what the plan saw.
    """
    with open_store(plan.root) as origin:
        context = ActionContext(tree=origin)
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
    with PieceReader(action, context) as first, PieceReader(action, context) as second, without_others():
        windows = zip(first.contents(part(0, overlap.one)), second.contents(part(1, overlap.other)), strict=True)
        return all(mine == theirs for mine, theirs in windows)
