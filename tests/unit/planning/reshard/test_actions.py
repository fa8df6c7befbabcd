"""Files of a reshard as actions, and regions of the source cut back out of them."""

from dataclasses import replace

import pytest
from hypothesis import given

from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import MissingRegion
from ms_recover.model.reshard import HeldRegion, Overlap
from ms_recover.planning.reshard.actions import CutBack, action_of, bytes_read, cut_back, paths_taken, source_names
from tests.unit.planning.reshard.test_transfers import (
    ITEM,
    box_of,
    contents,
    jobs,
    layout,
    plan_of,
    search,
    slice_of,
    source_of,
    target_of,
    whole,
)


def composed(action, held):
    """Return the contents of each parameter that an action puts together; `held` has contents by source and name."""
    made = {}
    for item in action.parameters:
        made[item.parameter.name] = buffer = bytearray(item.parameter.nbytes)
        for piece in item.pieces:
            given = held(action.sources[piece.source], item.parameter.name)
            assert piece.source_bytes == len(given)
            assert piece.digest in (None, given.decode())
            for other in piece.alternatives:
                assert held(action.sources[other], item.parameter.name) == given
            for begin, end in piece.runs:
                buffer[end : end + piece.runs.length] = given[begin : begin + piece.runs.length]
    return {name: bytes(buffer) for name, buffer in made.items()}


@search
@given(jobs())
def test_files_are_put_together_from_the_source_and_the_source_from_the_files(job):
    shapes, source, layouts = job
    plan = plan_of(source, target_of(layouts))
    regions = {
        (slice_.replica.rank, name): next(
            region.box for region in source.parameters[name].regions if slice_.replica.rank in region.holders
        )
        for slice_ in source.slices
        for name in shapes
    }

    def of_source(replica, name):
        return contents(name, shapes[name], regions[replica.rank, name])

    written = {}
    for number, file in enumerate(plan.files):
        action = action_of(plan, file)
        assert (action.rank, action.target, action.group, action.kind) == (
            file.rank,
            file.target,
            file.group,
            "compose",
        )
        written[number] = composed(action, of_source)
        for moved, part, transfer in plan.parts_of(file):
            assert written[number][moved.name] == contents(moved.name, transfer.shape, part.box)
    back = CutBack(plan)
    assert back.sources == sorted({region.holders[0] for one in source.parameters.values() for region in one.regions})
    for number in back.sources:
        action, names, casts = cut_back(
            back, number, lambda file: Replica(plan.files[file].rank, plan.files[file].target, FileState(1, 1))
        )
        assert (action.rank, casts) == (source.slices[number].replica.rank, {})
        assert names == {name: name for name in shapes}
        found = composed(action, lambda replica, name: written[replica.rank][name])
        assert found == {name: of_source(source.slices[number].replica, name) for name in shapes}
        for item in action.parameters:
            starts = [piece.runs.target for piece in item.pieces]
            assert starts == sorted(starts)


def halves(name, *holders, **changes):
    """Return a parameter of eight elements, each half with its holders."""
    regions = [HeldRegion(box_of((8,), 0, part, 2), tuple(ranks)) for part, ranks in enumerate(holders)]
    return whole(name, (8,), regions, **changes)


def slices_of(*held):
    """Return slices; of each rank the part of each parameter by name, None for all of it."""
    return [
        slice_of(
            rank, {name: ((8,), box_of((8,), 0, part or 0, 1 if part is None else 2)) for name, part in of.items()}
        )
        for rank, of in enumerate(held)
    ]


def test_values_that_each_rank_has_of_its_own_come_from_one_rank_alone():
    """The target's rank r gets those of rank r modulo the ranks of the source, or of the first that has any."""
    own = whole("own", (8,), [HeldRegion(((0, 8),), (2, 0, 1))], own=True)
    source = source_of(own, slices=slices_of(*[{"own": None}] * 3))
    plan = plan_of(source, target_of([layout("own", None)]))
    taken = []
    for file in plan.files:
        action = action_of(plan, file)
        (item,) = action.parameters
        ((piece,),) = [item.pieces]
        taken.append(action.sources[piece.source].rank)
        assert (piece.alternatives, action.borrowed) == ((), ("own",))
    assert taken == [0, 1, 2, 0]
    assert bytes_read(plan) == {0: 64, 1: 32, 2: 32}
    some = replace(own, regions=(HeldRegion(((0, 8),), (2, 1)),))
    plan = plan_of(replace(source, parameters={"own": some}), target_of([layout("own", None)]))
    assert bytes_read(plan) == {1: 32, 2: 96}


