"""The plan of a reshard: what each file is to hold, and which region of the source gives it."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.errors import UsageError
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import MissingRegion
from ms_recover.model.inventory import RankPath, SliceFile
from ms_recover.model.reshard import HeldRegion, Overlap, ReshardSource
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.reshard.source import Source
from ms_recover.planning.reshard.target import FULL, Target
from ms_recover.planning.reshard.transfers import Origin, Output, pattern_like, plan_transfers
from ms_recover.planning.supply.whole import WholeParameter
from tests.support.examples import examples
from tests.support.inventories import STEP

ITEM = 4
search = settings(max_examples=examples(80))


def box_of(shape, dimension=None, part=0, parts=1):
    """Return one of equal parts of a tensor, cut in one dimension or not at all."""
    sizes = [size // parts if axis == dimension else size for axis, size in enumerate(shape)]
    starts = [size * part if axis == dimension else 0 for axis, size in enumerate(sizes)]
    return tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))


def contents(name, shape, box):
    """Return the bytes of a region: each element says its parameter and its place in the whole tensor."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    places = product(*(range(start, stop) for start, stop in box))
    numbers = (sum(at * stride for at, stride in zip(place, strides, strict=True)) for place in places)
    return b"".join(f"{name[0]}{number:03d}".encode() for number in numbers)


def slice_of(rank, held, **changes):
    """Return a source of these regions, by name; the digest of contents is their text."""
    listed = ParameterList(
        Parameter(name, "Float32", tuple(stop - start for start, stop in box), len(contents(name, shape, box)))
        for name, (shape, box) in held.items()
    )
    digests = tuple(contents(name, shape, box).decode() for name, (shape, box) in held.items())
    return ReshardSource(
        Replica(rank, f"ckpt_dir{rank}/s", FileState(1, 1), f"file {rank}"), listed, digests, **changes
    )


def whole(name, shape=(8,), regions=None, **changes):
    regions = (HeldRegion(box_of(shape), (0,)),) if regions is None else tuple(regions)
    made = WholeParameter(name=name, dtype="Float32", shape=shape, item_size=ITEM, regions=regions)
    return replace(made, **changes)


def source_of(*wholes, slices=(), **changes):
    if not slices:
        slices = [slice_of(0, {one.name: (one.shape, box_of(one.shape)) for one in wholes})]
    made = Source(slices=tuple(slices), parameters={one.name: one for one in wholes}, alive=frozenset((0,)))
    return replace(made, **changes)


def target_of(*stages, devices=4):
    return Target(
        devices=devices, stages=tuple({one.parameter: one for one in stage} for stage in stages), source="--to"
    )


def layout(name, *axes, matrix=(2, 2)):
    """Return a layout with the axis of each dimension, None for one that is not cut; axis 0 is that of neighbours."""
    return Layout(name, matrix, tuple(() if axis is None else (axis,) for axis in axes))


OUTPUT = Output(
    path="/out",
    form="ckpt",
    pattern="rank_{rank}/{prefix}-{epoch}_{step}",
    prefix="test",
    rules=(),
    casts={},
    shard_size=0,
    common=None,
)


def plan_of(source, target=FULL, *, step=STEP, **output):
    origin = Origin(root="/tree", step=step, run_id="run", world_size=max(len(source.slices), 1))
    return plan_transfers(source, target, origin, replace(OUTPUT, **output))


@st.composite
def jobs(draw):
    """Return shapes by name, a source that cuts them over its ranks, and layouts for a stage of four ranks."""
    parts = draw(st.sampled_from([1, 2, 4]))
    ranks = parts * draw(st.sampled_from([1, 2]))
    shapes, wholes, layouts, held = {}, [], [], [{} for _ in range(ranks)]
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        shape = tuple(draw(st.lists(st.sampled_from([4, 8]), min_size=1, max_size=2)))
        cut = draw(st.integers(0, len(shape) - 1))
        shapes[name] = shape
        boxes = [box_of(shape, cut, part, parts) for part in range(parts)]
        regions = [HeldRegion(box, tuple(range(part, ranks, parts))) for part, box in enumerate(boxes)]
        wholes.append(whole(name, shape, regions))
        for rank in range(ranks):
            held[rank][name] = shape, boxes[rank % parts]
        axes = draw(st.permutations([0, 1, None][: len(shape)] if draw(st.booleans()) else [1, None][: len(shape)]))
        layouts.append(layout(name, *axes))
    return shapes, source_of(*wholes, slices=[slice_of(rank, one) for rank, one in enumerate(held)]), layouts


