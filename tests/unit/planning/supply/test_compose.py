"""A slice that is put together parameter by parameter, or why it cannot be."""

from dataclasses import replace

import pytest

from ms_recover.model.compose import ComposedParameter
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import RankPath
from ms_recover.model.manifest import Digests, TrainingRecord
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.judging.judgement import Judgement
from ms_recover.planning.supply.compose import complete_slice, compose_slice
from ms_recover.planning.supply.pieces import Giving, PieceBook
from ms_recover.planning.supply.settle import Settled
from tests.support.inventories import STEP
from tests.unit.planning.judging.test_votes import manifest
from tests.unit.planning.supply.test_parameters import file_of, supply_of_slices

SHAPES = {"w": (2, 3), "u": (4,), "bias": (3,), "global_step": ()}
"""14 bytes."""
LAYOUTS = (Layout("w", (2, 2), ((0,), ())), Layout("u", (2, 2), ((1,),)), Layout("bias", (2, 2), ((),)))
"""Of one stage of four ranks: 0 and 2, and 1 and 3 hold the same of ``w``, 0 and 1, and 2 and 3 of ``u``."""


def slices(*without, shapes=SHAPES):
    return [file_of(rank, shapes) for rank in range(4) if rank not in without]


def contents(files, odd):
    """Return contents that agree with LAYOUTS, but for the `odd` ones by rank and name."""
    parts = {"w": lambda rank: rank % 2, "u": lambda rank: rank // 2}

    def value(rank, name):
        return odd.get((rank, name), f"{name}{parts[name](rank) if name in parts else ''}")

    return Contents(
        {
            one.path: Digests(f"file {one.path}", tuple(value(one.rank, item.name) for item in one.parameters))
            for one in files
        }
    )


def supplied(files, layouts=LAYOUTS, **how):
    return supply_of_slices(files, layouts, stages=(0,), **how)


def composed(files, rank=0, load=None, **how):
    supply = supplied(files, **how)
    return compose_slice(supply, rank, supply.facts.at(STEP, rank), load or {})


def given(action):
    """Return for each parameter the rank that gives it, and those that may give it instead."""
    return {
        one.parameter.name: [
            (action.sources[piece.source].rank, [action.sources[other].rank for other in piece.alternatives])
            for piece in one.pieces
        ]
        for one in action.parameters
    }


def test_each_parameter_comes_from_a_rank_that_holds_the_same_of_it():
    found = composed(slices(0))
    assert given(found.action) == {
        "w": [(2, [])],
        "u": [(1, [])],
        "bias": [(2, [1, 3])],
        "global_step": [(2, [1, 3])],
    }
    assert (found.action.kind, found.action.target, found.bytes) == ("compose", "ckpt_dir0/test-2_8.ckpt", 14)
    assert found.reason == "rank 1, rank 2 hold all of it by the layouts in ckpt_dir0/strategy.ckpt"
    assert (found.missing, found.dispute, found.partial) == ((), None, None)


def test_a_rank_that_differs_gives_nothing_in_its_place():
    files = slices(0)
    found = composed(files, known=contents(files, {(1, "bias"): "odd"}))
    assert given(found.action)["bias"] == [(2, [3])]
    assert given(found.action)["u"] == [(1, [])]


@pytest.mark.parametrize(
    ("without", "lost", "share", "kept"),
    [
        ((0, 2), [("w", ((0, 2), (0, 3)), 6)], "42.9%", ["u", "bias", "global_step"]),
        ((0, 1), [("u", ((0, 4),), 4)], "28.6%", ["w", "bias", "global_step"]),
        ((0, 1, 2), [("w", ((0, 2), (0, 3)), 6), ("u", ((0, 4),), 4)], "71.4%", ["bias", "global_step"]),
    ],
)
def test_what_nobody_holds_is_named_and_the_rest_is_a_part(without, lost, share, kept):
    found = composed(slices(*without))
    assert found.action is None
    assert [(gone.parameter, gone.region, gone.bytes) for gone in found.missing] == lost
    assert f"of {len(lost)} parameters no sound slice holds all by the layouts in ckpt_dir0" in found.reason
    assert f"({share} of its bytes): {', '.join(repr(name) for name, *_ in lost)}" in found.reason
    assert (found.bytes, found.dispute) == (14, None)
    assert [one.parameter.name for one in found.partial.parameters] == kept
    assert (found.partial.kind, found.partial.target) == ("partial", "ckpt_dir0/test-2_8.partial.ckpt")


def test_a_rank_that_holds_the_same_slice_by_layouts_is_copied():
    found = composed(slices(0, shapes={"bias": (3,), "global_step": ()}), layouts=LAYOUTS[2:])
    assert (found.action.source_rank, found.action.evidence) == (1, "layout")
    assert [other.rank for other in found.action.alternatives] == [2, 3]
    loaded = composed(slices(0, shapes={"bias": (3,), "global_step": ()}), load={1: 2, 2: 1}, layouts=LAYOUTS[2:])
    assert loaded.action.source_rank == 3


def test_nothing_is_composed_by_the_strategy_file_of_another_network():
    found = composed(slices(0), layouts=LAYOUTS[2:])
    assert found.action is None
    assert "names too few of its parameters to be of the same network" in found.reason
    assert found.reason.startswith("parameter by parameter was not tried: ")


def test_nothing_is_composed_without_a_strategy_file():
    supply = supply_of_slices(slices(0), LAYOUTS, stages=())
    found = compose_slice(supply, 0, (), {})
    assert (found.action, found.dispute) == (None, None)
    assert found.reason.startswith("parameter by parameter was not tried: ")


def test_the_damaged_slice_that_is_replaced_is_named():
    files = [replace(one, problem="cut off") if one.rank == 0 else one for one in slices()]
    found = composed(files)
    assert found.action.target == "ckpt_dir0/test-2_8.ckpt"
    assert found.action.replaces is not None
    assert {replica.rank for replica in found.action.sources}.isdisjoint({0})


def test_a_sound_slice_is_completed_out_of_itself():
    found = complete_slice(supplied(slices()), 0)
    assert (found.action.kind, found.action.target) == ("complete", "ckpt_dir0/test-2_8.complete.ckpt")
    assert [replica.rank for replica in found.action.sources] == [0]
    assert found.bytes == 14


def safetensors(file):
    return replace(file, place=RankPath(("ckpt_dir", f"/{file.prefix}-{file.step}.safetensors")))


@pytest.mark.parametrize(
    ("shapes", "layouts"), [(SHAPES, LAYOUTS), ({"bias": (3,), "global_step": ()}, LAYOUTS[2:])], ids=["cut", "whole"]
)
def test_nothing_is_written_beside_a_whole_slice_of_the_other_format(shapes, layouts):
    files = [safetensors(one) if one.rank == 0 else one for one in slices(shapes=shapes)]
    found = composed(files, layouts=layouts, lost=frozenset({0}))
    assert found.action is None
    assert found.reason.startswith("ckpt_dir0/test-2_8.safetensors is whole, and ")
    assert found.bytes == sum(one.nbytes for one in files[0].parameters)


def test_ranks_that_share_no_values_give_each_other_nothing():
    own = TrainingRecord(1, rank_local=("w", "u", "bias"))
    files = [replace(one, manifest=manifest(one, "abcd", world_size=4, training=own)) for one in slices(0)]
    found = composed(files)
    assert (found.action, found.reason, found.bytes) == (None, "every rank has its own values of every parameter", 14)


def test_what_may_differ_is_borrowed_and_given_instead_by_ranks_with_the_same_alone():
    files = slices(0)
    known = contents(files, {(1, "bias"): "odd"})
    found = composed(files, known=known, tolerate=("bias",))
    assert found.action.borrowed == ("bias",)
    assert given(found.action)["bias"] == [(2, [3])]
    assert given(found.action)["global_step"] == [(2, [1, 3])]
    unread = Contents({path: known.digests[path] for path in [files[1].path]})
    assert given(composed(files, known=unread).action)["bias"] == [(2, [1, 3])]


def test_a_parameter_without_elements_needs_no_source():
    found = composed(slices(0, shapes={**SHAPES, "empty": (0, 2)}))
    assert given(found.action)["empty"] == []


NAMED = {"bias": (3,), "global_step": ()}


@pytest.mark.parametrize(
    ("held", "taken", "endings", "model"),
    [
        ({1: {**NAMED, "more": ()}, 2: NAMED}, (), (), 2),
        ({1: {"bias": (3,), "other": ()}, 2: NAMED}, (), (), 2),
        ({1: {**NAMED, "x": (), "y": ()}, 2: {**NAMED, "x": ()}}, (), (), 2),
        ({1: NAMED, 2: NAMED}, (2,), (), 2),
        ({1: NAMED, 3: NAMED}, (1, 1, 3), (".safetensors",), 3),
        ({1: NAMED, 2: NAMED}, (), (), 1),
    ],
    ids=["fewer", "the same names", "nearest in number", "gives most", "of the format", "lowest"],
)
def test_the_form_follows_the_slice_that_lists_the_same(held, taken, endings, model):
    """Rank 3 is of the other format."""
    files = [file_of(rank, shapes) for rank, shapes in held.items()]
    files = [safetensors(one) if one.rank == 3 else one for one in files]
    sound = [(one.path, Judgement(status="sound", reason="")) for one in files]
    index = supplied(files, LAYOUTS[2:], judgements=sound).index
    bias = Parameter("bias", "Int8", (3,), 3)
    book = PieceBook(index)
    for rank in taken:
        book.take(Giving(bias, Settled(region=((0, 3),), ranks=(rank,)), (rank,)))
    wanted = [ComposedParameter(bias, ()), ComposedParameter(Parameter("global_step", "Int8", (), 1), ())]
    assert book.sources[book.model_for(0, wanted, endings)].rank == model
