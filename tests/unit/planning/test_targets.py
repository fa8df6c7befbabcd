"""Groups whose members have slices of different formats."""

from dataclasses import replace

import pytest

from ms_recover.formats.manifest_json import parse_origin
from ms_recover.model.inventory import RankPath
from ms_recover.model.options import PlanOptions
from tests.support.inventories import NAMES, OLDER, STEP, parameters, slice_file, tree
from tests.support.plans import make_plan
from tests.unit.planning.judging.test_votes import manifest

GROUP = {rank: list(range(4)) for rank in range(4)}
CKPT, SAFETENSORS = ".ckpt", ".safetensors"
OTHER = {CKPT: SAFETENSORS, SAFETENSORS: CKPT}


def held(rank, ending, step=STEP, **changes):
    place = RankPath(("ckpt_dir", f"/test-{step}{ending}"))
    return replace(slice_file(rank, step, **changes), place=place)


def plan(*slices, **options):
    return make_plan(tree(slices, GROUP), PlanOptions(**options))


@pytest.mark.parametrize("ending", OTHER)
def test_sources_are_of_the_format_of_what_is_replaced(ending):
    slices = [held(0, OTHER[ending]), held(1, ending), held(2, ending), held(3, ending, problem="cut", size=7)]
    (action,) = plan(*slices).actions
    assert (action.source_rank, [one.rank for one in action.alternatives]) == (1, [2])
    assert action.target == f"ckpt_dir3/test-{STEP}{ending}"
    assert action.replaces.bytes == 7


@pytest.mark.parametrize("ending", OTHER)
def test_alternatives_are_of_the_format_of_the_first_source(ending):
    (action,) = plan(held(0, ending), held(1, OTHER[ending]), held(2, ending)).actions
    assert (action.source_rank, [one.rank for one in action.alternatives]) == (0, [2])
    assert action.target == f"ckpt_dir3/test-{STEP}{ending}"


@pytest.mark.parametrize("ending", OTHER)
def test_a_damaged_slice_of_the_other_format_stays(ending):
    slices = [held(rank, OTHER[ending]) for rank in range(3)]
    made = plan(*slices, held(3, ending, problem="cut"))
    (action,) = made.actions
    assert (action.target, action.replaces) == (f"ckpt_dir3/test-{STEP}{OTHER[ending]}", None)
    (note,) = made.notes
    assert note.path == f"ckpt_dir3/test-{STEP}{ending}"
    assert action.target in note.reason
    recovered = held(3, OTHER[ending])
    told = replace(
        manifest(recovered), world_size=4, group=(0, 1, 2, 3), provenance=parse_origin("recovered from rank 0")
    )
    recovered = replace(recovered, manifest=told)
    for old in (held(3, ending, problem="cut"), held(3, ending)):
        after = plan(*slices, old, recovered)
        assert (after.step, after.actions) == (STEP, ())
        assert after.ranks[3].path == recovered.path


@pytest.mark.parametrize("ending", OTHER)
def test_two_whole_slices_are_not_made(ending):
    older = [held(rank, ending, OLDER) for rank in range(4)]
    newer = [*(held(rank, OTHER[ending]) for rank in range(3)), held(3, ending)]
    made = plan(*newer, lost=[3])
    assert made.step is None
    assert "of the other format" in made.ranks[3].reason
    made = plan(*older, *newer, lost=[3])
    assert made.step == OLDER
    (action,) = made.actions
    assert action.target == f"ckpt_dir3/test-{OLDER}{ending}"
    (action,) = plan(*newer[:3], held(3, ending, problem="cut"), lost=[3]).actions
    assert action.replaces is None
    (action,) = plan(*newer[:2], held(2, ending), held(3, ending), lost=[3]).actions
    assert action.source_rank == 2


def test_the_order_of_parameters_is_that_of_the_format():
    turned = parameters(NAMES[::-1])
    slices = [held(0, CKPT), replace(held(1, SAFETENSORS), parameters=turned), held(2, CKPT)]
    (action,) = plan(*slices).actions
    assert (action.rank, action.source_rank, [one.rank for one in action.alternatives]) == (3, 0, [2])
    slices[1] = replace(held(1, CKPT), parameters=turned)
    assert not plan(*slices).recoverable
