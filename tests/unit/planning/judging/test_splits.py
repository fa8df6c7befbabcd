"""Slices that differ over a layout: outvoted only where the parameter cannot be cut there."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.provenance import Provenance
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.compare_blocks import compare_blocks
from ms_recover.planning.judging.splits import (
    differing_elsewhere,
    is_alone,
    is_uncommitted,
    settle_split,
    why_no_replica,
)
from ms_recover.planning.judging.votes import hold_vote
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, parameters, slice_file, tree
from tests.unit.planning.judging.test_votes import digests, manifest
from tests.unit.planning.test_contents import backed

PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
WHOLE = Strategy((), 1, tuple(Layout(name, (4,), ((),)) for name in NAMES[:3]))


def path(rank, step=STEP):
    return f"ckpt_dir{rank}/test-{step}.ckpt"


def compare(values, lists=PAIRS, older=None, ranks=4):
    """Compare slices whose strategy files call the first three parameters whole on all ranks."""
    by_step = {STEP: values} if older is None else {STEP: values, OLDER: older}
    held = [(rank, step, value) for step, all_of in by_step.items() for rank, value in all_of.items()]
    slices = [slice_file(rank, step) for rank, step, _ in held]
    layouts = tuple(replace(one, device_matrix=(ranks,)) for one in WHOLE.layouts)
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", replace(WHOLE, layouts=layouts)) for rank in values
    )
    inventory = replace(tree(slices, lists, ranks=range(ranks)), strategy_files=files)
    facts = gather_facts(inventory, contents=Contents({path(rank, step): digests(value) for rank, step, value in held}))
    return compare_blocks(facts, facts.counted_at(STEP))


def test_one_slice_against_those_of_two_rank_lists_is_outvoted():
    found = compare({0: "aaaa", 1: "aaaa", 2: "axaa", 3: "aaaa"}, lists={})
    assert set(found.outvoted) == {path(2)}


def test_two_of_one_rank_list_against_one_of_another_is_a_cut():
    """A foreign strategy file calls a parameter whole; one rank of four is lost."""
    found = compare({0: "abaa", 1: "axaa", 2: "abaa"}, lists={rank: PAIRS[rank] for rank in range(3)})
    assert not found.outvoted
    assert found.disagreements


def test_a_slice_that_equals_its_replica_is_disputed_and_not_outvoted():
    lists = {rank: [rank % 4, rank % 4 + 4] for rank in range(8)}
    values = {rank: "axaa" if rank % 4 == 1 else "aaaa" for rank in range(8)}
    found = compare(values, lists, ranks=8)
    assert not found.outvoted
    assert path(1) in found.undecided


def test_a_split_that_another_step_shows_is_a_cut():
    values, before = {0: "abaa", 1: "abaa", 2: "axaa"}, {0: "acaa", 1: "acaa", 2: "azaa"}
    assert set(compare(values, lists={}).outvoted) == {path(2)}
    found = compare(values, lists={}, older=before)
    assert not found.outvoted
    assert path(2) in found.undecided


def test_a_split_that_another_step_does_not_show_is_damage():
    values, before = {0: "abaa", 1: "abaa", 2: "axaa"}, {0: "acaa", 1: "acaa", 2: "acaa"}
    assert set(compare(values, lists={}, older=before).outvoted) == {path(2)}


def test_damage_of_a_winner_at_another_step_is_no_split():
    values = {0: "abaa", 1: "abaa", 2: "axaa", 3: "abaa"}
    before = {0: "azaa", 1: "acaa", 2: "acaa", 3: "acaa"}
    assert set(compare(values, lists={}, older=before).outvoted) == {path(2)}


def facts_of(values, older, manifests=(), change=lambda file: file, files=()):
    """Return the facts of slices that hold what the letters say at two steps, some ranks' with sealed manifests."""
    held = [(rank, step, value) for step, all_of in ((STEP, values), (OLDER, older)) for rank, value in all_of.items()]
    slices = []
    for rank, step, value in held:
        file = change(slice_file(rank, step, names=NAMES[: len(value)]))
        if rank in manifests:
            run = manifests[rank] if isinstance(manifests, dict) else "run"
            file = replace(file, manifest=manifest(file, value, world_size=4, run_id=run))
        slices.append(file)
    known = Contents({path(rank, step): digests(value) for rank, step, value in held})
    inventory = replace(tree(slices, {}, ranks=range(4)), strategy_files=tuple(files))
    return gather_facts(inventory, contents=known)


def newest(facts, rank):
    (one,) = facts.at(STEP, rank)
    return one


