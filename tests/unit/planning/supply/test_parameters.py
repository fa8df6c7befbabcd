"""Where the parameters of a slice lie: which ranks of a step list and hold what a rank should."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import cut_alike
from ms_recover.planning.judging.judge import compare_slices, judge_step
from ms_recover.planning.judging.judgement import Judgement
from ms_recover.planning.supply.parameters import replica_of, usable_slices
from ms_recover.planning.supply.supply import Supply
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.unit.planning.judging.test_votes import manifest

SHAPES = {"w": (2, 3), "bias": (3,), "local": (5,), "global_step": (), "rate": (1,)}
CUT = Layout("w", (2,), ((0,), ()))
WHOLE = Layout("bias", (2,), ((),))


def file_of(rank, shapes, **changes):
    listed = tuple(Parameter(name, "Int8", shape, size(shape)) for name, shape in shapes.items())
    return replace(slice_file(rank), parameters=listed, **changes)


def size(shape):
    count = 1
    for one in shape:
        count *= one
    return count


def of(name, shape=None):
    shape = SHAPES[name] if shape is None else shape
    return Parameter(name, "Int8", shape, size(shape))


def index_of(slices, layouts=(CUT, WHOLE), **how):
    """Return the index of slices as `supply_of_slices` takes them."""
    return supply_of_slices(slices, layouts, **how).index


def supply_of_slices(
    slices,
    layouts=(CUT, WHOLE),
    *,
    stages=(0, 1),
    known=None,
    judgements=(),
    world=4,
    orphans=(),
    lists=None,
    ranks=None,
    devices=2,
    **options,
):
    """Return what slices can give; `stages`, of two ranks or `devices`, are those whose strategy file survived.

    Of several stages that are cut differently `layouts` has those of each. `lists` are rank lists, and `ranks` those
    with a directory.
    """
    by_stage = layouts if isinstance(layouts, dict) else dict.fromkeys(stages, layouts)
    files = []
    for stage in stages:
        rank, strategy = devices * stage, Strategy((stage,), 1, tuple(by_stage[stage]))
        files.append(StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", strategy, "s"))
    inventory = replace(tree(slices, lists or {}, ranks), strategy_files=tuple(files), orphans=tuple(orphans))
    facts = gather_facts(inventory, PlanOptions(world_size=world, **options), known or Contents())
    judgement = judge_step(compare_slices(facts), STEP, runs_of(facts, STEP)[0])
    judgement = replace(judgement, slices={**judgement.slices, **dict(judgements)})
    return Supply.of(facts, judgement)


def everyone(*without, shapes=SHAPES):
    return [file_of(rank, shapes) for rank in range(4) if rank not in without]


def test_what_is_cut_comes_from_the_ranks_with_the_same_part():
    index = index_of(everyone(), [replace(CUT, device_matrix=(2, 2), tensor_map=((0,), ()))], stages=(0,))
    assert [index.sources(rank, of("w")) for rank in range(4)] == [(0, 2), (1, 3), (0, 2), (1, 3)]


def test_nothing_cut_comes_from_another_pipeline_stage():
    """Ranks 2 and 3 list a parameter of the same name, shape and part, but with the values it was initialised with."""
    assert index_of(everyone()).sources(0, of("w")) == (0,)
    assert index_of(everyone(0)).sources(0, of("w")) == ()
    assert index_of(everyone(0, 1)).sources(0, of("w")) == ()


@pytest.mark.parametrize("shape", [(2, 3), (1,), ()])
def test_nothing_that_another_stage_cuts_comes_from_there_although_the_own_strategy_file_is_lost(shape):
    layout = replace(CUT, tensor_map=((0,), ())[: len(shape)])
    index = index_of(everyone(0, 1, shapes={"w": shape}), [layout], stages=(1,))
    assert index.way(0, "w") is None
    assert index.sources(0, of("w", shape)) == ()


@pytest.mark.parametrize("name", ["bias", "local"])
def test_nothing_large_comes_from_another_stage_cut_or_not(name):
    assert index_of(everyone(0, 1)).sources(0, of(name)) == ()


@pytest.mark.parametrize("name", ["global_step", "rate"])
def test_a_counter_that_a_whole_stage_lost_comes_from_another(name):
    assert index_of(everyone(0, 1)).sources(0, of(name)) == (2, 3)
    assert index_of(everyone(0)).sources(0, of(name)) == (1,)


def test_whole_tensors_come_from_the_own_stage_only():
    full = {**SHAPES, "w": (4, 3)}
    here = index_of([file_of(1, full), *everyone(0, 1)])
    assert here.whole_tensors(0, of("w")) == [(((0, 4), (0, 3)), (1,))]
    elsewhere = index_of([*everyone(0, 2, 3), file_of(2, full), file_of(3, full)])
    assert elsewhere.whole_tensors(0, of("w")) == []
    assert elsewhere.whole_tensors(0, of("local")) == []


def test_a_parameter_of_another_shape_or_type_is_no_source():
    index = index_of(everyone())
    assert index.sources(0, replace(of("bias"), dtype="UInt8")) == ()
    assert index.sources(0, of("bias")) == (0, 1)


def test_regions_are_those_of_the_part_and_unknown_without_layout():
    index = index_of(everyone())
    assert index.region(0, of("w")) == ((0, 2), (0, 3))
    assert index.region(1, of("w")) == ((2, 4), (0, 3))
    assert index.region(3, of("w")) == ((2, 4), (0, 3))
    assert index.region(0, of("local")) is None
    assert index.region(0, of("w", (6,))) is None


def test_a_layout_that_fits_no_slice_is_none():
    assert index_of(everyone(), [Layout("w", (2,), ((0,),))]).way(0, "w") is None
    assert index_of(everyone()).way(0, "w").layout == cut_alike(CUT)


def salvaged(*names):
    judgement = Judgement(status="damaged", reason="odd", good=frozenset(names))
    return [(slice_file(0).path, judgement)]


def test_a_damaged_slice_gives_its_good_parameters_only():
    index = index_of(everyone(), judgements=salvaged("w"))
    assert not index.is_sound(0)
    assert index.is_sound(1)
    assert index.find(0, "w") == of("w")
    assert index.find(0, "bias") is None
    assert index.find(1, "bias") == of("bias")
    assert (index.sources(0, of("w")), index.sources(0, of("bias"))) == ((0,), (1,))


def test_a_rank_without_usable_slice_lists_nothing():
    index = index_of(everyone(0))
    assert index.find(0, "w") is None
    assert index.find(1, "unknown") is None
    assert index.by_stage == {0: [1], 1: [2, 3]}


def test_a_slice_that_was_saved_under_another_strategy_file_gives_nothing():
    odd = file_of(1, SHAPES)
    odd = replace(odd, manifest=manifest(odd, "abcde", world_size=4, strategy_digest="t"))
    right = [replace(one, manifest=manifest(one, "abcde", world_size=4, strategy_digest="s")) for one in everyone(1)]
    index = index_of([*right, odd])
    assert sorted(index.slices) == [0, 2, 3]
    held, given = usable_slices(index.facts, index.judgement, Supply.of(index.facts, index.judgement).sound)
    assert (sorted(held), given) == ([0, 2, 3], {})


def test_digests_of_parameters_are_those_of_the_contents():
    known = Contents({slice_file(1).path: Digests("file", ("p0", "p1", "p2", "p3", "p4"))})
    index = index_of(everyone(), known=known)
    assert index.digest(1, "bias") == "p1"
    assert index.digest(1, "unknown") is None
    assert index.digest(0, "bias") is None
    assert index.are_read
    assert not index_of(everyone()).are_read


def test_a_replica_has_the_digest_of_its_manifest_above_the_one_read():
    file = file_of(1, SHAPES)
    known = Contents({file.path: Digests("file:read", ("p",) * 5)})
    index = index_of([file, *everyone(1)], known=known)
    (read,) = index.facts.at(STEP, 1)
    assert replica_of(read).digest == "file:read"
    (unread,) = index.facts.at(STEP, 0)
    assert replica_of(unread).digest is None
    stated = replace(read, file=replace(file, manifest=manifest(file, "abcde")))
    assert replica_of(stated).digest == "file:abcde"
    assert (replica_of(stated).rank, replica_of(stated).path) == (1, file.path)


def test_the_sources_of_many_are_those_around_the_rank():
    layout = Layout("w", (200,), ((), ()))
    slices = [file_of(rank, {"w": (2, 3)}) for rank in range(200)]
    index = index_of(slices, [layout], stages=(0,), world=200)
    assert index.sources(100, of("w")) == tuple(range(69, 133))
    assert index.sources(0, of("w")) == tuple(range(64))
    assert index.sources(199, of("w")) == tuple(range(136, 200))


@pytest.mark.parametrize(
    ("older", "problem", "sealed", "whole"),
    [
        ("aaaa", None, False, True),
        ("aaab", None, False, True),
        ("aabb", None, False, False),
        ("abcd", None, False, True),
        ("aabb", "cut off", False, True),
        ("ab..", None, True, False),
        ("aa..", None, True, True),
    ],
    ids=["alike", "one is damaged", "two against two", "each its own", "of damaged slices", "proven", "proven alike"],
)
def test_a_parameter_that_differs_at_another_step_is_not_shown_whole(older, problem, sealed, whole):
    """Of one stage of four ranks; ``local`` has no layout."""
    slices, known = [], {}
    for one, value in zip(everyone(), older, strict=True):
        before = replace(one, step=OLDER, place=slice_file(one.rank, OLDER).place, problem=problem)
        for file, local in ((one, "local"), *(((before, value),) if value != "." else ())):
            held = tuple(local if item.name == "local" else item.name for item in file.parameters)
            known[file.path] = Digests(f"{file.step} {local}", held)
            stated = replace(manifest(file, world_size=4), digests=known[file.path]) if sealed else None
            slices.append(replace(file, manifest=stated))
    layouts = [replace(CUT, device_matrix=(2, 2)), replace(WHOLE, device_matrix=(2, 2))]
    index = index_of(slices, layouts, stages=(0,), known=Contents(known))
    assert index.is_shown_whole("local", range(4)) is whole


def test_rank_local_parameters_are_those_that_manifests_record():
    own = TrainingRecord(1, rank_local=("local",))
    slices = [replace(one, manifest=manifest(one, "abcde", world_size=4)) for one in everyone()]
    slices[1] = replace(slices[1], manifest=replace(slices[1].manifest, training=own))
    index = index_of(slices, tolerate=("bias",))
    assert dict(index.rank_local) == {1: frozenset({"local"})}
    assert [index.is_rank_local("local", ranks) for ranks in ([0, 1], [0, 2], [])] == [True, False, False]
    assert not index.is_rank_local("w", [1])
    assert [index.may_differ(name, [1]) for name in ("local", "bias", "w")] == [True, True, False]
    assert not index_of(everyone()).is_rank_local("local", [1])


def test_ranks_with_the_same_part_have_one_block():
    four = [replace(CUT, device_matrix=(2, 2)), replace(WHOLE, device_matrix=(2, 2))]
    index = index_of(everyone(), four, stages=(0,))
    assert index.block(0, "w") == index.block(2, "w")
    assert len({index.block(rank, name) for rank in range(4) for name in ("w", "bias")}) == 3
    assert index.block(0, "local") is None


@pytest.mark.parametrize(
    ("lists", "quick", "read", "shown"),
    [
        ({}, False, True, True),
        ({}, False, False, True),
        ({}, True, True, True),
        ({}, True, False, False),
        ({rank: [0, 1, 2, 3] for rank in range(4)}, False, True, True),
        ({0: [0, 1], 1: [0, 1]}, False, True, True),
    ],
    ids=["read", "unread", "quick and read", "quick", "one list", "a list and others"],
)
def test_what_all_ranks_of_a_stage_hold_alike_is_whole(lists, quick, read, shown):
    slices = everyone()
    known = Contents({one.path: Digests("file", tuple(SHAPES)) for one in slices} if read else {})
    whole = [replace(one, device_matrix=(4,), tensor_map=((),) * len(SHAPES[one.parameter])) for one in (CUT, WHOLE)]
    index = index_of(slices, whole, stages=(0,), known=known, lists=lists, quick=quick)
    assert index.is_shown_whole("local", range(4)) is shown
    assert index.is_shown_whole("local", [0]) is False
    assert index.is_shown_whole("local", [0, 1]) is (shown and lists.get(0) != [0, 1])


def test_the_whole_shape_is_that_of_all_parts():
    index = index_of(everyone())
    assert index.full_shape(0, of("w")) == (4, 3)
    assert index.full_shape(0, of("w", (6,))) is None
    assert index.full_shape(0, of("local")) is None
    assert index_of(everyone(), [replace(CUT, field=4), WHOLE]).full_shape(0, of("w")) is None


@pytest.mark.parametrize(("shape", "size", "item"), [((2, 3), 24, 4), ((), 4, 4), ((0, 2), 0, 0)])
def test_the_size_of_an_element_is_that_of_the_contents_by_their_number(shape, size, item):
    assert Parameter("w", "Float32", shape, size).item_size == item
