"""Who holds each parameter of a slice, and from whom it is taken: 0 and 2, and 1 and 3 hold the same of what is cut."""

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.contents import Contents
from ms_recover.model.explanation import ExplainedParameter, Explanation
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.plan.explain import explain_planned, join_explanations, judge_complete
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import STEP, slice_file, tree
from tests.support.plans import make_planned

NAMES = ("cut", "whole", "counter")
SHAPES = {"cut": (2, 3), "whole": (3,), "counter": ()}
LAYOUTS = (Layout("cut", (2, 2), ((0,), ())), Layout("whole", (2, 2), ((),)))


def slice_of(rank, shapes=SHAPES, **changes):
    listed = tuple(
        Parameter(name, "Int8", shape, {"cut": 6, "whole": 3}.get(name, 1) * (2 if shape == (4, 3) else 1))
        for name, shape in shapes.items()
    )
    return replace(slice_file(rank), parameters=listed, **changes)


def inventory_of(slices, layouts=LAYOUTS):
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts), "s"),) if layouts else ()
    return replace(tree(slices, {}, ranks=range(4)), strategy_files=files)


def explained(slices, rank=0, layouts=LAYOUTS, values=None, **options):
    known = Contents(
        {
            file.path: Digests(
                f"file {file.rank}", tuple((values or {}).get((file.rank, name), name) for name in NAMES)
            )
            for file in slices
        }
        if values is not None
        else {}
    )
    planned = make_planned(inventory_of(slices, layouts), PlanOptions(world_size=4, **options), known)
    return explain_planned(planned, rank)


def notes(explanation):
    return {item.parameter.name: item.note for item in explanation.parameters}


def test_each_parameter_has_its_holders_and_the_rank_it_is_taken_from():
    explanation = explained([slice_of(rank) for rank in (1, 2, 3)])
    assert (explanation.problem, explanation.layouts) == (None, "ckpt_dir0/strategy.ckpt")
    cut, whole, counter = explanation.parameters
    assert (cut.region, cut.holders, cut.chosen, cut.note) == (((0, 2), (0, 3)), (2,), (2,), "")
    assert (whole.region, whole.holders, whole.chosen, whole.note) == (((0, 3),), (1, 2, 3), (2,), "")
    assert (counter.region, counter.holders, counter.chosen) == (None, (1, 2, 3), (2,))
    assert counter.note == "no layout: the same on all ranks of the stage"


def test_a_sound_slice_is_explained_by_its_own_list():
    explanation = explained([slice_of(rank) for rank in range(4)], 1)
    assert [(item.parameter.name, item.chosen) for item in explanation.parameters] == [(name, (1,)) for name in NAMES]


def test_what_nobody_gives_is_named_with_the_reason():
    cut, *_ = explained([slice_of(rank) for rank in (1, 3)]).parameters
    assert (cut.holders, cut.chosen) == ((), ())
    assert [gone.reason for gone in cut.missing] == ["no sound slice has it"]
    slices = [slice_of(rank) for rank in (1, 2, 3)]
    disputed = explained(slices, values={(1, "cut"): "odd"})
    assert "ranks 1 and 3 hold the same of it, but" in notes(disputed)["cut"]


def test_what_may_differ_and_what_is_put_together_is_said():
    slices = [slice_of(rank) for rank in (1, 2, 3)]
    free = explained(slices, values={(1, "whole"): "odd"}, tolerate=("whole",))
    assert (notes(free)["whole"], notes(free)["cut"]) == ("holders differ, as they may", "")
    pieces = explained([slice_of(1), slice_of(3, {**SHAPES, "cut": (4, 3)})], quick=True)
    assert notes(pieces)["cut"] == "composed from pieces that are cut another way"


@pytest.mark.parametrize(
    ("slices", "layouts", "problem"),
    [
        ([slice_of(rank) for rank in (1, 2, 3)], (), "no strategy file states how parameters are cut"),
        ([], LAYOUTS, "no rank of its stage has a sound slice, so its parameters are unknown"),
        (
            [slice_of(rank, {}, encryption="AES-GCM") for rank in range(4)],
            LAYOUTS,
            "its slice is encrypted, so that its parameters are not known",
        ),
    ],
    ids=["no layouts", "no slice", "encrypted"],
)
def test_the_reason_why_a_slice_is_not_explained(slices, layouts, problem):
    damaged = [slice_of(0, problem="cut off")] if not slices else []
    explanation = explained([*slices, *damaged], layouts=layouts)
    assert (explanation.problem, explanation.parameters) == (problem, ())


def test_a_rank_that_is_not_in_the_world_is_refused():
    with pytest.raises(UsageError, match="rank 4"):
        explained([slice_of(rank) for rank in range(4)], 4)


def test_the_files_of_a_slice_are_explained_together():
    model, optimizer = (ExplainedParameter(Parameter(name, "Int8", (), 1), None, (), ()) for name in ("w", "m.w"))
    known = Explanation(1, STEP, (model,), "strategy.ckpt")
    more = Explanation(1, STEP, (optimizer,), "other.ckpt")
    unknown = Explanation(1, STEP, problem="encrypted")
    assert join_explanations([known]) == known
    assert join_explanations([unknown]) == unknown
    assert join_explanations([known, more]) == Explanation(1, STEP, (model, optimizer), "strategy.ckpt")
    assert join_explanations([known, unknown]) == known
    assert join_explanations([unknown, known]) == known
    assert join_explanations([unknown, unknown]) == unknown
    other = replace(unknown, problem="not there")
    assert join_explanations([unknown, other]).problem == "encrypted; not there"


def completed(*parts, wanted=1, rank=0, known=None, lists=None):
    """Return how a complete slice is made of parts, each given by its slices."""
    compared = [
        compare_slices(
            gather_facts(
                replace(inventory_of(slices), group_files=tree([], lists or {}).group_files),
                PlanOptions(world_size=4, quick=known is None),
                known or Contents(),
            )
        )
        for slices in parts
    ]
    return judge_complete(compared, STEP, runs_of(compared[0].facts, STEP)[0], rank, wanted)


def test_a_complete_slice_is_made_of_all_of_its_files_or_not_at_all():
    whole, part = [slice_of(rank) for rank in range(4)], [slice_of(rank) for rank in (1, 3)]
    both = completed(whole, whole, wanted=2)
    assert (len(both.value), both.why, both.disputed) == (2, None, False)
    assert [action.kind for action in both.value] == ["complete", "complete"]
    few = completed(whole, wanted=2)
    assert (len(few.value), few.why) == (1, "not all of its files are there")
    lacking = completed(whole, part, wanted=2)
    assert (lacking.value, lacking.disputed) == ((), False)
    assert "of 1 parameters no sound slice holds all" in lacking.why
    assert completed(part, part, wanted=2).why == lacking.why
    with pytest.raises(UsageError, match="rank 4"):
        completed(whole, rank=4)


def test_replicas_that_differ_are_a_dispute_about_a_complete_slice_that_cannot_be_made():
    """The ranks 0 and 2 hold different contents, of which nothing settles which are right."""
    slices = [slice_of(rank) for rank in (0, 2)]
    known = Contents({file.path: Digests(f"file {file.rank}", (f"{file.rank}",) * 3) for file in slices})
    differing = completed(slices, known=known, lists={0: [0, 2], 2: [0, 2]})
    assert (differing.value, differing.disputed) == ((), True)