def test_a_rank_whose_other_slices_are_unlike_those_of_a_source_is_no_replica_of_it():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "ijkh"})
    assert "ckpt_dir1/test-1_8.ckpt" in why_no_replica(facts, 1, newest(facts, 0))


def test_damage_in_one_place_of_another_step_shows_no_other_layout():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgh"})
    assert why_no_replica(facts, 1, newest(facts, 0)) is None


@pytest.mark.parametrize(("nbytes", "shown"), [(48, False), (49, True), (400, True)])
def test_a_parameter_of_most_bytes_that_differs_at_another_step_shows_another_layout(nbytes, shown):
    """The other three parameters have 48 bytes."""

    def with_large(file):
        first, *others = file.parameters
        return replace(file, parameters=(replace(first, nbytes=nbytes), *others))

    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "xfgh"}, change=with_large)
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("value", "shown"), [("ef", False), ("xf", True)])
def test_a_slice_of_another_step_that_was_cut_off_shows_no_other_layout_unless_it_differs(value, shown):
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: value})
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("runs", "shown"), [(("run", "run"), True), (("run", "other"), False)])
def test_slices_of_two_runs_at_another_step_show_no_other_layout(runs, shown):
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "ijkh"}, manifests=dict(enumerate(runs)))
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("others", "shown"), [((), False), ((1, 2), True)], ids=["alone", "others contradict it"])
def test_of_strategy_files_that_contradict_each_other_one_that_cuts_just_what_differs_shows_another_layout(
    others, shown
):
    """That of rank 0 cuts ``a`` between the ranks 0 and 1, which differ in it at another step."""

    def stating(rank, *cuts):
        layouts = tuple(Layout(name, (2, 2), (cut,)) for name, cut in zip(NAMES, cuts, strict=True))
        return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((0,), 1, layouts))

    files = [stating(0, (0,), (), (), ()), *(stating(rank, (), (), (), ()) for rank in others)]
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "xfgh"}, files=files)
    assert (facts.stages.problem is not None) == shown
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


def test_a_rank_without_other_slices_may_hold_the_same():
    facts = facts_of({0: "abcd"}, {0: "efgh"})
    assert why_no_replica(facts, 1, newest(facts, 0)) is None


def test_manifests_of_another_step_state_what_two_ranks_do_not_share():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgy"}, manifests=(0, 1))
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == {NAMES[1], NAMES[3]}


def test_without_manifests_another_step_shows_it_where_it_is_no_damage_in_one_place():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgy"})
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == {NAMES[1], NAMES[3]}
    assert "hold different contents" in why_no_replica(facts, 1, newest(facts, 0))
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgh"})
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == frozenset()


@pytest.mark.parametrize(
    ("side", "alone"),
    [((0,), True), ((0, 2), False), ((0, 1), False), ((0, 1, 2, 3), False)],
    ids=["one of two", "both of a list", "one of each of two lists", "all"],
)
def test_a_side_is_alone_where_it_is_a_part_of_one_rank_list(side, alone):
    ballots = gather_facts(tree([slice_file(rank) for rank in range(4)], PAIRS)).counted_at(STEP)
    assert is_alone([ballot for ballot in ballots if ballot.rank in side], ballots) is alone


@pytest.mark.parametrize(("committing", "expected"), [(True, [False, True]), (False, [False, False])])
def test_a_slice_without_manifest_is_uncommitted_where_training_saved_others_with_one(committing, expected):
    origin = "saved" if committing else "sealed"
    slices = [backed(slice_file(0), "a", origin=origin), slice_file(1)]
    facts = gather_facts(tree(slices, PAIRS))
    assert [is_uncommitted(facts, slice_) for slice_ in facts.counted_at(STEP)] == expected


STEPS = [STEP, OLDER, Step(1, 7), Step(1, 6)]


def facts_at(*steps, change=lambda file: file, unread=(), **changes):
    """Return the facts of slices that hold what the letters say at several steps, the newest first."""
    held = [(rank, step, value) for step, values in zip(STEPS, steps, strict=False) for rank, value in values.items()]
    files = {(rank, step): change(slice_file(rank, step, names=NAMES[: len(value)])) for rank, step, value in held}
    known = {files[rank, step].path: digests(value) for rank, step, value in held if (rank, step) not in unread}
    options = changes.pop("options", DEFAULT_PLAN)
    inventory = replace(tree(list(files.values()), changes.pop("lists", {}), ranks=range(4)), **changes)
    return gather_facts(inventory, options, Contents(known))


def is_no_replica(facts):
    """Whether rank 1 holds another slice than rank 0, by other steps."""
    return why_no_replica(facts, 1, newest(facts, 0)) is not None