def target_box(shape, cut, place):
    """Return what a rank of two times two holds: axis 0 is its place among neighbours, axis 1 that of the pair."""
    box = box_of(shape)
    for dimension, axes in enumerate(cut.tensor_map):
        for axis in axes:
            part = (place % 2, place // 2)[axis]
            box = tuple(
                (part * size // 2, (part + 1) * size // 2) if number == dimension else held
                for number, (size, held) in enumerate(zip(shape, box, strict=True))
            )
    return box


@search
@given(jobs())
def test_each_part_of_the_target_is_taken_from_regions_that_are_all_of_it(job):
    shapes, source, layouts = job
    plan = plan_of(source, target_of(layouts))
    assert plan.complete
    assert [file.rank for file in plan.files] == [0, 1, 2, 3]
    for file in plan.files:
        assert [(moved.name, part.box) for moved, part, _ in plan.parts_of(file)] == [
            (name, target_box(shape, cut, file.rank))
            for (name, shape), cut in zip(shapes.items(), layouts, strict=True)
        ]
        alike = [
            other
            for other in range(4)
            if all(
                target_box(shape, cut, other) == target_box(shape, cut, file.rank)
                for shape, cut in zip(shapes.values(), layouts, strict=True)
            )
        ]
        assert list(file.group) == alike
        for moved, part, transfer in plan.parts_of(file):
            made = bytearray(prod(part.shape) * ITEM)
            starts = []
            for piece in part.pieces:
                region = transfer.regions[piece.region]
                held = contents(moved.name, transfer.shape, region.box)
                for begin, end in piece.runs:
                    made[end : end + piece.runs.length] = held[begin : begin + piece.runs.length]
                starts.append(piece.runs.target)
            assert bytes(made) == contents(moved.name, transfer.shape, part.box)
            assert starts == sorted(starts)


def names_of(plan, file):
    return [plan.parameters[number].name for number in file.parameters]


def test_parameters_that_are_cut_alike_share_one_transfer():
    """Equal regions are one object; a plan stays small where parameters are many."""
    shared = (HeldRegion(box_of((8,)), (0,)),)
    wholes = [replace(whole(name), regions=shared) for name in "abc"] + [replace(whole("d", (4,)))]
    layouts = [layout("a", 0), layout("b", 0), layout("c", 1), layout("d", 0)]
    plan = plan_of(source_of(*wholes), target_of(layouts))
    assert [moved.transfer for moved in plan.parameters] == [0, 0, 1, 2]
    assert len(plan.transfers) == 3


def test_a_part_that_nobody_holds_makes_its_files_partial_and_no_other():
    gone = MissingRegion("a", ((4, 8),), 16, "no sound slice has it")
    half = whole("a", regions=[HeldRegion(((0, 4),), (0,))], missing=(gone,))
    plan = plan_of(source_of(half, whole("b")), target_of([layout("a", 0), layout("b", 1)]))
    assert (plan.complete, plan.missing) == (False, (gone,))
    assert [[moved.name for moved, _, _ in plan.parts_of(file)] for file in plan.files] == [["a", "b"], ["b"]] * 2
    ends = [file.target.removeprefix(f"rank_{file.rank}/test-2_8") for file in plan.files]
    assert ends == [".ckpt", ".partial.ckpt"] * 2
    assert plan.metadata is None


def test_a_parameter_of_unknown_shape_is_in_no_file_and_each_of_its_stage_lacks_it():
    gone = MissingRegion("b", (), 0, "nothing states it")
    unknown = whole("b", (), regions=(), missing=(gone,), known=False)
    plan = plan_of(
        source_of(whole("a"), unknown, whole("c")), target_of([layout("a", 0), layout("b", 0)], [layout("c", 0)])
    )
    assert [names_of(plan, file) for file in plan.files] == [["a"]] * 4 + [["c"]] * 4
    assert [file.lacks for file in plan.files] == [True] * 4 + [False] * 4
    assert plan.missing == (gone,)


def test_any_file_may_lack_something_of_a_stage_of_which_nothing_is_known():
    gone = MissingRegion("every parameter of stage 1", (), 0, "no slice is left")
    plan = plan_of(source_of(whole("a"), lost=(gone,)), target_of([layout("a", 0), layout("unknown", 0)]))
    assert [file.lacks for file in plan.files] == [True] * 4
    assert plan.missing == (gone,)


def test_each_rank_of_the_target_gets_a_file_also_where_its_stage_has_no_parameter():
    plan = plan_of(source_of(whole("a")), target_of([layout("a", 0)], []))
    assert [names_of(plan, file) for file in plan.files] == [["a"]] * 4 + [[]] * 4
    assert [file.group for file in plan.files[4:]] == [(4, 5, 6, 7)] * 4


@pytest.mark.parametrize(
    ("wanted", "changes", "layouts", "expected"),
    [
        ({"a": 0, "b": 1}, {}, [["a"], ["b"]], ["a", "b"]),
        ({"a": 0, "n": 0}, {"cut": False}, [["a"], []], ["an", ""]),
        ({"a": 0, "b": 1, "n": 1}, {"cut": False}, [["a"], ["b"]], ["a", "bn"]),
        ({"a": 0, "b": 1, "n": 2}, {"cut": False}, [["a"], ["b"]], ["a", "b"]),
        ({"a": 0, "n": 0}, {"cut": True}, [["a"], []], ["a", ""]),
        ({"a": 0, "n": 0}, {"cut": True, "shape": (1,)}, [["a"], []], ["an", ""]),
        ({"a": 0, "n": 2}, {"cut": False}, [["a"]], ["an"]),
        ({"a": 0, "n": 0}, {"cut": False}, [["a"], ["n"]], ["a", "n"]),
    ],
    ids=[
        "named",
        "whole, of the stage whose parameters a stage has",
        "whole, of the other stage",
        "whole, of a stage that no stage continues",
        "cut, and named by none",
        "one element",
        "one stage takes all that is whole",
        "whole and named",
    ],
)
def test_a_stage_takes_what_it_names_and_what_is_whole_in_stages_that_it_continues(wanted, changes, layouts, expected):
    """Stages 0 and 1 of the source name ``a`` and ``b``; a third names nothing."""
    wholes = [
        whole(name, stages=frozenset((stage,)), **(changes if name == "n" else {})) for name, stage in wanted.items()
    ]
    source = source_of(*wholes, stage_names=(frozenset("an"), frozenset("b"), frozenset()), alive=frozenset((0, 1, 2)))
    plan = plan_of(source, target_of(*([layout(name, 0) for name in names] for names in layouts)))
    assert ["".join(names_of(plan, plan.files[4 * stage])) for stage in range(len(layouts))] == expected
    assert plan.left_out == tuple(name for name in wanted if name not in "".join(expected))


def test_what_is_whole_in_all_stages_goes_to_all():
    """Such as a counter: a stage that continues none of those of the source counts as well."""
    counter = whole("n", (), cut=False, stages=frozenset((0, 1)))
    wholes = [whole("a", stages=frozenset((0,))), whole("b", stages=frozenset((1,))), counter]
    source = source_of(*wholes, stage_names=(frozenset("a"), frozenset("b")), alive=frozenset((0, 1)))
    plan = plan_of(source, target_of([layout("a", 0)], [layout("b", 0)], []))
    assert ["".join(names_of(plan, plan.files[4 * stage])) for stage in range(3)] == ["an", "bn", "n"]
    once = replace(source, alive=frozenset((0, 1, 2)))
    plan = plan_of(once, target_of([layout("a", 0)], [layout("b", 0)], []))
    assert ["".join(names_of(plan, plan.files[4 * stage])) for stage in range(3)] == ["an", "bn", ""]


def test_names_that_no_slice_holds_are_those_of_another_model_unless_they_are_never_saved():
    source = source_of(whole("a"), whole("b"), stage_names=(frozenset(("a", "idle")),))
    with pytest.raises(UsageError, match=r"--to names 'new', which no slice of the source holds \(2 others it does\)"):
        plan_of(source, target_of([layout("a", 0), layout("b", 0), layout("new", 0)]))
    for name in ("idle", "accu_grads.a"):
        assert plan_of(source, target_of([layout("a", 0), layout(name, 0)])).complete


def test_new_names_are_those_of_the_target_and_old_ones_those_of_the_source():
    source = source_of(whole("a"), whole("b"), stage_names=(frozenset("ab"),))
    plan = plan_of(source, target_of([layout("x", 0)]), rules=(("a", "x"),))
    assert [(moved.name, moved.source_name) for moved in plan.parameters] == [("x", "a")]
    assert plan.left_out == ("b",)


def test_the_strategy_that_is_written_has_the_layouts_of_what_slices_hold():
    """Of what has dimensions: a single value has no layout."""
    merged = Layout("a", (2, 2), ((), (0,)), tensor_shape=(2, 4))
    source = source_of(whole("b"), whole("a"), whole("n", ()), stage_names=(frozenset(("idle",)),))
    target = target_of([layout("b", 0), merged, layout("idle", 0), Layout("n", (2, 2), ())])
    (strategy,) = plan_of(source, target).strategies
    assert strategy.stages == (0,)
    assert [(one.parameter, one.tensor_map) for one in strategy.layouts] == [("a", ((0,),)), ("b", ((0,),))]


def test_overlaps_are_those_of_parameters_that_are_written():
    overlaps = [Overlap(name, "Float32", ITEM, *[HeldRegion(box_of((8,)), (0,))] * 2) for name in "ab"]
    wholes = [whole("a", overlaps=(overlaps[0],)), whole("b", overlaps=(overlaps[1],)), whole("c", known=False)]
    assert plan_of(source_of(*wholes), target_of([layout("a", 0)])).overlaps == (overlaps[0],)
    assert plan_of(source_of(*wholes)).overlaps == tuple(overlaps)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, [("model.ckpt", "abc")]),
        (200, [("model.ckpt", "abc")]),
        (96, [("model.ckpt", "abc")]),
        (95, [("model-00001-of-00002.ckpt", "ab"), ("model-00002-of-00002.ckpt", "c")]),
        (64, [("model-00001-of-00002.ckpt", "ab"), ("model-00002-of-00002.ckpt", "c")]),
        (1, [(f"model-0000{number}-of-00003.ckpt", name) for number, name in enumerate("abc", 1)]),
    ],
)
def test_a_full_checkpoint_is_dealt_out_to_files_of_a_size_in_order(most, expected):
    """Each parameter has 32 bytes."""
    plan = plan_of(source_of(*map(whole, "abc")), shard_size=most)
    assert plan.full
    assert [(file.target, "".join(names_of(plan, file))) for file in plan.files] == expected
    assert {(file.rank, file.group, file.lacks) for file in plan.files} == {(0, (0,), False)}
    assert plan.strategies == ()


