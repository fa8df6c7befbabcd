"""Which ranks may give a parameter of a slice, and why none may: dp 4, tp 2, ranks of equal parity hold the same."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import OrphanManifest, StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices, judge_step
from ms_recover.planning.supply.settle import Settled
from ms_recover.planning.supply.supply import Supply
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.unit.planning.judging.test_votes import manifest

RANKS = 8
NAMES = ("w", "bias", "local", "global_step")
SHAPES = {"w": (2, 3), "bias": (3,), "local": (5,), "global_step": ()}
LAYOUTS = (Layout("w", (4, 2), ((0,), ())), Layout("bias", (4, 2), ((),)))
LISTED = {
    name: Parameter(name, "Int8", shape, (6, 3, 5, 1)[place]) for place, (name, shape) in enumerate(SHAPES.items())
}
W, BIAS, LOCAL, COUNTER = (LISTED[name] for name in NAMES)
PART = ((0, 2), (0, 3))


def right(*without):
    """Return by rank what intact slices hold: a letter for each parameter."""
    return {rank: f"{'ab'[rank % 2]}ccc" for rank in range(RANKS) if rank not in without}


def saved(file, value, **changes):
    made = manifest(file, value, world_size=RANKS, **{"strategy_digest": "s", **changes})
    return replace(made, parameters=tuple(LISTED.values()))


NEWER = Step(3, 8)


def settlement(
    values,
    older=None,
    *,
    newer=None,
    layouts=LAYOUTS,
    backed=(),
    named="s",
    gone=None,
    lists=None,
    shapes=None,
    unread=(),
    **options,
):
    """Return the settlement of the newer step; `backed` has (rank, step) with manifests, `gone` values of orphans.

    Nothing is known of the contents of the steps `unread`.
    """
    slices, known = [], {}
    for step, held in ((STEP, values), (OLDER, older or {}), (NEWER, newer or {})):
        for rank, value in held.items():
            listed = tuple(
                replace(one, shape=(shapes or {}).get((rank, name), one.shape)) for name, one in LISTED.items()
            )
            file = replace(slice_file(rank, step), parameters=listed)
            if (rank, step) in backed:
                file = replace(file, manifest=saved(file, value, strategy_digest=named))
            slices.append(file)
            if step not in unread:
                known[file.path] = Digests(f"file:{value}", tuple(f"p:{letter}" for letter in value))
    orphans = []
    for rank, value in (gone or {}).items():
        file = replace(slice_file(rank), parameters=tuple(LISTED.values()))
        orphans.append(
            OrphanManifest(rank=rank, step=STEP, place=file.place, prefix=file.prefix, manifest=saved(file, value))
        )
    inventory = replace(
        tree(slices, lists or {}, ranks=range(RANKS)),
        strategy_files=(StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, layouts), "s"),),
        orphans=tuple(orphans),
    )
    read = Contents({}) if options.get("quick") else Contents(known)
    facts = gather_facts(inventory, PlanOptions(world_size=RANKS, **options), read)
    return Supply.of(facts, judge_step(compare_slices(facts), STEP, runs_of(facts, STEP)[0])).settlement


def without_judging(values, **how):
    """Return the settlement of slices each of which is sound by itself."""
    made = settlement(values, **how)
    judgement = made.index.judgement
    sound = {path: replace(one, status="sound") for path, one in judgement.slices.items()}
    return Supply.of(made.index.facts, replace(judgement, slices=sound, refuted={})).settlement


def test_all_that_hold_the_same_may_give_it():
    found = settlement(right(0)).settle_for(0, W)
    assert (found.ranks, found.region, found.problem, found.missing) == ((2, 4, 6), PART, None, ())
    assert settlement(right(0)).settle_for(0, BIAS).ranks == (1, 2, 3, 4, 5, 6, 7)
    assert not found.disputed
    assert not found.tolerated


def test_what_a_rank_has_itself_goes_before_what_others_have_but_for_a_region():
    made = settlement(right())
    assert made.settle(2, W).ranks == (2,)
    assert made.settle_region(2, W).ranks == (0, 2, 4, 6)


def test_a_majority_settles_what_is_given():
    values = {**right(0), 4: "xccc"}
    assert without_judging(values).settle(0, W).ranks == (2, 6)


def test_of_two_that_differ_nothing_settles_who_is_right():
    found = without_judging({**right(0, 6), 4: "xccc"}).settle(0, W)
    assert (found.ranks, found.disputed) == ((), True)
    assert found.problem == "rank 2 and rank 4 hold different contents, and nothing settles who is right"
    assert [one.region for one in found.missing] == [PART]


def test_unread_contents_are_taken_as_they_are():
    found = without_judging({**right(0, 6), 4: "xccc"}, quick=True).settle(0, W)
    assert (found.ranks, found.problem) == ((2, 4), None)


def test_what_may_differ_is_given_by_any_of_them():
    found = without_judging({**right(0, 6), 4: "xccc"}, tolerate=("w",)).settle(0, W)
    assert (found.ranks, found.tolerated) == ((2, 4), True)


def test_what_nobody_holds_is_missing():
    found = settlement(right(0, 2, 4, 6)).settle(0, W)
    assert (found.ranks, [(one.region, one.bytes, one.reason) for one in found.missing]) == (
        (),
        [(PART, 6, "no sound slice has it")],
    )


def test_a_whole_tensor_gives_the_part():
    values = right(0, 2, 4, 6)
    found = settlement(values, shapes={(1, "w"): (4, 3)}).settle(0, W)
    assert found.parts == ((PART, ((0, 4), (0, 3)), (1,)),)
    assert found.missing == ()


@pytest.mark.parametrize(
    ("values", "doubted"),
    [
        ({1: "x", 3: "y"}, True),
        ({}, False),
    ],
)
def test_a_layout_whose_replicas_differ_elsewhere_is_doubted_where_one_rank_alone_has_the_part(values, doubted):
    held = right(0, 4, 6, 5, 7)
    held.update({rank: f"{letter}ccc" for rank, letter in values.items()})
    found = without_judging(held).settle(0, W)
    assert found.disputed == doubted
    assert (found.ranks == (2,)) != doubted
    if doubted:
        assert found.problem.startswith("by the layouts in ckpt_dir0/strategy.ckpt ranks 1 and 3 hold the same of it")


def test_a_layout_is_not_doubted_where_as_many_parts_agree_or_a_manifest_names_it():
    odd = {**right(0, 5, 7), 1: "xccc", 3: "yccc"}
    assert without_judging(odd).settle(0, W).ranks == (2, 4, 6)
    few = {**right(0, 4, 6, 5, 7), 1: "xccc", 3: "yccc"}
    named = without_judging(few, backed=[(2, STEP)])
    assert named.settle(0, W).ranks == (2,)
    assert without_judging(few, tolerate=("w",)).settle(0, W).ranks == (2,)


@pytest.mark.parametrize(
    ("older", "distrusted"),
    [
        ({0: "xccc", 2: "yccc"}, True),
        ({0: "xccc", 2: "xccc"}, False),
        ({0: "xccc", 1: "xccc"}, False),
        ({0: "xccc", 2: "yccc", 1: "bccc", 3: "bccc"}, False),
        ({0: "xccc", 2: "yccc", 1: "bccc", 3: "zccc"}, True),
    ],
)
def test_a_sole_holder_is_distrusted_where_another_step_shows_that_replicas_differ(older, distrusted):
    found = without_judging(right(0, 3, 4, 5, 6, 7), older=older).settle(0, W)
    assert (found.ranks == ()) == distrusted
    assert not distrusted or f"but at step {OLDER} their contents differ" in found.problem
    assert not found.disputed


def test_the_nearest_older_step_shows_it_before_newer_ones_and_lost_ranks_show_nothing():
    differ, agree = {0: "xccc", 2: "yccc"}, {0: "xccc", 2: "xccc"}
    alone = right(0, 3, 4, 5, 6, 7)
    assert without_judging(alone, newer=differ).settle(0, W).ranks == ()
    assert without_judging(alone, older=agree, newer=differ).settle(0, W).ranks == (2,)
    assert without_judging(alone, older=differ, newer=agree).settle(0, W).ranks == ()
    assert without_judging(alone, older=differ, lost=frozenset({0})).settle(0, W).ranks == (2,)
    assert without_judging(alone, older=differ, tolerate=("w",)).settle(0, W).ranks == (2,)
    assert without_judging(alone, older=differ, backed=[(2, STEP)]).settle(0, W).ranks == (2,)


@pytest.mark.parametrize(
    ("odd", "doubted"),
    [
        ({1: "xc", 3: "yc"}, False),
        ({1: "xc", 3: "yx"}, True),
        ({1: "xc", 3: "xc", 5: "yc", 7: "yc"}, True),
        ({1: "xc", 3: "xc", 5: "xc", 7: "yc"}, False),
    ],
)
def test_where_as_many_parts_differ_as_agree_slices_that_training_saved_show_whether_it_is_damage(odd, doubted):
    values = {2: "accc", 4: "accc"} | {rank: f"{two}cc" for rank, two in odd.items()}
    saved_all = [(rank, STEP) for rank in values]
    found = without_judging(values, backed=saved_all, named=None).settle(0, W)
    assert (found.ranks, found.disputed) == (((), True) if doubted else ((2, 4), False))
    assert without_judging(values).settle(0, W).ranks == (2, 4)
    assert without_judging(values, backed=saved_all).settle(0, W).ranks == (2, 4)


def test_contents_that_are_not_known_may_be_those_that_the_manifest_states():
    found = without_judging({**right(0), 2: "xccc"}, backed=[(2, STEP)], gone={0: "accc"}, quick=True).settle_for(0, W)
    assert found.ranks == (4, 6)


def test_the_manifest_of_the_lost_slice_says_which_contents_are_its_own():
    agreeing = settlement(right(0), gone={0: "accc"}).settle_for(0, W)
    assert agreeing.ranks == (2, 4, 6)
    mixed = without_judging({**right(0), 4: "xccc"}, gone={0: "xccc"})
    assert mixed.settle_for(0, W).ranks == ()
    other = settlement(right(0), gone={0: "xccc"}).settle_for(0, W)
    assert (other.ranks, [one.region for one in other.missing]) == ((), [PART])
    assert other.problem == "rank 2 holds other contents of it than the manifest of the rank's own slice states"
    free = settlement(right(0), gone={0: "xccc"}, tolerate=("w",)).settle_for(0, W)
    assert (free.ranks, free.tolerated) == ((2, 4, 6), True)


def test_manifests_of_another_step_say_which_ranks_do_not_share_a_parameter():
    both = [(0, OLDER), (2, OLDER)]
    one = without_judging(right(0), older={0: "accc", 2: "xccc"}, backed=both).settle_for(0, W)
    assert one.ranks == (4, 6)
    all_of = without_judging(right(0, 4, 6), older={0: "accc", 2: "xccc"}, backed=both).settle_for(0, W)
    assert (all_of.ranks, all_of.disputed, [one.region for one in all_of.missing]) == ((), True, [PART])
    assert all_of.problem == "rank 2 holds it, but at another step manifests of both state different contents"
    same = without_judging(right(0), older={0: "accc", 2: "accc"}, backed=both).settle_for(0, W)
    assert same.ranks == (2, 4, 6)
    free = without_judging(right(0), older={0: "accc", 2: "xccc"}, backed=both, tolerate=("w",)).settle_for(0, W)
    assert free.ranks == (2, 4, 6)


def test_without_a_layout_one_rank_alone_may_hold_a_part_of_its_own():
    found = settlement(right(0, 3, 4, 5, 6, 7)).settle(0, LOCAL)
    assert found.ranks == (1, 2)
    alone = settlement(right(0, 1, 3, 4, 5, 6, 7)).settle(0, LOCAL)
    assert alone.problem.startswith("no layout states how it is cut, and rank 2 alone has it")
    few = settlement(right(0, 1, 3, 5, 6, 7)).settle(1, LOCAL)
    assert few.problem.startswith("no layout states how it is cut, and only ranks 2, 4 are known to have it")
    assert settlement(right(0, 1, 3, 4, 5, 6, 7)).settle(0, COUNTER).ranks == (2,)


def test_without_a_layout_what_differs_is_each_rank_s_own():
    values = {rank: f"{value[:2]}{'xy'[rank % 2]}c" for rank, value in right(0).items()}
    found = without_judging(values).settle(0, LOCAL)
    assert found.problem == "it differs from rank to rank, and only the rank itself had its own"
    assert not found.disputed


def test_a_layout_that_fits_no_slice_is_said():
    odd = Layout("local", (4, 2), ((0,), ()))
    found = settlement(right(0), layouts=(*LAYOUTS, odd)).settle(0, LOCAL)
    assert found.problem == "its layout in the strategy file does not fit the slices"


def outvoted(values, **how):
    made = without_judging(values, **how)
    return made.why_outvoted(0, [(one, made.settle(0, one)) for one in (W, BIAS)])


def test_majorities_are_distrusted_where_half_of_the_holders_lose_one():
    assert outvoted(right(0)) is None
    assert outvoted({**right(0), 4: "xccc"}) is None
    values = {**right(0, 1, 3, 5, 7), 4: "xccc", 6: "axcc"}
    assert outvoted(values) == (
        "of ranks [2, 4, 6], which hold the same by the layouts in ckpt_dir0/strategy.ckpt, each of [4, 6] differs "
        "somewhere: it is not the strategy file of these slices, or they are damaged"
    )
    assert outvoted(values, backed=[(2, STEP)]) is None
    assert outvoted(values, gone={0: "accc"}) is None
    assert outvoted({**right(0, 1, 3, 5, 7), 4: "xccc"}) is None
    half = {**right(0, 7), 1: "bxcc", 3: "bycc", 4: "xccc"}
    assert "each of [1, 3, 4] differs somewhere" in outvoted(half)
    assert outvoted({**half, 3: "bccc"}) is None


@pytest.mark.parametrize(
    ("gone", "proven", "refused"),
    [
        ({0: "xccc"}, (), True),
        ({0: "xccc"}, (4,), True),
        ({0: "xccc"}, (4, 6), False),
        ({0: "xccc", 2: "xccc"}, (4, 6), True),
        ({0: "accc"}, (), False),
        ({}, (), False),
    ],
)
def test_manifests_of_lost_slices_contradict_as_many_proven_holders(gone, proven, refused):
    """The ranks 0, 2, 4 and 6 hold one part of ``w``; of them 0 and 2 are lost.

    A slice without a manifest gives nothing where training saved others with one.
    """
    made = settlement(right(0, 2), gone=gone, backed=[(rank, STEP) for rank in proven])
    found = made.contradicted(4, W, [rank for rank in (4, 6) if rank in made.index.slices])
    assert (found is not None) == refused
    assert found is None or (found.ranks, found.disputed) == ((), False)
    assert found is None or found.problem.startswith("rank 4 holds other contents of it than ")


def test_what_a_rank_with_a_slice_is_given_is_not_what_others_are_given():
    """The own slice goes first, for that rank alone, in whatever order ranks are settled."""
    made = settlement(right())
    assert [made.settle(rank, W).ranks for rank in (2, 4, 0)] == [(2,), (4,), (0,)]
    lost = settlement(right(0))
    assert [lost.settle(rank, W).ranks for rank in (2, 0, 4, 0)] == [(2,), (2, 4, 6), (4,), (2, 4, 6)]


def test_without_a_layout_each_rank_is_settled_by_its_own_rank_list():
    lists = {rank: [rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6] for rank in range(RANKS)}
    made = settlement(right(0, 1), lists=lists)
    assert (made.settle(0, LOCAL).ranks, made.settle(1, LOCAL).ranks) == ((2, 4, 6), (3, 5, 7))
    assert (made.settle(0, LOCAL).region, made.settle(0, LOCAL).problem) == (None, None)


def test_of_a_region_nobody_gives_what_the_manifest_of_a_lost_slice_states_otherwise():
    refused = settlement(right(0), gone={0: "xccc"}).settle_region(4, W)
    assert (refused.ranks, refused.disputed, [one.region for one in refused.missing]) == ((), False, [PART])
    assert refused.problem == "rank 2 holds other contents of it than the manifest states that the slice of rank 0 left"
    agreed = settlement(right(0), gone={0: "accc"}).settle_region(4, W)
    assert (agreed.ranks, agreed.problem) == ((2, 4, 6), None)
    free = without_judging({**right(0), 4: "yccc"}, gone={0: "xccc"}, tolerate=("w",)).settle_region(4, W)
    assert (free.ranks, free.tolerated) == ((2, 4, 6), True)


@pytest.mark.parametrize(
    ("held", "older", "refused"),
    [
        ((2,), {0: "xccc", 2: "accc"}, True),
        ((2,), {0: "accc", 2: "accc"}, False),
        ((2, 4), {0: "xccc", 2: "accc", 4: "accc"}, False),
        ((2, 4), {0: "xccc", 6: "yccc", 2: "accc", 4: "accc"}, True),
        ((2, 4), {0: "xccc", 6: "accc", 2: "accc", 4: "accc"}, False),
        ((2, 4, 6), {0: "xccc", 2: "accc", 4: "accc", 6: "accc"}, False),
    ],
    ids=["apart", "alike", "one of two", "two of two", "one of two apart", "one of three"],
)
def test_as_many_lost_ranks_as_holders_contradict_these_by_another_step(held, older, refused):
    """Manifests of the older step show which ranks held the same of ``w``."""
    values = {rank: value for rank, value in right().items() if rank % 2 or rank in held}
    made = without_judging(values, older=older, backed=[(rank, OLDER) for rank in older])
    against = made.contradicted(held[0], W, held)
    assert (against is not None) == refused
    if against is not None:
        assert (against.ranks, against.disputed) == ((), True)
        assert against.problem == ("rank 2 holds it, but at another step manifests of rank 0 state different contents")
    assert made.contradicted(held[0], W, ()) is None


def test_a_sound_slice_contradicts_nobody_although_a_manifest_of_another_lies_beside_it():
    made = settlement(right(0), gone={2: "xccc"})
    assert made.contradicted(4, W, (2, 4, 6)) is None


def test_without_a_layout_lost_ranks_of_all_parts_contradict():
    made = settlement(right(0), gone={0: "acxc"})
    assert made.contradicted(1, LOCAL, (1, 2, 3)).problem == (
        "rank 1 holds other contents of it than the manifest states that the slice of rank 0 left"
    )
    assert made.contradicted(1, W, (1, 3)) is None
    assert settlement(right(0), gone={0: "accc"}).contradicted(1, LOCAL, (1, 2, 3)) is None


@pytest.mark.parametrize(
    ("values", "backed", "lists", "ranks"),
    [
        ("xxxy", (), True, ()),
        ("xxxy", (2,), True, (2, 4, 6)),
        ("xxxy", (2,), False, ()),
        ("xxxx", (), True, (2, 4, 6)),
    ],
    ids=["no proof", "proven", "of no rank list", "alike"],
)
def test_without_a_layout_a_majority_of_the_rank_list_counts_only_with_a_proof(values, backed, lists, ranks):
    """Rank 0 is lost; ranks 2, 4, 6 and 1 of its list hold a parameter without a layout."""
    members = [2, 4, 6, 1]
    held = {rank: f"{'ab'[rank % 2]}c{value}c" for rank, value in zip(members, values, strict=True)}
    groups = {rank: [0, *members] for rank in members} if lists else {}
    made = without_judging(held, layouts=LAYOUTS[1:], lists=groups, backed=[(rank, STEP) for rank in backed])
    found = made.settle(0, LOCAL)
    assert tuple(rank for rank in found.ranks if rank != 1) == ranks
    assert (found.problem is None) == bool(ranks)


def test_slices_of_this_step_that_are_sound_or_disputed_show_how_a_parameter_is_cut():
    """Rank 2 alone gives ``w``; ranks of two lists differ in it at this step, or one of them is damaged."""
    values = {**right(0, 3, 5, 6, 7), 4: "xccc"}
    made = without_judging(values, older={0: "accc", 2: "accc"})
    assert made.distrusted(0, "w") is not None
    judged = made.index.judgement
    for status, shown in (("sound", True), ("undecided", True), ("damaged", False)):
        slices = {
            path: replace(one, status=status if path.startswith("ckpt_dir4") else one.status)
            for path, one in judged.slices.items()
        }
        found = Supply.of(made.index.facts, replace(judged, slices=slices)).settlement.distrusted(0, "w")
        assert (found is not None) == shown


def test_what_is_missing_has_its_region_of_the_whole_tensor_and_the_reason():
    lower = ((2, 4), (0, 3))
    found = without_judging({**right(1, 3), 5: "xccc"}).settle(1, W)
    assert [(one.region, one.reason) for one in found.missing] == [(lower, found.problem)]
    gone = settlement({}).settle(0, COUNTER)
    assert [(one.region, one.reason) for one in gone.missing] == [((), "no sound slice has it")]
    assert gone.problem is None


def test_what_nobody_holds_is_missing_whatever_a_manifest_states():
    found = settlement(right(0, 2, 4, 6), gone={0: "accc"}, tolerate=("w",)).settle_for(0, W)
    assert ([one.reason for one in found.missing], found.problem, found.tolerated) == (
        ["no sound slice has it"],
        None,
        False,
    )


@pytest.mark.parametrize("lists", [None, {rank: list(range(rank % 2, RANKS, 2)) for rank in range(RANKS)}])
def test_no_majority_counts_where_another_step_shows_the_same_split(lists):
    values = {**right(0), 4: "xccc"}
    older = {2: "yccc", 4: "zccc", 6: "yccc"}
    assert without_judging(values, lists=lists).settle(0, W).ranks == (2, 6)
    found = without_judging(values, older=older, lists=lists).settle(0, W)
    assert (found.ranks, found.disputed) == ((), True)


def test_what_another_step_shows_counts_only_where_this_one_is_read_and_shows_nothing():
    older = {0: "xccc", 2: "yccc"}
    one_list = {2: [2, 4], 4: [2, 4]}
    assert without_judging(right(0, 3, 5, 6, 7), older=older, lists=one_list).settle(0, W).ranks == (2, 4)
    alone = right(0, 3, 4, 5, 6, 7)
    assert without_judging(alone, older=older).settle(0, W).ranks == ()
    assert without_judging(alone, older=older, unread=[STEP]).settle(0, W).ranks == (2,)


def test_only_majorities_over_a_layout_are_distrusted():
    made = without_judging({**right(0), 4: "xxxc", 6: "yyyc"})
    assert made.why_outvoted(0, [(W, Settled(region=PART, ranks=(2,)))]) is not None
    for settled in (
        Settled(region=None, ranks=(2,)),
        Settled(region=PART, ranks=(2,), tolerated=True),
        Settled(region=PART),
    ):
        assert made.why_outvoted(0, [(W, settled)]) is None
