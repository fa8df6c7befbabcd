"""Parameters that remove_redundancy=True dealt out, where the slices that are left look like whole ones."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import WHOLE, OrphanManifest, StrategyFile
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.dealt_out import families, lacking_names, saved_kinds
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.plan.explain import explain_planned, find_complete_slice
from ms_recover.planning.supply.supply import supply_of
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, pairs, parameters, slice_file, tree
from tests.support.plans import make_plan, make_planned
from tests.unit.planning.judging.test_votes import manifest
from tests.unit.planning.test_recovered import backed

ALL = ("a", "b", "moment1.a", "moment1.b")
FIRST, SECOND = ("a", "moment1.a"), ("b", "moment1.b")
"""The parameters dealt to the first and to the second rank of each group of two; each has the states of its weights."""


def strategies(names=ALL, ranks=2):
    layouts = tuple(Layout(name, (ranks,), ((),)) for name in names)
    return (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 2, layouts), "s"),)


def plan_of(slices, *, world=2, groups=True, layouts=(), orphans=()):
    inventory = tree(slices, {0: pairs(world)[0]} if groups else {}, ranks=range(world))
    inventory = replace(inventory, strategy_files=tuple(layouts), orphans=tuple(orphans))
    return make_plan(inventory, PlanOptions(world_size=world, quick=True))


def lost(made, rank=1):
    return [one.parameter for one in made.ranks[rank].missing]


def test_a_slice_that_lacks_weights_which_layouts_name_is_not_copied_and_the_plan_names_them():
    made = plan_of([slice_file(0, names=FIRST)], layouts=strategies())
    assert made.step is None
    assert lost(made) == list(SECOND)
    assert "remove_redundancy=True dealt out 'b', 'moment1.b', which no slice lists any more" in made.ranks[1].reason


def test_a_slice_with_every_parameter_that_layouts_name_is_copied():
    made = plan_of([slice_file(0, names=(*ALL, "global_step"))], layouts=strategies())
    assert (made.step, [one.verdict for one in made.ranks], made.warnings) == (STEP, ["keep", "copy"], ())


def test_two_replicas_that_list_the_same_prove_that_nothing_was_dealt_out():
    slices = [slice_file(rank, names=FIRST) for rank in range(3)]
    inventory = replace(tree(slices, {0: range(4)}, ranks=range(4)), strategy_files=strategies(ranks=4))
    made = make_plan(inventory, PlanOptions(world_size=4, quick=True))
    assert made.ranks[3].verdict == "copy"


def test_a_state_without_its_weight_shows_it_where_there_are_no_layouts():
    made = plan_of([slice_file(0, names=("a", "moment1.b", "global_step"))])
    assert made.step is None
    assert "has 'moment1.b' without its weight" in made.ranks[1].reason


def test_the_metadata_of_a_safetensors_file_shows_it():
    slices = [replace(slice_file(0, names=FIRST), dealt=True)]
    assert plan_of(slices).step is None
    assert plan_of([replace(one, dealt=False) for one in slices]).step == STEP


def test_the_manifest_that_the_lost_slice_left_shows_it_and_names_what_is_lost():
    gone = slice_file(1, names=SECOND)
    left = OrphanManifest(rank=1, step=STEP, place=gone.place, prefix=gone.prefix, manifest=manifest(gone, "cd"))
    made = plan_of([slice_file(0, names=FIRST)], layouts=strategies((*FIRST, "b")), orphans=[left])
    assert (made.step, lost(made)) == (None, list(SECOND))


@pytest.mark.parametrize("both", [True, False])
def test_a_slice_of_another_step_shows_it_and_is_the_step_to_go_back_to(both):
    older = [slice_file(rank, OLDER, names=names) for rank, names in enumerate((FIRST, SECOND)) if both or rank]
    made = plan_of([slice_file(0, names=FIRST), *older], layouts=strategies())
    assert made.step == (OLDER if both else None)
    assert lost(made) == ([] if both else list(SECOND))


@pytest.mark.parametrize(("one", "other"), [(FIRST, SECOND), (("a", "b"), ("moment1.a", "b"))])
def test_survivors_of_different_groups_that_list_different_parameters_are_not_copied(one, other):
    """Ranks 0 and 2, 1 and 3 hold the same; 1 and 2 are lost, so that no group shows that parameters were dealt out."""
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in ALL)
    files = (StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 2, layouts), "s"),)
    inventory = tree([slice_file(0, names=one), slice_file(3, names=other)], pairs(4))
    made = make_plan(replace(inventory, strategy_files=files), PlanOptions(quick=True))
    assert [one.verdict for one in made.ranks] == ["keep", "unrecoverable", "unrecoverable", "keep"]


def test_a_checkpoint_of_weights_alone_is_copied_with_a_warning():
    made = plan_of([slice_file(0, names=("a", "b"))], layouts=strategies())
    assert made.step == STEP
    (warning,) = made.warnings
    assert warning.startswith(
        "step 2_8: ckpt_dir0/strategy.ckpt names 'moment1.a', 'moment1.b', and no slice lists that"
    )


def test_parameters_that_checkpoints_leave_out_are_not_called_lost():
    """No accumulated gradients, no kind of states of which none is there, and nothing that a whole step lacks."""
    names = (*ALL, "accu_grads.a", "accu_grads.b", "ema.a", "ema.b", "buffer")
    older = [slice_file(rank, OLDER, names=both) for rank, both in enumerate((FIRST, SECOND)) if rank == 0]
    made = plan_of([slice_file(0, names=FIRST), *older], layouts=strategies(names))
    assert lost(made) == ["b", "buffer", "moment1.b"]


def test_the_explanation_of_a_slice_has_what_no_slice_lists_any_more():
    inventory = replace(tree([slice_file(0, names=FIRST)], {0: [0, 1]}, ranks=range(2)), strategy_files=strategies())
    found = explain_planned(make_planned(inventory, PlanOptions(world_size=2, quick=True)), 1)
    assert [(one.parameter.name, bool(one.missing)) for one in found.parameters] == [
        *((name, False) for name in FIRST),
        *((name, True) for name in SECOND),
    ]


def test_what_was_dealt_to_a_slice_without_own_list_is_guessed_with_a_warning():
    """Three ranks hold the same; whatever rank 2 listed, the others have all that layouts name."""
    slices = [slice_file(0, names=(*FIRST, *SECOND)), slice_file(1, names=(*FIRST, "c"))]
    inventory = replace(tree(slices, {0: [0, 1, 2]}, ranks=range(3)), strategy_files=strategies((*ALL, "c"), 3))
    made = make_plan(inventory, PlanOptions(world_size=3, quick=True))
    assert made.ranks[2].verdict == "compose"
    assert "nothing states what the lost slice(s) of rank(s) 2 listed" in made.warnings[0]


def test_parameters_of_the_lost_slices_count_in_its_bytes():
    made = plan_of([slice_file(0, names=FIRST)], layouts=strategies())
    assert made.ranks[1].bytes == sum(one.nbytes for one in parameters(FIRST))
    assert [one.bytes for one in made.ranks[1].missing] == [0, 0]
    half = plan_of([slice_file(0, names=("a", "moment1.b"))], layouts=strategies())
    assert [(one.parameter, one.bytes) for one in half.ranks[1].missing] == [("b", 16), ("moment1.a", 16)]


@pytest.mark.parametrize("there", [1, 2])
def test_a_complete_slice_lacks_what_a_lost_slice_had_and_nothing_where_all_are_there(there):
    slices = [slice_file(rank, names=names) for rank, names in enumerate((FIRST, SECOND)[:there])]
    inventory = replace(tree(slices, {0: [0, 1]}, ranks=range(2)), strategy_files=strategies((*ALL, "buffer")))
    compared = compare_slices(gather_facts(inventory, PlanOptions(world_size=2, quick=True)))
    missing = [
        one.parameter
        for one in find_complete_slice(supply_of(compared, STEP, runs_of(compared.facts, STEP)[0]), 0).missing
    ]
    assert missing == (["b", "buffer", "moment1.b"] if there == 1 else [])


@pytest.mark.parametrize("files", [(0, 2), (0,)])
def test_layouts_that_name_the_parameters_of_all_stages_make_no_slice_a_part(files):
    layouts = tuple(Layout(name, (2,), ((),)) for name in ALL)
    strategy = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 2,), 2, layouts), "s") for rank in files
    )
    groups = {rank: [rank // 2 * 2, rank // 2 * 2 + 1] for rank in range(4)}
    inventory = tree([slice_file(0, names=FIRST), slice_file(2, names=SECOND)], groups)
    made = make_plan(replace(inventory, strategy_files=strategy), PlanOptions(quick=True))
    assert [one.verdict for one in made.ranks] == ["keep", "copy", "keep", "copy"]


def structure(slices, lists, layouts=(), *, options=DEFAULT_PLAN, **changes):
    """Return what comparing slices shows of the steps that were dealt out."""
    inventory = replace(tree(slices, lists, ranks=lists), strategy_files=tuple(layouts), **changes)
    return compare_slices(gather_facts(inventory, options)).structure


PAIR = {0: [0, 1], 1: [0, 1]}


@pytest.mark.parametrize("how", ["sound", "cut", "encrypted", "another's manifest"])
def test_a_slice_shows_it_by_its_metadata_unless_it_is_damaged_or_encrypted(how):
    dealt = replace(slice_file(0), dealt=True)
    slices = {
        "sound": dealt,
        "cut": replace(dealt, problem="cut"),
        "encrypted": replace(dealt, encryption="AES-GCM"),
        "another's manifest": backed(dealt, "a", size=7),
    }
    found = structure([slices[how], slice_file(1)], {0: [0], 1: [1]})
    assert (STEP in found.deduplicated) is (how == "sound")


def test_documents_state_the_list_of_each_file_so_that_nothing_else_shows_it():
    slices = [replace(slice_file(0), dealt=True)]
    assert STEP in structure(slices, {0: [0]}).deduplicated
    part = replace(WHOLE, kind="model", world_size=1, source="metadata.json")
    assert structure(slices, {0: [0]}, part=part).deduplicated == {}


def test_replicas_that_show_it_are_the_reason_also_where_metadata_do():
    slices = [replace(slice_file(rank, names=names), dealt=True) for rank, names in enumerate((FIRST, SECOND))]
    assert "should hold the same slice but" in structure(slices, PAIR).deduplicated[STEP]


@pytest.mark.parametrize("copied", [True, False])
def test_a_copy_does_not_prove_that_nothing_was_dealt_out(copied):
    origin = "recovered from rank 0 (ckpt_dir0/test-2_8.ckpt), by structure" if copied else "sealed by structure"
    groups = {rank: [0, 1, 2] for rank in range(3)}
    second = backed(slice_file(1, names=FIRST), "a", origin=origin, groups=groups)
    found = structure([slice_file(0, names=FIRST), second], groups, strategies(ranks=3))
    assert (STEP in found.deduplicated) is copied


@pytest.mark.parametrize(
    ("one", "other", "local", "shown"),
    [
        (("x", "y"), ("x", "z"), (), True),
        (("x", "y"), ("x", "y", "z"), (), False),
        (("x", "y"), ("y", "x"), (), False),
        (("x", "b"), ("x", "c"), (), False),
        (("x", "own1", "y"), ("x", "own2", "y"), ("own1", "own2"), False),
        (("x", "own1", "y"), ("x", "own2", "z"), ("own1", "own2"), True),
    ],
    ids=["others", "the beginning", "another order", "one bit", "rank-local", "rank-local and others"],
)
def test_ranks_that_hold_the_same_by_layouts_and_list_others_show_it(one, other, local, shown):
    """Ranks 0 and 1 are of rank lists of their own: another parameter, which no slice lists, is cut between them."""
    training = TrainingRecord(1000, None, 100, rank_local=local)
    slices = [
        backed(slice_file(rank, names=names), "a", groups={0: [0], 1: [1]}, training=training)
        for rank, names in enumerate((one, other))
    ]
    layouts = (*(Layout(name, (2,), ((),)) for name in ("x", "y", "z", "b", "c")), Layout("cut", (2,), ((0,),)))
    files = [StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 2, layouts), "s")]
    found = structure(slices, {0: [0], 1: [1]}, files)
    assert (STEP in found.deduplicated) is shown
    assert all(why.endswith("should list the same parameters and do not") for why in found.deduplicated.values())


def left_behind(names, **changes):
    gone = slice_file(1, names=names)
    made = replace(manifest(gone, "cd"), **changes)
    return [OrphanManifest(rank=1, step=STEP, place=gone.place, prefix=gone.prefix, manifest=made)]


@pytest.mark.parametrize(
    ("names", "changes", "shown"),
    [
        (SECOND, {}, True),
        (FIRST, {}, False),
        (FIRST[:1], {}, False),
        ((*FIRST, "more"), {}, False),
        (SECOND, {"rank": 0}, False),
        (SECOND, {"step": OLDER}, False),
    ],
    ids=["others", "the same", "fewer", "more", "of another rank", "of another step"],
)
def test_a_manifest_that_a_lost_slice_left_shows_it_where_it_lists_others(names, changes, shown):
    found = structure([slice_file(0, names=FIRST)], PAIR, orphans=tuple(left_behind(names, **changes)))
    assert (STEP in found.deduplicated) is shown
    lost = structure(
        [slice_file(0, names=FIRST)],
        PAIR,
        options=PlanOptions(lost=frozenset((1,))),
        orphans=tuple(left_behind(names, **changes)),
    )
    assert lost.deduplicated == {}


@pytest.mark.parametrize(
    ("older", "change", "shown"),
    [
        ({1: SECOND}, {}, True),
        ({1: SECOND, 2: SECOND}, {}, False),
        ({1: FIRST}, {}, False),
        ({1: SECOND}, {"problem": "cut"}, False),
        ({1: SECOND, 3: SECOND}, {}, True),
    ],
    ids=["others", "and its replica", "the same", "damaged", "and another list's"],
)
def test_a_slice_of_a_lost_rank_at_another_step_shows_it_where_no_replica_listed_the_same(older, change, shown):
    groups = {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [3]}
    before = [replace(slice_file(rank, OLDER, names=names), **change) for rank, names in older.items()]
    found = structure([slice_file(0, names=FIRST), *before], groups)
    assert (STEP in found.deduplicated) is shown


@pytest.mark.parametrize(
    ("names", "prefix", "shown"),
    [(("x", "y"), "test", True), (("x", "z"), "test", False), (("x", "y"), "test_1", False)],
)
def test_a_slice_that_lists_what_it_listed_at_a_step_that_was_dealt_out_shows_it(names, prefix, shown):
    before = [slice_file(rank, OLDER, names=listed) for rank, listed in enumerate((FIRST, SECOND, ("x", "y")))]
    found = structure([*before, slice_file(2, names=names, prefix=prefix)], {**PAIR, 2: [2]})
    assert OLDER in found.deduplicated
    assert (STEP in found.deduplicated) is shown


def test_whole_kinds_that_no_slice_lists_make_it_doubtful():
    found = structure([slice_file(0, names=("a", "b"))], PAIR, strategies((*ALL, "accu_grads.a")))
    (doubt,) = found.doubtful.values()
    assert doubt == "ckpt_dir0/strategy.ckpt names 'moment1.a', 'moment1.b', and no slice lists that"
    assert structure([slice_file(0, names=ALL)], PAIR, strategies((*ALL, "accu_grads.a"))).doubtful == {}


def test_families_are_weights_with_a_state_and_the_states_by_their_kind():
    assert families(("a", "b", "m.a", "v.a", "m.c", "x.y")) == {"": {"a"}, "m": {"m.a"}, "v": {"v.a"}}


@pytest.mark.parametrize(
    ("listed", "saved", "lacking"),
    [
        (("a", "m.a"), ("m", "v"), {"v.a"}),
        (("a", "m.a"), ("m",), set()),
        (("m.a",), ("m",), {"a"}),
        ((), (), {"a"}),
    ],
)
def test_a_list_lacks_weights_and_states_of_kinds_that_are_saved(listed, saved, lacking):
    assert lacking_names(families(("a", "m.a", "v.a")), listed, saved) == lacking
    assert saved_kinds({0: ("a", "m.a", "v.a")}, {0: [frozenset(listed)]}) == {
        {"a": "", "m.a": "m"}[name] for name in listed
    }
