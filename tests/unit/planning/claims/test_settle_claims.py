"""Rank lists and layouts that contradict each other."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.manifest import Digests
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.settle_claims import settle_claims
from ms_recover.planning.claims.stages import Stages
from tests.support.inventories import OLDER, STEP, group_file, slice_file
from tests.unit.planning.judging.test_votes import digests
from tests.unit.planning.test_contents import backed

SLICES = [slice_file(rank) for rank in range(4)]
NAMES = [parameter.name for parameter in SLICES[0].parameters]


def stages(*cut, named=NAMES):
    """Return the layouts of four ranks, 2 x 2: the parameters in `cut` over model parallelism, the others whole."""
    layouts = {name: Layout(name, (2, 2), ((0,) if name in cut else (),)) for name in named}
    return Stages(4, {0: layouts}, {0: "strategy.ckpt"})


def lists(*groups):
    return [group_file(rank, list(group)) for group in groups for rank in group]


PAIRS = stages(*NAMES)
"""Ranks 0 and 2 hold the same by these layouts, and 1 and 3."""


def read(values, step=STEP):
    return Contents({f"ckpt_dir{rank}/test-{step}.ckpt": digests(value) for rank, value in values.items()})


def test_lists_and_layouts_that_agree_are_both_used():
    claims = settle_claims(lists((0, 2), (1, 3)), SLICES, PAIRS)
    assert claims.stages is PAIRS
    assert claims.groups.of(0) == (0, 2)
    assert not claims.rejected_lists


def test_a_list_that_the_layouts_and_more_lists_contradict_is_not_used():
    told = [*lists((1, 3)), group_file(0, [0, 2, 4])]
    claims = settle_claims(told, SLICES, PAIRS)
    assert list(claims.rejected_lists) == ["ckpt_dir0/group_info.pb"]
    assert "ranks 0 and 4 hold the same slice by their rank lists" in claims.rejected_lists["ckpt_dir0/group_info.pb"]
    assert "and 2 rank lists or manifests" in claims.rejected_lists["ckpt_dir0/group_info.pb"]
    assert not claims.groups.knows(0)
    assert claims.stages is PAIRS


def test_layouts_that_as_many_lists_contradict_as_agree_are_not_used():
    told = [group_file(0, [0, 1]), group_file(3, [3])]
    claims = settle_claims(told, SLICES, stages(*NAMES), contents=read({0: "aaaa", 1: "aaaa"}))
    assert claims.stages.contradicts == "strategy.ckpt"
    assert "ranks 0 and 1 hold the same slice" in claims.stages.problem
    assert claims.groups.of(0) == (0, 1)


def test_a_list_that_a_manifest_states_too_stands_against_the_layouts():
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    told = [group_file(0, [0, 1]), *lists((2,), (3,))]
    assert settle_claims(told, SLICES, layouts).rejected_lists
    claims = settle_claims(told, [backed(SLICES[0], "a", group=(0, 1)), *SLICES[1:]], layouts)
    assert claims.stages.contradicts == "strategy.ckpt"
    assert claims.groups.of(0) == (0, 1)


@pytest.mark.parametrize("origin", ["saved", "recovered from rank 3 (ckpt_dir3/test-2_8.ckpt), by manifest"])
def test_manifests_of_training_and_recovery_outvote_lists(origin):
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    stated = [backed(file, "a", group=(file.rank,), origin=origin) for file in SLICES]
    claims = settle_claims(lists((0, 1)), stated, layouts)
    assert len(claims.rejected_lists) == 2
    assert claims.stages is layouts
    sealed = [backed(file, "a", group=(file.rank,), origin="sealed, by vote") for file in SLICES]
    assert settle_claims(lists((0, 1)), sealed, layouts).stages.contradicts == "strategy.ckpt"


@pytest.mark.parametrize("many", [lists((2, 3), (0, 1)), lists((0, 1), (2, 3))])
def test_the_reason_does_not_depend_on_the_order_of_lists(many):
    assert "ranks 0 and 1 hold the same" in settle_claims(many, SLICES, PAIRS).stages.problem


@pytest.mark.parametrize(("named", "used"), [(NAMES, False), (NAMES[1:], True)])
def test_lists_of_fewer_ranks_contradict_layouts_that_leave_no_parameter_out(named, used):
    """A strategy file in which nothing is cut, beside the lists of ranks that are alone."""
    claims = settle_claims(lists((0,), (1,), (2,), (3,)), SLICES, stages(named=named))
    assert (claims.stages.contradicts is None) == used
    assert (claims.groups.contested, claims.trials) == ({}, ())
    assert used or "hold different slices" in claims.stages.problem


def test_encrypted_slices_do_not_show_that_layouts_leave_nothing_out():
    slices = [slice_file(rank, names=()) for rank in range(4)]
    assert settle_claims(lists((0,), (1,), (2,), (3,)), slices, stages()).stages.contradicts is None


def test_the_manifest_of_a_slice_without_a_list_contradicts_no_layouts():
    slices = [backed(SLICES[0], "a", group=(0,)), *SLICES[1:]]
    claims = settle_claims([], slices, PAIRS)
    assert claims.stages is PAIRS
    assert not claims.rejected_lists


def test_a_list_over_two_stages_of_which_one_has_layouts_is_named():
    layouts = Stages(4, {1: PAIRS.layouts[0]}, {1: "strategy.ckpt"})
    claims = settle_claims([group_file(0, [0, 4])], SLICES, layouts)
    assert claims.stages.contradicts == "strategy.ckpt"
    assert "ranks 4 and 0 hold the same slice" in claims.stages.problem


def test_sealing_again_takes_no_weight_from_what_training_stated():
    """Slices of one rank may have a manifest of training at one step and a sealed one at another, in any order."""
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    saved = [backed(file, "a", group=(file.rank,)) for file in SLICES]
    sealed = [backed(file, "a", group=(file.rank,), origin="sealed, by vote") for file in SLICES]
    for slices in ([*saved, *sealed], [*sealed, *saved]):
        assert settle_claims(lists((0, 1)), slices, layouts).rejected_lists


def test_a_list_that_manifests_of_its_ranks_contradict_is_not_used():
    sealed = [backed(one, "a", group=(one.rank % 2, one.rank % 2 + 2)) for one in SLICES]
    claims = settle_claims(lists((0, 1, 2, 3)), sealed, Stages())
    assert claims.groups.of(0) == (0, 2)
    assert set(claims.rejected_lists) == {f"ckpt_dir{rank}/group_info.pb" for rank in range(4)}
    assert "4 manifests of these name others" in claims.rejected_lists["ckpt_dir0/group_info.pb"]


@pytest.mark.parametrize(
    ("origin", "used"),
    [
        ("saved", False),
        ("recovered from rank 9 (x.ckpt), by manifest", False),
        ("recovered from rank 9 (x.ckpt), by vote", True),
    ],
)
def test_what_a_recovery_stated_contradicts_a_list_where_it_rests_on_manifests(origin, used):
    stated = [backed(file, "a", group=(file.rank % 2, file.rank % 2 + 2), origin=origin) for file in SLICES]
    claims = settle_claims(lists((0, 1, 2, 3)), stated, Stages())
    assert (claims.groups.of(0) == (0, 1, 2, 3)) == used
    assert (claims.rejected_lists == {}) == used


def test_a_list_that_one_manifest_contradicts_is_used():
    one = backed(SLICES[0], "a", group=(0, 2))
    claims = settle_claims(lists((0, 1, 2, 3)), [one, *SLICES[1:]], Stages())
    assert claims.groups.of(0) == (0, 1, 2, 3)


def test_contents_show_that_the_lists_are_right_for_a_rank_that_is_lost():
    there = [file for file in SLICES if file.rank != 1]
    told = lists((0, 1), (2, 3))
    claims = settle_claims(told, there, PAIRS, contents=read({0: "aaaa", 2: "bbbb", 3: "bbbb"}))
    assert (claims.groups.of(1), claims.groups.contested) == ((0, 1), {})
    assert claims.stages.contradicts == "strategy.ckpt"
    assert {file.rank for file in claims.trials} == {2, 3}


def test_contents_show_that_the_layouts_are_right_against_the_lists():
    told = lists((0, 1, 2, 3))
    claims = settle_claims(told, SLICES, PAIRS, contents=read({0: "aaaa", 1: "bbbb", 2: "aaaa", 3: "bbbb"}))
    assert claims.stages is PAIRS
    assert len(claims.rejected_lists) == 4
    assert "the contents of slices" in claims.rejected_lists["ckpt_dir0/group_info.pb"]
    assert not claims.groups.knows(0)


@pytest.mark.parametrize("values", [{}, {0: "aaaa", 1: "bbbb", 2: "cccc", 3: "dddd"}], ids=["unread", "all different"])
def test_where_nothing_decides_only_ranks_are_together_that_lists_and_layouts_call_the_same(values):
    claims = settle_claims(lists((0, 1, 2, 3)), SLICES, PAIRS, contents=read(values))
    assert [claims.groups.of(rank) for rank in range(4)] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert claims.stages.contradicts == "strategy.ckpt"
    assert "no slices show which is right" in claims.groups.contested[0]
    assert len(claims.trials) == 4


def test_layouts_that_leave_out_a_parameter_call_no_ranks_the_same():
    claims = settle_claims(lists((0, 1, 2, 3)), SLICES, stages(NAMES[0], named=NAMES[:1]))
    assert [claims.groups.of(rank) for rank in range(4)] == [(0,), (1,), (2,), (3,)]


def test_a_slice_in_the_wrong_place_does_not_confirm_a_list_that_another_step_refutes():
    """Beside the name of rank 1 lies the slice of rank 0."""
    older = [slice_file(rank, OLDER) for rank in range(2)]
    there = [*SLICES[:2], *older]
    contents = read({0: "aaaa", 1: "aaaa"}).merged(read({0: "bbbb", 1: "cccc"}, OLDER))
    claims = settle_claims(lists((0, 1)), there, PAIRS, contents=contents)
    assert claims.groups.of(0) == (0,)


def test_lists_that_the_operator_names_stand_against_the_layouts():
    given = [group_file(rank, [0, 1], outside=True) for rank in (0, 1)]
    claims = settle_claims(given, SLICES, PAIRS)
    assert (claims.groups.of(0), claims.groups.contested) == ((0, 1), {})


def test_a_sealed_manifest_of_the_same_ranks_keeps_the_list():
    sealed = [backed(SLICES[0], "a", origin="sealed", group=(0, 1)), *SLICES[1:]]
    claims = settle_claims(lists((0, 1)), sealed, PAIRS)
    assert (claims.groups.of(0), claims.groups.contested) == ((0, 1), {})


def test_a_slice_that_a_recovery_wrote_is_no_witness_for_its_list():
    told = lists((0, 1, 2, 3))
    copied = backed(SLICES[1], "a", origin="recovered", group=(1,))
    assert copied.manifest.recovered
    claims = settle_claims(told, [SLICES[0], copied], PAIRS, contents=read({0: "aaaa", 1: "aaaa"}))
    assert claims.groups.of(0) == (0, 2)


@pytest.mark.parametrize(("inodes", "group"), [(((1, 7), (1, 8)), (0, 1, 2, 3)), (((1, 7), (1, 7)), (0, 2))])
def test_one_file_under_two_names_does_not_show_that_a_list_is_right(inodes, group):
    slices = [replace(file, inode=inode) for file, inode in zip(SLICES, inodes, strict=False)]
    claims = settle_claims(lists((0, 1, 2, 3)), slices, PAIRS, contents=read({0: "aaaa", 1: "aaaa"}))
    assert claims.groups.of(0) == group


@pytest.mark.parametrize(("evidence", "stands"), [("manifest", True), ("vote", False)])
def test_what_a_recovery_wrote_stands_for_a_list_by_manifests_of_training_alone(evidence, stands):
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    told = [group_file(0, [0, 1]), *lists((2,), (3,))]
    recovered = backed(SLICES[0], "a", group=(0, 1), origin=f"recovered from rank 1 (x.ckpt), by {evidence}")
    assert (not settle_claims(told, [recovered, *SLICES[1:]], layouts).rejected_lists) == stands


def test_a_list_stands_against_as_many_that_name_the_ranks_of_the_layouts():
    told = [group_file(0, [0, 2, 4]), group_file(1, [1, 3])]
    claims = settle_claims(told, SLICES, PAIRS)
    assert (claims.rejected_lists, claims.stages.contradicts) == ({}, "strategy.ckpt")


def of_values(**values):
    """Return contents by rank: ``r0="ab"`` says which values the parameters of the first rank have, one letter each."""
    return Contents(
        {f"ckpt_dir{name[1:]}/test-{STEP}.ckpt": Digests(f"{name} {of}", (*of,)) for name, of in values.items()}
    )


def test_of_ranks_that_the_layouts_call_the_same_the_parameters_count_that_the_list_is_about():
    """The first parameter alone is cut; ranks 0 and 2 hold the same part of it, and 1 and 3; the others all differ."""
    contents = of_values(r0="abcd", r1="efgh", r2="aijk", r3="elmn")
    claims = settle_claims(lists((0, 1, 2, 3)), SLICES, stages(NAMES[0]), contents=contents)
    assert len(claims.rejected_lists) == 4
    assert claims.stages.problem is None


@pytest.mark.parametrize(
    ("values", "stands"),
    [
        ({0: "aaaa", 1: "aaaa", 2: "aaaa", 3: "aaaa"}, True),
        ({0: "aaaa", 1: "aaaa", 2: "aaaa", 3: "bbbb"}, True),
        ({0: "aaaa", 1: "aaaa", 2: "bbbb", 3: "cccc"}, False),
        ({0: "aaaa", 2: "aaaa", 1: "bbbb"}, False),
    ],
    ids=["all equal", "one odd", "two of four", "three of which two are the same by the layouts"],
)
def test_a_list_is_right_where_most_of_its_slices_are_equal_across_the_parts_of_the_layouts(values, stands):
    there = [file for file in SLICES if file.rank in values]
    claims = settle_claims(lists((0, 1, 2, 3)), there, PAIRS, contents=read(values))
    assert claims.stages.contradicts == "strategy.ckpt"
    assert claims.groups.of(0) == ((0, 1, 2, 3) if stands else (0, 2))


@pytest.mark.parametrize("values", ["", "aa", "aaaaa"])
def test_a_slice_of_which_other_parameters_were_read_than_it_lists_is_equal_to_none(values):
    path = f"ckpt_dir1/test-{STEP}.ckpt"
    contents = read({0: "aaaa"}).merged(Contents({path: Digests("file", tuple(values))}))
    claims = settle_claims(lists((0, 1)), SLICES[:2], PAIRS, contents=contents)
    assert (claims.groups.of(0), claims.stages.contradicts) == ((0,), "strategy.ckpt")


def test_a_slice_that_cannot_be_read_is_equal_to_none():
    path = f"ckpt_dir1/test-{STEP}.ckpt"
    contents = read({0: "aaaa"}).merged(Contents(problems={path: "torn"}))
    claims = settle_claims(lists((0, 1)), SLICES[:2], PAIRS, contents=contents)
    assert (claims.groups.of(0), claims.stages.contradicts) == ((0,), "strategy.ckpt")


def test_slices_of_the_two_newest_steps_that_can_be_compared_are_trials():
    steps = [Step(number, 8) for number in range(1, 5)]
    slices = [slice_file(rank, step) for rank in range(2) for step in steps[:3]] + [slice_file(0, steps[3])]
    claims = settle_claims(lists((0, 1)), slices, PAIRS)
    assert {(file.rank, file.step) for file in claims.trials} == {
        (rank, step) for rank in (0, 1) for step in steps[1:3]
    }


@pytest.mark.parametrize(("equal", "stands"), [("abcd", True), ("abc-", True), ("ab--", False), ("a---", False)])
@pytest.mark.parametrize("named", [NAMES, NAMES[:1]])
def test_ranks_of_two_stages_hold_the_same_where_most_of_all_parameters_are_equal(equal, stands, named):
    """Layouts that leave parameters out say nothing of these; ranks of two stages are to differ in every one."""
    layouts = Stages(1, dict.fromkeys(range(2), stages(named=named).layouts[0]), dict.fromkeys(range(2), "strategy"))
    contents = of_values(r0="abcd", r1=equal.replace("-", "x"))
    claims = settle_claims(lists((0, 1)), SLICES[:2], layouts, contents=contents)
    assert claims.groups.of(0) == ((0, 1) if stands else (0,))


def test_one_step_at_which_the_parts_of_the_layouts_are_equal_keeps_the_layouts_from_being_shown():
    slices = [*SLICES, slice_file(0, OLDER), slice_file(1, OLDER)]
    newest = read({0: "aaaa", 1: "bbbb", 2: "aaaa", 3: "bbbb"})
    for older, shown in (({0: "cccc", 1: "dddd"}, True), ({0: "cccc", 1: "cccc"}, False)):
        claims = settle_claims(lists((0, 1, 2, 3)), slices, PAIRS, contents=newest.merged(read(older, OLDER)))
        assert (claims.stages.problem is None) == shown
        assert shown or claims.groups.of(0) == (0, 2)


@pytest.mark.parametrize(("evidence", "shown"), [("layout", True), ("vote", False), ("structure", False)])
def test_a_recovery_by_layouts_alone_decided_for_them(evidence, shown):
    origin = f"recovered from rank 2 (x.ckpt), by {evidence}"
    recovered = backed(SLICES[0], "a", group=(0,), origin=origin)
    claims = settle_claims(lists((0, 1)), [recovered, *SLICES[1:]], PAIRS)
    assert (len(claims.rejected_lists) == 2) == shown
    assert (claims.stages.problem is None) == shown


def test_equal_single_values_show_nothing():
    slices = [slice_file(rank, shape=(1,)) for rank in range(2)]
    claims = settle_claims(lists((0, 1)), slices, PAIRS, contents=read({0: "aaaa", 1: "aaaa"}))
    assert (claims.groups.of(0), claims.stages.contradicts) == ((0,), "strategy.ckpt")


def test_what_sealing_read_shows_which_is_right_without_another_reading():
    sealed = [backed(file, "a", group=(file.rank,), origin="sealed by structure") for file in SLICES[:2]]
    claims = settle_claims(lists((0, 1)), sealed, PAIRS)
    assert (claims.groups.of(0), claims.stages.contradicts) == ((0, 1), "strategy.ckpt")


@pytest.mark.parametrize(
    ("origin", "rejected"),
    [(None, True), ("recovered from rank 2 (x.ckpt), by manifest", True), ("saved", False)],
)
def test_a_recovery_that_names_a_rank_alone_states_no_list(origin, rejected):
    """It was written where no list was believed; training that saved so states that the rank is alone."""
    own = SLICES[0] if origin is None else backed(SLICES[0], "a", group=(0,), origin=origin)
    claims = settle_claims([group_file(0, [0]), *lists((1, 3))], [own, *SLICES[1:]], PAIRS)
    assert (list(claims.rejected_lists) == ["ckpt_dir0/group_info.pb"]) == rejected


@pytest.mark.parametrize("outside", [False, True])
def test_a_list_that_came_after_a_lone_slice_was_sealed_is_used_where_the_operator_names_it(outside):
    sealed = backed(SLICES[0], "a", group=(0,), origin="sealed by structure")
    claims = settle_claims([group_file(2, [0, 2], outside=outside)], [sealed], Stages())
    assert claims.groups.of(0) == ((0, 2) if outside else (0,))
    assert set(claims.groups.contested) == (set() if outside else {0, 2})


@pytest.mark.parametrize(
    ("origin", "counts"),
    [
        (None, True),
        ("saved", True),
        ("sealed by structure", True),
        ("recovered from rank 9 (x.ckpt), by manifest", True),
        ("recovered from rank 9 (x.ckpt), by vote", False),
    ],
)
def test_a_list_beside_nothing_but_what_a_recovery_wrote_is_no_evidence(origin, counts):
    there = [file if origin is None else backed(file, "a", origin=origin) for file in SLICES if file.rank in (1, 3)]
    claims = settle_claims([group_file(0, [0, 2, 4]), *lists((1, 3))], [SLICES[0], *there], PAIRS)
    assert (list(claims.rejected_lists) == ["ckpt_dir0/group_info.pb"]) == counts