def test_parameters_that_are_cast_count_with_their_new_size_in_files_of_a_full_checkpoint():
    casts = dict.fromkeys("abc", "Float16")
    plan = plan_of(source_of(*map(whole, "abc")), shard_size=48, casts=casts)
    assert [names_of(plan, file) for file in plan.files] == [["a", "b", "c"]]


def test_a_full_checkpoint_that_lacks_something_is_partial():
    gone = MissingRegion("b", (), 0, "nothing states it")
    unknown = whole("b", (), regions=(), missing=(gone,), known=False)
    (file,) = plan_of(source_of(whole("a"), unknown)).files
    assert (file.target, file.lacks) == ("model.partial.ckpt", True)


def test_a_pattern_that_names_no_rank_is_refused_where_there_are_several():
    with pytest.raises(UsageError, match=r"pattern 'all' gives several ranks one file, all\.ckpt"):
        plan_of(source_of(whole("a")), target_of([layout("a", 0)]), pattern="all")


@pytest.mark.parametrize(
    ("pattern", "step", "prefix", "form", "expected"),
    [
        ("r{rank}/{prefix}-{epoch}_{step}", Step(2, 8), "test", "ckpt", "r3/test-2_8.ckpt"),
        ("r{rank}/{prefix}-{epoch}_{step}", Step(2, 8), None, "safetensors", "r3/checkpoint-2_8.safetensors"),
        ("r{rank}-{epoch}_{step}.ckpt", Step.iteration(8), "test", "ckpt", "r3-0_8.ckpt"),
    ],
)
def test_the_pattern_gives_the_places_of_files(pattern, step, prefix, form, expected):
    plan = plan_of(
        source_of(whole("a")), target_of([layout("a", 0)]), pattern=pattern, step=step, prefix=prefix, form=form
    )
    assert plan.files[3].target == expected