def test_other_values_have_alternatives_and_are_borrowed_of_nobody():
    plan = plan_of(source_of(halves("a", (1, 2), (0,)), slices=slices_of({"a": 1}, {"a": 0}, {"a": 0})))
    action = action_of(plan, plan.files[0])
    (item,) = action.parameters
    assert [(piece.source, piece.alternatives) for piece in item.pieces] == [(0, (1,)), (2, ())]
    assert [replica.rank for replica in action.sources] == [1, 2, 0]
    assert action.borrowed == ()


def test_contents_of_no_bytes_need_no_source():
    empty = whole("a", (0,), [HeldRegion(((0, 0),), (0,))])
    plan = plan_of(source_of(empty))
    (item,) = action_of(plan, plan.files[0]).parameters
    assert (item.pieces, item.parameter.nbytes) == ((), 0)
    assert CutBack(plan).sources == []


def test_a_file_that_lacks_something_is_partial():
    gone = MissingRegion("a", ((4, 8),), 16, "no sound slice has it")
    half = whole("a", regions=[HeldRegion(((0, 4),), (0,))], missing=(gone,))
    plan = plan_of(source_of(half, whole("b"), slices=slices_of({"a": 0, "b": None})), target_of([layout("a", 0)]))
    assert [action_of(plan, file).kind for file in plan.files] == ["compose", "partial"] * 2


def test_names_in_the_source_are_found_by_names_of_the_target():
    plan = plan_of(source_of(whole("a"), whole("b")), rules=(("a", "x"),))
    assert source_names(plan) == {"x": "a", "b": "b"}
    back, names, _ = cut_back(CutBack(plan), 0, lambda file: Replica(0, "new", FileState(1, 1)))
    assert [item.parameter.name for item in back.parameters] == ["a", "b"]
    assert names == {"a": "x", "b": "b"}


def test_what_was_cast_is_cut_back_in_the_type_of_the_output():
    plan = plan_of(source_of(whole("a"), whole("b")), casts={"a": "Float16"})
    action, _, casts = cut_back(CutBack(plan), 0, lambda file: Replica(0, "new", FileState(1, 1)))
    assert casts == {"a": ("Float32", "Float16")}
    assert [(item.parameter.dtype, item.parameter.nbytes) for item in action.parameters] == [
        ("Float16", 16),
        ("Float32", 32),
    ]
    assert [piece.source_bytes for item in action.parameters for piece in item.pieces] == [16, 32]


def test_regions_that_went_nowhere_are_not_cut_back():
    """Values that each rank has of its own, and a part in a file that another part is missing of."""
    gone = MissingRegion("a", ((4, 8),), 16, "no sound slice has it")
    lacking = whole("a", regions=[HeldRegion(((0, 4),), (0,))], missing=(gone,))
    plan = plan_of(source_of(lacking, whole("own", own=True), slices=slices_of({"a": 0, "own": None})))
    assert list(CutBack(plan).of(0)) == []
    assert [moved.name for moved, _ in CutBack(plan).compared_with(0)] == ["own"]


def test_parameters_that_share_a_transfer_are_cut_back_where_a_file_has_them():
    """Of two that are cut alike one goes to the first stage, the other one to both: each is taken from its files."""
    shared = (HeldRegion(((0, 8),), (0,)),)
    source = source_of(*(replace(whole(name), regions=shared) for name in "ab"), stage_names=(frozenset("ab"),))
    plan = plan_of(source, target_of([layout("a", 0), layout("b", 0)], [layout("b", 0)], devices=4))
    back = CutBack(plan)
    found = [(moved.name, [file for file, _, _ in parts]) for moved, _, parts in back.of(0)]
    assert found == [("a", [0, 1]), ("b", [0, 1]), ("b", [4, 5])]
    assert [(moved.name, file) for moved, file in back.compared_with(3)] == [("a", 1), ("b", 1)]
    assert [(moved.name, file) for moved, file in back.compared_with(6)] == [("b", 4)]


def test_slices_that_are_read_are_those_taken_from_and_those_of_overlaps():
    def overlap(one, other):
        return Overlap("a", "Float32", ITEM, HeldRegion(((0, 8),), one), HeldRegion(((0, 8),), other))

    one = whole("a", overlaps=(overlap((1, 4), (2,)),))
    plan = plan_of(source_of(one, slices=slices_of(*[{"a": None}] * 5)))
    assert bytes_read(plan) == {0: 32}
    assert paths_taken(plan) == {f"ckpt_dir{rank}/s" for rank in (0, 1, 2)}


@pytest.mark.parametrize(("parts", "expected"), [((0, 1), {0: 16, 1: 16}), ((None, 1), {0: 32})])
def test_the_bytes_that_are_read_are_those_of_the_first_holders(parts, expected):
    held = slices_of({"a": parts[0]}, {"a": parts[1]})
    made = halves("a", (0,), (1,)) if parts[0] is not None else whole("a")
    assert bytes_read(plan_of(source_of(made, slices=held))) == expected
