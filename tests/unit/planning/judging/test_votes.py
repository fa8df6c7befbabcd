import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import RankPath
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.slices import ParameterList
from ms_recover.planning.claims.manifest_check import check_contents, check_manifest
from ms_recover.planning.claims.seen_local import NOTHING_SEEN
from ms_recover.planning.claims.tolerance import Tolerance
from ms_recover.planning.judging.votes import count_witnesses, hold_vote
from ms_recover.planning.tree.facts import SliceFacts
from tests.support.inventories import NAMES, STEP, slice_file


def digests(values):
    """Return digests by one letter for each parameter."""
    return Digests(f"file:{values}", tuple(f"p:{value}" for value in values))


def manifest(of, values="aaaa", **changes):
    made = Manifest(
        run_id="run",
        rank=of.rank,
        world_size=8,
        step=of.step,
        cumulative_step=8,
        file=of.path.rpartition("/")[2],
        size=of.size,
        digests=digests(values),
        parameters=of.parameters,
        group=(of.rank,),
    )
    return replace(made, **changes)


def ballot(file, told):
    return SliceFacts(
        file=file,
        path=file.path,
        listed=ParameterList(file.parameters),
        group=(file.rank,),
        digests=told,
        was_read=True,
        manifest_problem=None,
        content_problem=None,
        claimed=False,
        failing=False,
        expected=None,
        state_problem=None,
        is_nan=False,
        seen_local=NOTHING_SEEN,
    )


def ballots(*values, names=NAMES, backed=()):
    made = []
    for rank, value in enumerate(values):
        file = slice_file(rank, names=names)
        if rank in backed:
            file = replace(file, manifest=manifest(file, value))
        made.append(ballot(file, digests(value)))
    return made


def path(rank):
    return f"ckpt_dir{rank}/test-{STEP}.ckpt"


def test_equal_files_agree():
    vote = hold_vote(ballots("aaaa", "aaaa"), Tolerance())
    assert not vote.odd
    assert vote.disagreement is None


def test_the_odd_one_of_three_is_suspected_and_its_parameter_named():
    vote = hold_vote(ballots("aaaa", "axaa", "aaaa"), Tolerance())
    assert set(vote.odd) == {path(1)}
    assert "'b'" in vote.odd[path(1)].reason
    assert "silent corruption" in vote.odd[path(1)].reason


def test_two_that_disagree_settle_nothing_and_the_parameters_are_named():
    vote = hold_vote(ballots("aaaa", "axya"), Tolerance())
    assert not vote.odd
    assert "'b', 'moment1.a'" in vote.disagreement


def test_two_against_two_settle_nothing():
    assert hold_vote(ballots("aaaa", "aaaa", "bbbb", "bbbb"), Tolerance()).disagreement


def test_three_that_all_differ_settle_nothing():
    assert hold_vote(ballots("aaaa", "bbbb", "cccc"), Tolerance()).disagreement


def test_a_plurality_is_no_majority():
    assert hold_vote(ballots("aaaa", "aaaa", "bbbb", "cccc"), Tolerance()).disagreement


def test_a_manifest_settles_even_against_the_majority():
    vote = hold_vote(ballots("aaaa", "xxxx", "xxxx", backed=[0]), Tolerance())
    assert set(vote.odd) == {path(1), path(2)}
    assert "proven by manifest" in vote.odd[path(1)].reason


def test_manifests_on_both_sides_leave_it_to_the_majority():
    assert hold_vote(ballots("aaaa", "xxxx", backed=[0, 1]), Tolerance()).disagreement
    vote = hold_vote(ballots("aaaa", "xxxx", "aaaa", backed=[0, 1, 2]), Tolerance())
    assert set(vote.odd) == {path(1)}


def test_what_may_differ_is_tolerated_and_named():
    names = ("a", "bn.moving_mean", "bn.moving_variance", "c")
    vote = hold_vote(ballots("axya", "auva", names=names), Tolerance())
    assert vote.disagreement is None
    assert vote.tolerated == ("bn.moving_mean", "bn.moving_variance")
    more = hold_vote(ballots("axya", "auvz", names=names), Tolerance.with_more(["c"]))
    assert more.tolerated == ("bn.moving_mean", "bn.moving_variance", "c")
    assert hold_vote(ballots("axya", "auvz", names=names), Tolerance()).disagreement


