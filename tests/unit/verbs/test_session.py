"""A session over one tree: which slices are read, and that none is read twice."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.options import PlanOptions
from ms_recover.verbs.session import Session
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.unit.planning.test_contents import digests

SLICES = [slice_file(rank, step) for step in (OLDER, STEP) for rank in range(4)]
CUT = slice_file(0, STEP, problem="cut")


def session_of(log, slices=SLICES, **options):
    def read(files):
        log.append([(file.rank, file.step) for file in files])
        return Contents({file.path: digests("ab"[file.rank % 2]) for file in files})

    return Session(tree(slices, pairs(4)), PlanOptions(**options), read=read)


@pytest.mark.parametrize(("step", "expected"), [(None, SLICES), (OLDER, SLICES[:4]), (STEP, SLICES[4:])])
def test_slices_that_are_not_malformed_are_those_of_a_step(step, expected):
    assert session_of([], [*SLICES, CUT]).files_of(step) == expected


def test_slices_are_those_of_some_kinds_of_files():
    both = [replace(file, kind=kind) for file in SLICES[:4] for kind in ("model", "opt")]
    session = session_of([], SLICES)
    session.inventory = replace(session.inventory, slices=tuple(both))
    assert session.files_of(OLDER, ["opt"]) == both[1::2]
    assert session.files_of(OLDER, ["model", "opt"]) == session.files_of(OLDER) == both
    assert session.files_of(OLDER, [None]) == []


def test_what_was_read_is_not_read_again():
    log = []
    session = session_of(log)
    assert session.read(SLICES[:2])
    assert session.read(SLICES[:3])
    assert not session.read(SLICES[:3])
    assert not session.read([])
    assert log == [[(0, OLDER), (1, OLDER)], [(2, OLDER)]]
    assert set(session.contents.digests) == {file.path for file in SLICES[:3]}


@pytest.mark.parametrize("quick", [False, True])
def test_what_a_judgement_requires_is_read_until_nothing_more_is(quick):
    log = []
    session = session_of(log, quick=quick)

    def judge():
        return len(session.contents.digests)

    judged = session.read_until_known(judge, lambda count: SLICES[: min(count + 1, 3)])
    assert (judged, len(log)) == ((0, 0) if quick else (3, 3))
