"""The verbs verify and seal: which slices get a manifest, and trees without a slice."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, UsageError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.support.iteration_trees import unpack
from tests.unit.planning.test_contents import backed, digests


def test_sound_slices_without_a_manifest_are_sealed():
    """Rank 0 has one from before; rank 3 is cut."""
    slices = [slice_file(rank, problem="cut" if rank == 3 else None) for rank in range(4)]
    slices[0] = backed(slices[0], "a", run="", origin="sealed by structure")
    read = Contents({file.path: digests("ab"[file.rank % 2]) for file in slices if file.problem is None})
    given = []

    def write(files, groups, world_size, known):
        given.append(([file.rank for file, _ in files], groups, world_size, known))
        return [file.path for file, _ in files]

    sealed, found = api.seal(tree(slices, pairs(4)), read=read.of, write=write)
    assert sealed == tuple(slices[rank].path for rank in (1, 2))
    assert given == [([1, 2], {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}, 4, read.digests)]
    assert [check.rank for check in found.wrong] == [3]


@pytest.mark.parametrize("verb", [api.verify, api.seal])
@pytest.mark.parametrize(
    ("inventory", "step", "error", "words"),
    [
        (Inventory("/tree"), None, MissingInputError, "/tree holds no slice:"),
        (Inventory("/tree"), STEP, MissingInputError, "/tree holds no slice of step 2_8:"),
        (tree([slice_file(0, OLDER)], {}), STEP, MissingInputError, "/tree holds no slice of step 2_8:"),
        (tree([slice_file(0, OLDER)], {}), Step.iteration(8), UsageError, "8"),
    ],
)
def test_a_step_of_which_there_is_no_slice_is_not_checked(verb, inventory, step, error, words):
    with pytest.raises(error, match=words):
        verb(inventory, PlanOptions(step=step))


def test_of_one_step_only_its_slices_are_read():
    asked = []

    def read(files):
        asked.extend(files)
        return Contents({file.path: digests("ab"[file.rank % 2]) for file in files})

    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    slices.append(replace(slice_file(4), problem="cut"))
    found = api.verify(tree(slices, pairs(4)), PlanOptions(step=STEP), read=read)
    assert [(file.rank, file.step) for file in asked] == [(rank, STEP) for rank in range(4)]
    assert {check.step for check in found.checks} == {STEP}


def test_both_files_of_a_slice_of_an_iteration_are_checked(tmp_path):
    inventory = api.scan(unpack("dp2_mp4", tmp_path))
    found = api.verify(inventory)
    assert found.ok
    assert {check.path for check in found.checks} == {file.path for file in inventory.slices}