def test_equal_parameters_in_different_files_are_no_agreement():
    one, other = ballots("aaaa", "aaaa")
    other = replace(other, digests=replace(other.digests, file="file:other"))
    assert "outside of them" in hold_vote([one, other], Tolerance()).disagreement


def in_any_order(*values, ending=".safetensors"):
    """Return ballots of which each file differs outside of the parameters, as by the order of its metadata."""
    made = []
    for rank, value in enumerate(values):
        place = RankPath(("ckpt_dir", f"/test-{STEP}{ending}"))
        told = replace(digests(value), file=f"file:{value}, its own order {rank}")
        made.append(ballot(replace(slice_file(rank), place=place), told))
    return made


def test_safetensors_files_with_equal_parameters_agree_in_whatever_order_their_metadata_are():
    vote = hold_vote(in_any_order("aaaa", "aaaa"), Tolerance())
    assert (vote.disagreement, vote.odd, vote.tolerated) == (None, {}, ())
    vote = hold_vote(in_any_order("aaaa", "aaaa", "axaa"), Tolerance())
    assert vote.disagreement is None
    assert set(vote.odd) == {f"ckpt_dir2/test-{STEP}.safetensors"}


def test_safetensors_files_with_other_parameters_do_not_agree():
    vote = hold_vote(in_any_order("aaaa", "axaa"), Tolerance())
    assert "hold different contents in 'b'" in vote.disagreement


def test_only_safetensors_files_have_their_metadata_in_any_order():
    assert "differ outside of them" in hold_vote(in_any_order("aaaa", "aaaa", ending=".ckpt"), Tolerance()).disagreement
    mixed = [*in_any_order("aaaa"), *in_any_order("aaaa", "aaaa", "aaaa", ending=".ckpt")[1:]]
    assert "differ outside of them" in hold_vote(mixed, Tolerance()).disagreement


def test_slices_of_different_formats_with_equal_parameters_agree():
    mixed = [*in_any_order("aaaa"), in_any_order("aaaa", "aaaa", ending=".ckpt")[1]]
    assert hold_vote(mixed, Tolerance()).disagreement is None


def test_manifests_are_held_against_name_place_and_header():
    file = slice_file(3)

    def told(**changes):
        return check_manifest(replace(file, manifest=manifest(file, **changes)), 8, (3,))

    assert told() is None
    assert check_manifest(file, 8, (3,)) is None
    assert "rank 2" in told(rank=2)
    assert "renamed" in told(step=replace(STEP, epoch=1))
    assert "other.ckpt" in told(file="other.ckpt")
    assert "16 ranks" in told(world_size=16)
    assert "bytes" in told(size=1)
    assert "[3, 7]" in told(group=(3, 7))
    assert "'global_step'" in told(parameters=file.parameters[:-1])


def test_contents_are_held_against_the_manifest():
    file = slice_file(3)
    file = replace(file, manifest=manifest(file, "aaaa"))
    assert check_contents(file, Contents()) is None
    assert check_contents(file, Contents({file.path: digests("aaaa")})) is None
    assert "'b'" in check_contents(file, Contents({file.path: digests("axaa")}))
    assert check_contents(file, Contents(problems={file.path: "cannot be read"})) == "cannot be read"
    outside = replace(digests("aaaa"), file="file:z")
    assert "outside" in check_contents(file, Contents({file.path: outside}))


def test_slices_of_different_formats_are_compared_by_the_names_of_parameters():
    place = RankPath(("ckpt_dir", f"/test-{STEP}.safetensors"))
    turned = replace(slice_file(2, names=NAMES[::-1]), place=place)
    alike = ballot(turned, replace(digests("dcba"), file="file:2"))
    vote = hold_vote([*ballots("abcd", "abcd"), alike], Tolerance())
    assert (vote.disagreement, vote.odd, vote.tolerated) == (None, {}, ())
    vote = hold_vote([*ballots("abcd", "abcd"), ballot(turned, replace(digests("dcxa"), file="file:2"))], Tolerance())
    assert set(vote.odd) == {turned.path}
    assert "'b'" in vote.odd[turned.path].reason