@pytest.mark.parametrize(
    ("older", "shown"),
    [
        ([("efgh", "exgh")], False),
        ([("efgh", "exgh"), ("ijkl", "iykl")], True),
        ([("efgh", "exgh"), ("ijkl", "iykl"), ("mnop", "mnzp")], False),
        ([("efgh", "exgh"), ("ijkl", "iykl"), ("mnop", "mnop")], False),
        ([("efgh", "exgh"), ("ijkl", "ijyl")], False),
        ([("efgh", "exgh"), ("ijkl", "qrsl")], True),
        ([("efgh", "efgh")], False),
    ],
    ids=["once", "twice", "elsewhere", "but once the same", "another", "and several", "the same"],
)
def test_one_parameter_that_differs_at_several_steps_and_no_other_does_shows_another_slice(older, shown):
    assert is_no_replica(facts_at({0: "abcd"}, *(dict(enumerate(pair)) for pair in older))) is shown


def test_a_slice_of_another_step_that_lists_others_shows_another_slice_though_what_both_list_is_equal():
    def with_other(file):
        return replace(file, parameters=parameters(("a", "x"))) if (file.rank, file.step) == (1, OLDER) else file

    assert is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ef"}, change=with_other))


def test_slices_whose_contents_are_not_known_show_nothing():
    assert not is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}, unread={(1, OLDER)}))
    assert not is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}, unread={(0, OLDER)}))

    def encrypted(file):
        found = replace(file, encryption="AES-GCM", parameters=())
        return found if (file.rank, file.step) == (1, OLDER) else file

    assert not is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}, change=encrypted))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["cut", "another prefix"])
def test_slices_of_another_step_that_are_damaged_or_of_another_run_show_nothing(which, how):
    def change(file):
        if (file.rank, file.step) != (which, OLDER):
            return file
        return replace(file, problem="cut") if how == "cut" else slice_file(which, OLDER, prefix="other")

    assert is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}))
    assert not is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}, change=change))


def test_slices_of_a_rank_that_is_declared_lost_show_nothing():
    options = PlanOptions(lost=frozenset((1,)))
    assert not is_no_replica(facts_at({0: "abcd"}, {0: "efgh", 1: "ijkl"}, options=options))


def sealed(file, value, **changes):
    made = manifest(file, value, world_size=4, provenance=Provenance(kind="sealed", evidence="structure"))
    return replace(file, manifest=replace(made, **changes))


def test_a_manifest_of_one_slice_alone_says_nothing_of_runs_nor_of_what_both_share():
    def sealed_of_one(file):
        return sealed(file, "efgh") if (file.rank, file.step) == (0, OLDER) else file

    facts = facts_at({0: "abcd"}, {0: "efgh", 1: "exyh"}, change=sealed_of_one)
    assert is_no_replica(facts)
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == frozenset()


def test_manifests_state_what_is_not_shared_of_what_both_list_but_for_counters():
    def sealed_of_both(file):
        if file.step != OLDER:
            return file
        first, *others = file.parameters
        counting = replace(file, parameters=(replace(first, shape=()), *others[: 1 + 2 * (1 - file.rank)]))
        return sealed(counting, "efgh" if file.rank == 0 else "xy")

    facts = facts_at({0: "abcd"}, {0: "efgh", 1: "xy"}, change=sealed_of_both)
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == {"b"}


def cutting(*cuts, stages=(0,), ranks=4, rank=0):
    """Return the strategy file of a rank that cuts each of the parameters over neighbours, or not at all."""
    matrix = (2, ranks // 2) if ranks > 2 else (ranks,)
    layouts = tuple(Layout(name, matrix, ((0,) if cut else (),)) for name, cut in zip(NAMES, cuts, strict=False))
    return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy(stages, 1, layouts))


@pytest.mark.parametrize(
    ("files", "pair", "shown"),
    [
        ([cutting(1, 0, 0, 0)], ("efgh", "xfgh"), True),
        ([cutting(1, 1, 0, 0)], ("efgh", "xfgh"), False),
        ([cutting(0, 1, 0, 0)], ("efgh", "xfgh"), False),
        ([cutting(0, 0, 0, 0, stages=())], ("efgh", "efgh"), False),
        ([cutting(1, 0, 0, 0, stages=(1,))], ("efgh", "xfgh"), False),
        ([cutting(1, 0, 0, 0, stages=())], ("efgh", "xfgh"), True),
        ([cutting(1, 0, 0, 0, ranks=1)], ("efgh", "xfgh"), False),
        ([replace(cutting(), strategy=Strategy((0,), 1, ()))], ("efgh", "xfgh"), False),
    ],
    ids=["just so", "more", "another", "nothing", "another stage's", "any stage's", "of other stages", "empty"],
)
def test_a_strategy_file_shows_another_slice_where_just_what_it_cuts_differs(files, pair, shown):
    """Others of the stage contradict it, and each other: they say that nothing is cut, and that all is."""
    others = [cutting(0, 0, 0, 0, rank=1), *(cutting(1, 1, 1, 1, rank=rank) for rank in (2, 3))]
    facts = facts_at({0: "abcd"}, dict(enumerate(pair)), strategy_files=(*files, *others))
    assert facts.stages.problem is not None
    assert is_no_replica(facts) is shown