def test_a_pattern_with_the_ending_of_another_format_is_refused():
    with pytest.raises(UsageError, match=r"ends in \.safetensors, and slices are written as ckpt"):
        plan_of(source_of(whole("a")), target_of([layout("a", 0)]), pattern="r{rank}.safetensors")


COMMON = CommonInfo(epoch_num=1, step_num=8, global_step=8, global_batch_size=4, members=("step_num",))


def test_an_iteration_has_a_file_for_each_kind_of_parameters_and_metadata():
    rest = (whole("global_step", (1,), cut=False), whole("epoch_num", (1,), cut=False))
    source = source_of(whole("m.a"), whole("a"), *rest, stage_names=(frozenset("a"),))
    target = target_of([layout("a", 0), layout("m.a", 0)])
    plan = plan_of(source, target, common=COMMON, form="mindformers", prefix=None)
    folder = "iteration_00000008"
    assert [(file.target, file.kind, names_of(plan, file)) for file in plan.files] == [
        *((f"{folder}/model-{rank:07d}-0000004.safetensors", "model", ["a"]) for rank in range(4)),
        *((f"{folder}/opt-{rank:07d}-0000004.safetensors", "opt", ["m.a", "global_step"]) for rank in range(4)),
    ]
    assert plan.written_step == Step.iteration(8)
    assert plan.metadata is not None
    assert sorted(plan.metadata.parameters) == ["a", "m.a"]