@given(
    values=st.lists(st.sampled_from(["aaaa", "axaa", "aaxa"]), min_size=2, max_size=6),
    backed=st.sets(st.integers(0, 5), max_size=2),
    links=st.lists(st.integers(0, 5), max_size=3),
)
def test_corruption_is_suspected_only_by_a_manifest_or_a_majority_of_independent_replicas(values, backed, links):
    made = ballots(*values, backed=backed)
    inode = {rank: rank for rank in range(len(made))}
    for one, other in itertools.pairwise(links):
        if max(one, other) < len(made) and values[one] == values[other]:
            inode[one] = inode[other]
    made = [replace(one, file=replace(one.file, inode=(1, inode[one.rank]))) for one in made]
    vote = hold_vote(made, Tolerance())
    suspected = [path_ for path_, lost in vote.odd.items() if "silent corruption" in lost.reason]
    assert suspected == list(vote.odd)
    if not suspected:
        return
    proven = {values[one.rank] for one in made if one.proven}
    winners = {values[one.rank] for one in made if one.path in vote.winners}
    independent = Counter(values[rank] for rank in {inode[one.rank]: one.rank for one in made}.values())
    assert len(winners) == 1
    if proven != winners:
        assert len(proven) != 1
        (winner,) = winners
        assert independent[winner] > 1
        assert 2 * independent[winner] > independent.total()


@pytest.mark.parametrize(
    ("values", "backed", "reason"),
    [
        (("aaaa", "axaa", "aaaa"), (), f"'b' differs from {path(0)} = {path(2)} (2 of 3 holders): suspect of silent"),
        (("aaaa", "axya", "aaaa"), (), f"'b', 'moment1.a' differ from {path(0)} = {path(2)} (2 of 3 holders): "),
        (("aaaa", "axaa"), (0,), f"'b' differs from {path(0)} (proven by manifest): suspect of silent corruption"),
    ],
)
def test_the_reason_says_where_and_who_differs_and_why_these_are_right(values, backed, reason):
    vote = hold_vote(ballots(*values, backed=backed), Tolerance())
    assert vote.odd[path(1)].reason.startswith(reason)


def test_slices_whose_parameters_were_not_read_agree_as_whole_files_or_not_at_all():
    def of_files(*names):
        return [ballot(slice_file(rank), Digests(name, ())) for rank, name in enumerate(names)]

    vote = hold_vote(of_files("x", "x"), Tolerance())
    assert (vote.disagreement, vote.agreeing, vote.winners) == (None, 2, {path(0), path(1)})
    vote = hold_vote(of_files("x", "y"), Tolerance())
    assert vote.disagreement == f"{path(0)} and {path(1)} differ, and their parameters cannot be read to compare them"
    mixed = [*ballots("aaaa"), of_files("x", "y")[1]]
    assert "cannot be read to compare them" in hold_vote(mixed, Tolerance()).disagreement


@pytest.mark.parametrize(
    ("source", "host", "independent"),
    [(path(0), None, False), (path(0), "node1:80", True), ("elsewhere.ckpt", None, True)],
    ids=["a copy", "a copy of another node's", "a copy of another slice"],
)
def test_a_copy_is_no_witness_for_its_source(source, host, independent):
    """With it the two would be more than the third."""
    one, copied, other = ballots("aaaa", "aaaa", "axaa")
    made = Provenance(kind="copied", evidence="structure", sources=(ProvenanceSource(0, source, host),))
    file = replace(copied.file, manifest=manifest(copied.file, provenance=made))
    copied = ballot(file, copied.digests)
    vote = hold_vote([one, copied, other], Tolerance())
    assert (vote.disagreement is None) == independent
    assert count_witnesses([one, copied]) == (2 if independent else 1)
    assert count_witnesses([copied]) == 1
    assert count_witnesses([]) == 0