def test_a_strategy_file_shows_nothing_about_contents_that_are_not_known():
    files = (cutting(1, 0, 0, 0), *(cutting(0, 0, 0, 0, rank=rank) for rank in (1, 2)))
    for rank in (0, 1):
        facts = facts_at({0: "abcd"}, {0: "e", 1: "x"}, strategy_files=files, unread={(rank, OLDER)})
        assert not is_no_replica(facts)


def settled(facts, names, ranks):
    """Return a vote over some parameters of some ranks, and the same where another step or rank list speaks."""
    ballots = [ballot for ballot in facts.counted_at(STEP) if ballot.rank in ranks]
    vote = hold_vote(ballots, facts.tolerance, names)
    return vote, settle_split(facts, ballots, vote, names)


@pytest.mark.parametrize("lists", [{}, {rank: [0, 1, 2] for rank in range(3)}], ids=["several lists", "one list"])
@pytest.mark.parametrize("values", ["abc", "aab", "aaa"], ids=["tie", "outvoted", "all equal"])
def test_a_vote_is_left_as_it_is_where_nothing_shows_that_the_parameter_is_cut(lists, values):
    lists = lists or {rank: [rank] for rank in range(3)}
    facts = facts_at({rank: value + "aaa" for rank, value in enumerate(values)}, lists=lists)
    vote, after = settled(facts, ["a", "b"], (0, 1, 2))
    assert after is vote


@pytest.mark.parametrize("proven", [False, True])
def test_within_a_rank_list_a_split_of_another_step_leaves_it_open_unless_a_manifest_proves_the_winners(proven):
    def saved(file):
        made = manifest(
            file, "abcd", world_size=4, group=(0, 1, 2), provenance=Provenance(kind="sealed", evidence="vote")
        )
        return replace(file, manifest=made) if proven and (file.rank, file.step) == (0, STEP) else file

    now, before = {0: "abcd", 1: "abcd", 2: "xbcd"}, {0: "efgh", 1: "efgh", 2: "yfgh"}
    facts = facts_at(now, before, change=saved, lists={rank: [0, 1, 2] for rank in range(3)})
    vote, after = settled(facts, NAMES, (0, 1, 2))
    assert set(vote.odd) == {path(2)}
    assert (after is vote) is proven
    assert (after.disagreement is None) is proven


def test_between_rank_lists_a_manifest_does_not_settle_it_where_one_list_alone_confirms_it():
    def saved(file):
        made = sealed(file, "abcd", group=(0, 2), provenance=Provenance(kind="sealed", evidence="vote"))
        return made if file.rank == 0 else file

    facts = facts_at({0: "abcd", 2: "abcd", 1: "xbcd"}, change=saved, lists=PAIRS)
    vote, after = settled(facts, NAMES, (0, 1, 2))
    assert set(vote.odd) == {path(1)}
    assert after.disagreement is not None


@pytest.mark.parametrize(
    ("values", "open_"),
    [
        ({0: "aaaa", 1: "aaaa", 2: "xyza", 3: "aaaa"}, True),
        ({0: "aaab", 1: "aaaa", 2: "xyza", 3: "aaaa"}, False),
        ({0: "aaaa", 1: "aaaa", 2: "xaaa", 3: "aaaa"}, False),
        ({0: "aaaa", 1: "aaac", 2: "xyza", 3: "aaac"}, False),
    ],
    ids=["may be another's", "bytes of its own", "like its replica", "of no other list"],
)
def test_a_winner_that_may_be_the_slice_of_another_rank_list_confirms_nothing(values, open_):
    """It has all bytes of one of another list, and few of those of its replica."""
    vote, after = settled(facts_at(values, lists=PAIRS), NAMES[:3], range(4))
    assert set(vote.odd) == {path(2)}
    assert (after.disagreement is not None) is open_


def test_a_winner_without_a_replica_that_differs_confirms_it():
    facts = facts_at({0: "aaaa", 1: "aaaa", 2: "xyza"}, lists={rank: [rank] for rank in range(3)})
    vote, after = settled(facts, NAMES[:3], range(3))
    assert set(vote.odd) == {path(2)}
    assert after is vote