def test_without_layouts_an_iteration_is_written_for_one_rank():
    plan = plan_of(source_of(whole("a")), common=COMMON, form="mindformers", prefix="x")
    assert not plan.full
    assert [file.target for file in plan.files] == ["iteration_00000008/x-model-0000000-0000001.safetensors"]


PLACE = RankPath(("rank_", "/test-2_8.ckpt"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "rank_{rank}/test-{epoch}_{step}"),
        ({"place": RankPath(("r", "/test-2_8.safetensors"))}, "r{rank}/test-{epoch}_{step}"),
        ({"place": RankPath(("r", "/of_rank_", "-2_8.ckpt"))}, "r{rank}/of_rank_{rank}-{epoch}_{step}"),
        ({"kind": "model"}, None),
        ({"place": RankPath(("all/test-2_8.ckpt",))}, None),
        ({"place": RankPath(("rank_", "/test-2_8.ckpt"), numbers=(4, 5))}, None),
        ({"place": RankPath(("{x}_", "/test-2_8.ckpt"))}, None),
        ({"place": RankPath(("rank_", "/test.ckpt"))}, None),
    ],
    ids=["usual", "safetensors", "two places", "an iteration's", "no rank", "numbers", "braces", "no step"],
)
def test_files_lie_like_those_of_the_source_where_its_places_name_the_rank(changes, expected):
    file = replace(SliceFile(1, STEP, PLACE, "test", 1, 1), **changes)
    assert pattern_like(file) == (expected or "rank_{rank}/{prefix}-{epoch}_{step}")
