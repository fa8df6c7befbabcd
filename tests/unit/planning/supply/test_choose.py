"""For each rank: keep the slice, or take it from where."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Note, OrphanManifest, RankPath, StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.supply.choose import choose_sources
from ms_recover.planning.supply.supply import Kept, supply_of
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, TRIPLES, backed, contents, digests

FOUR = {rank: [0, 1, 2, 3] for rank in range(4)}


def supply(inventory, known=NOTHING_READ, **options):
    facts = gather_facts(inventory, PlanOptions(**options), known)
    return supply_of(compare_slices(facts), STEP, runs_of(facts, STEP)[0])


def choose(slices, lists=PAIRS, known=NOTHING_READ, *, change=lambda inventory: inventory, **options):
    return choose_sources(supply(change(tree(slices, lists)), known, **options))


def plain(*without, ranks=4):
    return [slice_file(rank) for rank in range(ranks) if rank not in without]


def copies(assessment):
    return [(action.rank, action.source_rank) for action in assessment.actions]


def test_a_rank_with_a_sound_slice_keeps_it():
    found = choose(plain())
    assert found.recoverable
    assert {(rank.state, rank.verdict, rank.evidence) for rank in found.ranks} == {("ok", "keep", "structure")}
    assert [rank.path for rank in found.ranks] == [f"ckpt_dir{rank}/test-2_8.ckpt" for rank in range(4)]


def test_lost_ranks_are_spread_over_the_sources_of_their_group():
    members = {rank: list(range(6)) for rank in range(6)}
    assert copies(choose(plain(0, 1, 2, ranks=6), members)) == [(0, 3), (1, 4), (2, 5)]
    assert copies(choose(plain(0, 1, 2, 3, ranks=6), members)) == [(0, 4), (1, 5), (2, 4), (3, 5)]


def test_a_source_of_more_than_structure_is_preferred_and_the_others_are_alternatives():
    slices = [slice_file(1), slice_file(2), backed(slice_file(3), "a", group=(0, 1, 2, 3), origin="sealed by vote")]
    (action,) = choose(slices, FOUR).actions
    assert (action.source_rank, action.evidence) == (3, "manifest")
    assert [one.rank for one in action.alternatives] == [1, 2]
    assert action.group == (0, 1, 2, 3)


def test_the_copy_knows_the_digest_and_the_state_of_its_source():
    slices = [backed(slice_file(rank, size=7, mtime=5), "ab"[rank % 2]) for rank in (1, 2, 3)]
    (action,) = choose(slices).actions
    assert (action.replica.digest, action.replica.state.bytes, action.replica.state.mtime_ns) == ("file:a", 7, 5)
    assert "ckpt_dir0/group_info.pb" in action.reason


def test_replicas_that_differ_as_they_may_give_a_slice_with_borrowed_values():
    names = ("a", "moving_mean", "c", "d")
    slices = [slice_file(rank, names=names) for rank in (1, 2, 3, 4, 5)]
    known = contents(r1="b", r3="b", r5="b")
    for one in (slices[1], slices[3]):
        known.digests[one.path] = Digests(f"file:{one.rank}", ("p", str(one.rank), "p", "p"))
    (action,) = choose(slices, TRIPLES, known).actions
    assert (action.rank, action.borrowed, action.evidence) == (0, ("moving_mean",), "vote")
    (other,) = choose(plain(0, ranks=6), TRIPLES, contents(r1="b", r2="a", r3="b", r4="a", r5="b")).actions
    assert other.borrowed == ()


@pytest.mark.parametrize(
    ("slices", "change", "state", "reason"),
    [
        (plain(0, 2), None, "missing", "no slice of step 2_8"),
        ([*plain(0, 2), slice_file(0, problem="cut")], None, "damaged", "ckpt_dir0/test-2_8.ckpt: cut"),
        (
            [*plain(0, 2), replace(slice_file(0, problem="refused"), denied=True)],
            None,
            "unreadable",
            "ckpt_dir0/test-2_8.ckpt: refused",
        ),
        ([*plain(0, 2), slice_file(0, prefix="other")], None, "missing", "another run"),
        (
            plain(0, 2),
            lambda found: replace(found, denied=((0, Note("ckpt_dir0", "refused")),)),
            "unreadable",
            "ckpt_dir0: refused",
        ),
    ],
    ids=["missing", "damaged", "unreadable", "of another run", "directory refused"],
)
def test_the_state_of_a_rank_without_a_sound_slice(slices, change, state, reason):
    verdict = choose(slices, change=change or (lambda found: found)).ranks[0]
    assert (verdict.state, verdict.verdict) == (state, "unrecoverable")
    assert reason in verdict.reason


def test_a_rank_without_any_file_has_no_directory():
    verdict = choose(plain(0), {rank: PAIRS[rank] for rank in (1, 2, 3)}).ranks[0]
    assert (verdict.state, verdict.verdict) == ("missing", "copy")
    assert "no directory" in verdict.reason


def test_a_lost_rank_is_replaced_whatever_lies_there():
    found = choose(plain(), lost=frozenset((0,)))
    assert copies(found) == [(0, 2)]
    assert found.ranks[0].state == "lost"
    assert found.actions[0].replaces is not None


def test_nothing_is_copied_over_slices_that_may_be_right():
    verdict = choose([*plain(), slice_file(0, prefix="test_1")]).ranks[0]
    assert verdict.verdict == "unrecoverable"
    assert "nothing is copied over slices that may be right" in verdict.reason


def test_nothing_is_written_where_the_directory_is_refused():
    denied = ((0, Note("ckpt_dir0", "refused")),)
    verdict = choose(plain(0), change=lambda found: replace(found, denied=denied)).ranks[0]
    assert verdict.verdict == "unrecoverable"
    assert "nothing can be written there" in verdict.reason


def cut_by_layouts(found):
    """Return an inventory whose strategy files state that the ranks 0 and 2, and 1 and 3 hold the same."""
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    return replace(found, strategy_files=(StrategyFile(3, "ckpt_dir3/strategy.ckpt", Strategy((0,), 1, layouts)),))


@pytest.mark.parametrize(
    ("slices", "denied", "verdict"),
    [
        (plain(0), (), "copy"),
        ([*plain(), slice_file(0, prefix="test_1")], (), "unrecoverable"),
        (plain(0), ((0, Note("ckpt_dir0", "refused")),), "unrecoverable"),
    ],
    ids=["missing", "ambiguous", "refused"],
)
def test_nothing_is_made_by_layouts_where_nothing_is_copied_for_good_reason(slices, denied, verdict):
    found = choose(slices, {1: [1, 3]}, change=lambda found: cut_by_layouts(replace(found, denied=denied)))
    assert found.ranks[0].verdict == verdict
    assert [action.rank for action in found.actions] == ([0] if verdict == "copy" else [])


@pytest.mark.parametrize(
    ("slices", "lists", "reason"),
    [
        (plain(0), {1: [1, 3]}, "no group_info.pb says who holds the same slice"),
        (plain(0), {**{rank: [rank] for rank in range(4)}}, "its group is [0]: no other rank holds the same slice"),
        (plain(0, 2), PAIRS, "nobody of its group [0, 2] has a sound slice (ranks 0, 2 missing)"),
        (
            [slice_file(1), slice_file(2, shape=(2, 2)), slice_file(3)],
            {rank: [0, 1, 2] if rank < 3 else [3] for rank in range(4)},
            "its group is no set of replicas at this step",
        ),
    ],
    ids=["no list", "alone", "no source", "conflicting lists"],
)
def test_the_reason_why_no_rank_of_the_group_gives_the_slice(slices, lists, reason):
    verdict = choose(slices, lists).ranks[0]
    assert verdict.verdict == "unrecoverable"
    assert reason in verdict.reason


@pytest.mark.parametrize(("older", "copied"), [("ab", False), ("aa", True)], ids=["unlike", "alike"])
def test_no_rank_gives_a_slice_to_one_that_held_another_at_another_step(older, copied):
    before = [slice_file(rank, OLDER) for rank in (0, 2)]
    known = Contents(
        {
            **{one.path: digests(value) for one, value in zip(before, older, strict=True)},
            **{one.path: digests("cd"[one.rank % 2]) for one in plain(0)},
        }
    )
    verdict = choose([*plain(0), *before], known=known).ranks[0]
    assert (verdict.verdict == "copy") == copied
    assert ("hold different contents, so that a rank list that names both is not theirs" in verdict.reason) != copied


def test_a_group_that_disagrees_gives_nothing_and_the_assessment_says_so():
    slices = plain(0, ranks=6)
    found = choose(slices, TRIPLES, contents(r2="a", r4="x", r1="b", r3="b", r5="b"))
    assert not found.recoverable
    assert "nothing settles who is right" in found.ranks[0].reason
    assert len(found.disagreements) == 1
    assert found.actions == ()


def test_slices_of_another_run_are_neither_sources_nor_replaced():
    slices = [backed(slice_file(rank), "ab"[rank % 2], run="new") for rank in (1, 2, 3)]
    found = choose([*slices, backed(slice_file(0, prefix="test_1"), "a", run="old")])
    (action,) = found.actions
    assert (action.rank, action.source_rank, action.target) == (0, 2, "ckpt_dir0/test-2_8.ckpt")
    assert action.replaces is None
    assert found.run_id == "new"


def test_only_sound_slices_can_be_relied_on():
    slices = [*plain(0, 1), slice_file(0, problem="cut"), slice_file(1), slice_file(1, OLDER)]
    assert list(supply(tree(slices, PAIRS), lost=frozenset((3,))).sound) == [1, 2]


def test_a_cut_list_makes_a_rank_damaged_and_it_is_replaced():
    found = choose([slice_file(0, names=NAMES[:2]), *plain(0)])
    assert copies(found) == [(0, 2)]
    assert found.ranks[0].state == "damaged"


def outvoted(slices=None, **options):
    known = contents(r0="a", r2="x", r4="a", r1="b", r3="b", r5="b")
    return choose(slices or plain(ranks=6), TRIPLES, known, **options).actions


def test_an_outvoted_slice_is_set_aside_when_it_is_replaced():
    (action,) = outvoted()
    assert (action.rank, action.set_aside) == (2, "ckpt_dir2/test-2_8.ckpt.outvoted")
    assert action.replaces is not None


def test_a_slice_that_is_damaged_or_missing_or_of_a_lost_rank_is_not_set_aside():
    assert [one.set_aside for one in outvoted([*plain(2, ranks=6), slice_file(2, problem="cut")])] == [None]
    assert [one.set_aside for one in outvoted(plain(2, ranks=6))] == [None]
    (lost,) = outvoted(lost=frozenset((2,)))
    assert lost.replaces is not None
    assert lost.set_aside is None


def test_a_slice_of_another_run_in_the_place_of_a_slice_is_set_aside():
    slices = [backed(slice_file(rank), rank % 2, run="main") for rank in range(1, 4)]
    (action,) = choose([*slices, backed(slice_file(0), "x", run="other")]).actions
    assert (action.rank, action.set_aside) == (0, "ckpt_dir0/test-2_8.ckpt.outvoted")


def test_a_slice_that_was_not_committed_is_set_aside():
    slices = [backed(slice_file(rank), rank % 2) for rank in range(1, 4)]
    (action,) = choose([*slices, slice_file(0)]).actions
    assert (action.rank, action.set_aside) == (0, "ckpt_dir0/test-2_8.ckpt.outvoted")


def test_a_slice_that_cannot_be_read_is_replaced_for_good():
    (action,) = choose([*plain(0), replace(slice_file(0, problem="refused"), denied=True)]).actions
    assert (action.rank, action.set_aside) == (0, None)


def test_slices_that_are_composed_are_spread_over_the_sources_too():
    """All ranks of equal parity hold the same of ``a``, and pairs of neighbours the same of ``b``."""
    layouts = (Layout("a", (4, 2), ((0,),)), Layout("b", (4, 2), ((1,),)))
    files = (StrategyFile(1, "ckpt_dir1/strategy.ckpt", Strategy((0,), 1, layouts)),)
    slices = [slice_file(rank, names=("a", "b")) for rank in range(8) if rank not in (0, 2)]
    found = choose(slices, {}, change=lambda found: replace(found, strategy_files=files), world_size=8)
    assert [(action.rank, action.source_ranks) for action in found.actions] == [(0, (1, 4)), (2, (3, 6))]


@pytest.mark.parametrize("group", [[0, 1, 2, 3], [0, 1]])
def test_where_rank_lists_and_layouts_contradict_each_other_the_reason_says_what_to_name(group):
    lists = {rank: group if rank in group else [rank] for rank in range(4)}
    lost = [rank for rank in (0, 2) if rank in group]
    reason = choose(plain(*lost), lists, change=cut_by_layouts).ranks[0].reason
    assert (
        ": name the right rank lists with --group-info, or remove the strategy file if it is of another job" in reason
    )
    assert ("nobody of its group" in reason) == (len(group) == 4)


def left_by_rank_0(*parts):
    """Return a change of an inventory: the manifest of the slice of rank 0, with these contents, is left."""
    gone = backed(slice_file(0), "a")
    stated = replace(gone.manifest, digests=Digests("file", parts))
    orphan = OrphanManifest(rank=0, step=STEP, place=gone.place, prefix=gone.prefix, manifest=stated)
    return lambda found: replace(found, orphans=(orphan,))


@pytest.mark.parametrize(
    ("parts", "options", "borrowed"),
    [
        (("p:a", "p:a", "p:a", "p:a"), {}, ()),
        (("p:x", "p:a", "p:a", "p:a"), {}, None),
        (("p:x", "p:a", "p:a", "p:a"), {"tolerate": ("a",)}, ("a",)),
        (("p:x", "p:x", "p:a", "p:a"), {"tolerate": ("a",)}, None),
    ],
    ids=["alike", "differs", "may differ", "one may differ"],
)
def test_a_slice_whose_manifest_states_other_contents_is_no_copy_of_a_source(parts, options, borrowed):
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in (1, 2, 3)]
    found = choose(slices, change=left_by_rank_0(*parts), **options)
    assert [action.borrowed for action in found.actions] == ([borrowed] if borrowed is not None else [])
    said = "rank 2 holds other contents of 'a'" in found.ranks[0].reason
    assert said == (borrowed is None)


def test_a_slice_that_differs_and_is_kept_gives_nothing():
    whole = supply(tree(plain(0), PAIRS))
    holdings = [
        Kept(slice=one.slice, judgement=one.judgement) if rank == 2 else one for rank, one in enumerate(whole.holdings)
    ]
    found = choose_sources(replace(whole, holdings=tuple(holdings)))
    assert "nobody of its group [0, 2] has a sound slice (rank 2 differs, rank 0 missing)" in found.ranks[0].reason
    assert (found.ranks[2].verdict, found.actions) == ("keep", ())
    assert [text.partition(":")[0] for text in found.kept] == ["rank 2, ckpt_dir2/test-2_8.ckpt"]


def test_no_copy_is_put_beside_a_whole_slice_of_the_other_format():
    other = replace(slice_file(0), place=RankPath(("ckpt_dir", "/test-2_8.safetensors")))
    found = choose([*plain(0), other], lost=frozenset((0,)))
    assert found.actions == ()
    assert "ckpt_dir0/test-2_8.safetensors is whole, and ckpt_dir2/test-2_8.ckpt is " in found.ranks[0].reason
