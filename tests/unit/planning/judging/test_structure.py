from dataclasses import replace

import pytest

from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.judging.structure import compare_structure, is_misread, list_the_same
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, parameters, slice_file, tree
from tests.unit.planning.test_contents import digests
from tests.unit.planning.test_recovered import backed

PAIRS = {0: [0, 2], 1: [1, 3]}


def compare(slices):
    return compare_structure(gather_facts(tree(slices, PAIRS)).counted)


def damaged(slices):
    return set(compare(slices).damaged)


def test_equal_slices_are_fine():
    findings = compare([slice_file(rank) for rank in range(4)])
    assert not findings.damaged
    assert not findings.conflicts


@pytest.mark.parametrize("kept", range(1, len(NAMES)))
def test_cut_at_any_record_boundary_shows_by_the_peer(kept):
    slices = [slice_file(0, names=NAMES[:kept]), slice_file(1), slice_file(2), slice_file(3)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_without_a_peer_it_shows_by_the_same_ranks_other_steps():
    slices = [slice_file(0, names=NAMES[:2]), slice_file(0, OLDER)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_another_run_of_the_same_rank_is_no_evidence():
    assert not damaged([slice_file(0, names=NAMES[:2]), slice_file(0, OLDER, prefix="test_1")])


def test_without_either_it_shows_by_the_other_ranks_of_the_step():
    assert damaged([slice_file(0, names=NAMES[:2]), slice_file(1), slice_file(3)]) == {"ckpt_dir0/test-2_8.ckpt"}


def test_something_appended_to_some_older_slices_condemns_no_newer_one():
    longer = [slice_file(rank, OLDER, names=(*NAMES, "extra")) for rank in (0, 1)]
    slices = [*longer, *(slice_file(rank, OLDER) for rank in (2, 3)), *(slice_file(rank) for rank in range(4))]
    assert not {path for path in damaged(slices) if "2_8" in path}


def test_both_members_cut_alike_show_by_the_other_groups():
    cut = [slice_file(rank, names=NAMES[:3]) for rank in (0, 2)]
    assert damaged([*cut, slice_file(1), slice_file(3)]) == {"ckpt_dir0/test-2_8.ckpt", "ckpt_dir2/test-2_8.ckpt"}


def test_one_rank_that_appends_something_does_not_condemn_the_other_groups():
    slices = [
        slice_file(0, names=(*NAMES, "extra")),
        slice_file(2, names=(*NAMES, "extra")),
        slice_file(1),
        slice_file(3),
    ]
    assert not damaged([*slices, slice_file(4), slice_file(5)])


def test_pipeline_stages_with_other_parameters_are_fine():
    slices = [slice_file(rank, names=("a", "s")) for rank in (0, 2)] + [
        slice_file(rank, names=("b", "s")) for rank in (1, 3)
    ]
    findings = compare(slices)
    assert not findings.damaged
    assert not findings.conflicts


def test_a_flipped_name_makes_the_odd_one_damaged():
    odd = ("a", "B", "moment1.a", "global_step")  # one bit from "b"
    slices = [slice_file(0, names=odd), slice_file(1), slice_file(2), slice_file(3)]
    findings = compare(slices)
    assert set(findings.damaged) == {"ckpt_dir0/test-2_8.ckpt"}
    assert "'B'" in findings.damaged["ckpt_dir0/test-2_8.ckpt"]
    assert not findings.conflicts


def test_two_that_differ_with_nobody_to_settle_it_are_a_conflict():
    findings = compare([slice_file(0, shape=(4,)), slice_file(2, shape=(2, 2))])
    assert not findings.damaged
    assert ((0, 2), STEP) in findings.conflicts
    assert not findings.deduplicated


def test_history_settles_a_difference_in_shape():
    slices = [slice_file(0, shape=(2, 2)), slice_file(2), slice_file(2, OLDER), slice_file(0, OLDER)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_deduplicated_slices_are_recognised():
    one, other = ("a", "global_step"), ("b", "moment1.a")
    slices = [slice_file(rank, names=one if rank < 2 else other) for rank in range(4)]
    findings = compare(slices)
    assert STEP in findings.deduplicated
    assert not findings.damaged


def test_a_deduplicated_slice_alone_of_its_kind_is_not_damaged():
    one, other = ("a", "c", "global_step"), ("b", "d", "global_step")
    slices = [slice_file(1, names=one), slice_file(2, names=other), slice_file(3, names=other)]
    findings = compare(slices)
    assert not findings.damaged
    assert STEP in findings.deduplicated


def test_names_that_differ_in_one_letter_are_other_parameters():
    one, other = ("layer1", "global_step"), ("layer2", "global_step")
    slices = [slice_file(1, names=one), slice_file(2, names=other), slice_file(3, names=other)]
    assert not compare(slices).damaged


def test_a_slice_that_was_cut_does_not_condemn_the_ranks_other_step():
    slices = [slice_file(rank, step) for rank in range(3) for step in (OLDER, STEP)]
    slices = [*slices, slice_file(3, OLDER), slice_file(3, names=NAMES[:2])]
    alone = {rank: [rank] for rank in range(4)}
    found = compare_structure(gather_facts(tree(slices, alone)).counted)
    assert set(found.damaged) == {"ckpt_dir3/test-2_8.ckpt"}


def test_a_slice_with_the_list_of_another_stage_is_damaged_where_its_replicas_have_the_usual_one():
    first, second = ("a", "s"), ("b", "s")
    slices = [slice_file(rank, OLDER, names=second if rank % 2 else first) for rank in range(4)]
    slices += [slice_file(rank, names=second if rank else first) for rank in range(4) if rank != 1]
    slices += [slice_file(1, names=second)]
    found = compare(slices)
    assert set(found.damaged) == {"ckpt_dir2/test-2_8.ckpt"}
    assert not found.deduplicated


def test_a_slice_with_the_list_of_another_stage_is_damaged_where_its_replica_had_the_usual_one():
    """The slice of the replica is lost, and the two steps of the rank list different parameters."""
    first, second = ("a", "s"), ("b", "s")
    slices = [slice_file(rank, OLDER, names=second if rank % 2 else first) for rank in range(4)]
    slices += [slice_file(rank, names=second) for rank in (1, 2, 3)]
    assert damaged(slices) == {"ckpt_dir2/test-2_8.ckpt"}


OF_STAGES = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}


def damaged_of_stages(slices):
    return set(compare_structure(gather_facts(tree(slices, OF_STAGES)).counted, Stages(devices=2)).damaged)


def test_a_rank_whose_replica_is_gone_does_not_have_the_list_of_other_stages():
    slices = [slice_file(rank, step, names=("a", "s")) for rank in (0, 1) for step in (OLDER, STEP)]
    slices += [slice_file(3, OLDER, names=("b", "s")), slice_file(3, names=("a", "s"))]
    assert damaged_of_stages(slices) == {"ckpt_dir3/test-2_8.ckpt"}


def test_an_odd_older_slice_does_not_condemn_the_list_of_its_own_stage():
    slices = [slice_file(rank, step, names=("a", "s")) for rank in (0, 1) for step in (OLDER, STEP)]
    slices += [slice_file(2, step, names=("b", "s")) for step in (OLDER, STEP)]
    slices += [slice_file(3, OLDER, names=("c", "s")), slice_file(3, names=("b", "s"))]
    assert damaged_of_stages(slices) == {"ckpt_dir3/test-1_8.ckpt"}


@pytest.mark.parametrize(
    ("names", "ckpt", "safetensors"),
    [
        (NAMES, True, True),
        (NAMES[::-1], False, True),
        (NAMES[1:], False, False),
        ((*NAMES, "more"), False, False),
        ((*NAMES[1:], "more"), False, False),
    ],
    ids=["the same", "in another order", "one fewer", "one more", "another one"],
)
def test_the_order_of_parameters_counts_but_for_safetensors(names, ckpt, safetensors):
    one, other = gather_facts(tree([slice_file(0), slice_file(1, names=names)], {})).counted_at(STEP)
    assert list_the_same(one, other) is ckpt
    place = replace(other.file.place, parts=(other.file.place.parts[0], f"/test-{STEP}.safetensors"))
    loose = gather_facts(tree([slice_file(0), replace(other.file, place=place)], {})).counted_at(STEP)
    assert list_the_same(*loose) is safetensors
    assert list_the_same(*loose[::-1]) is safetensors


@pytest.mark.parametrize(
    ("theirs", "misread"),
    [
        (parameters(), True),
        (parameters(shape=(2, 2)), True),
        (parameters(("c", *NAMES[1:])), True),
        (parameters(("d", *NAMES[1:])), False),
        (parameters(("aa", *NAMES[1:])), False),
        (parameters(("c", "c", *NAMES[2:])), False),
        (parameters(NAMES[1:]), False),
        ((replace(parameters()[0], name="c", dtype="Int32"), *parameters()[1:]), False),
        ((replace(parameters()[0], name="c", shape=(2, 2)), *parameters()[1:]), False),
    ],
    ids=["same", "shapes", "one bit", "two bits", "longer", "two names", "fewer", "and a type", "and a shape"],
)
def test_a_list_is_misread_where_one_bit_of_a_name_or_shapes_alone_differ(theirs, misread):
    """The names ``a`` and ``c`` differ in one bit, ``a`` and ``d`` in two."""
    assert is_misread(parameters(), theirs) is misread


ALONE = {rank: [rank] for rank in range(5)}
FIRST, SECOND = ("a", "s"), ("b", "s")
STEPS = [STEP, OLDER, Step(1, 7), Step(1, 6)]


def found(slices, lists=PAIRS, stages=None, known=NOTHING_READ):
    return compare_structure(gather_facts(tree(slices, lists), contents=known).counted, stages)


def numbered(paths):
    """Return rank and step of slices by their paths."""
    return {(int(name[8]), STEPS.index(parse_step(name))) for name in paths}


def parse_step(name):
    return next(step for step in STEPS if f"-{step}." in name)


def shaped(*by_step, change=lambda file: file):
    """Return slices by rank, of several steps, the newest first: ``x`` and ``y`` are lists with two shapes."""
    shapes = {"x": (4,), "y": (2, 2)}
    return [
        change(slice_file(rank, step, shape=shapes[letter]))
        for step, letters in zip(STEPS, by_step, strict=False)
        for rank, letter in enumerate(letters)
        if letter in shapes
    ]


@pytest.mark.parametrize(
    ("steps", "damaged"),
    [
        (["x", "y", "y"], {(0, 0)}),
        (["x", "y"], set()),
        (["xy", "y"], {(0, 0)}),
        (["x", "x", "y", "y"], set()),
        (["xxyyy", "yyyyy"], {(0, 0), (1, 0)}),
        (["xxyy", "yyyy"], set()),
        (["xxy", "yyy"], set()),
    ],
    ids=["twice before", "once", "and another here", "both at several steps", "fewer here", "as many", "more here"],
)
def test_a_list_that_is_new_to_a_rank_is_odd_where_its_usual_one_is_common(steps, damaged):
    findings = found(shaped(*steps), ALONE)
    assert numbered(findings.damaged) == damaged
    for reason in findings.damaged.values():
        assert "does not list the parameters of ckpt_dir" in reason
        assert "'a' is Float32[4] in the first, Float32[2, 2] in the second" in reason


@pytest.mark.parametrize("originals", [1, 2])
def test_a_copy_is_no_witness_for_the_list_of_its_source_alone(originals):
    """Rank 0 has copies of the slice of another rank at two steps; the list counts where several ranks saved it."""

    def copied(file):
        return backed(file, "a", run="", origin="recovered from rank 1 (x), by vote") if not file.rank else file

    slices = [*shaped("x"), *shaped("", "y", "y", change=copied), slice_file(1, STEPS[2], shape=(2, 2))]
    slices += [slice_file(2, STEPS[2], shape=(2, 2))] if originals == 2 else []
    assert numbered(found(slices, ALONE).damaged) == ({(0, 0)} if originals == 2 else set())


def listing(by_rank, step=STEP):
    return [slice_file(rank, step, names=names) for rank, names in by_rank.items()]


@pytest.mark.parametrize(
    ("older", "damaged"),
    [
        ({0: FIRST, 2: FIRST, 1: SECOND}, {(2, 0)}),
        ({2: FIRST, 1: SECOND}, set()),
        ({0: ("c", "s"), 2: FIRST, 1: SECOND}, set()),
    ],
    ids=["its replica had the usual one", "no replica", "its replica had another"],
)
def test_of_two_with_one_list_one_is_anothers_where_its_rank_list_has_another_one(older, damaged):
    findings = found([*listing({1: SECOND, 2: SECOND}), *listing(older, OLDER)])
    assert numbered(path for path in findings.damaged if "2_8" in path) == damaged


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("here", [True, False])
def test_a_slice_with_the_bytes_and_the_list_of_another_is_its_slice_where_a_third_has_the_usual_list(copied, here):
    slices = listing({0: FIRST, 1: SECOND, 2: SECOND} if here else {1: SECOND, 2: SECOND})
    known = Contents({file.path: digests("b" if copied else file.path) for file in slices})
    findings = found([*slices, *listing({2: FIRST}, OLDER)], ALONE, known=known)
    assert numbered(findings.damaged) == ({(2, 0)} if copied and here else set())


def test_a_slice_that_was_cut_off_before_shows_nothing_about_the_list_of_a_rank():
    slices = [*listing({1: NAMES, 2: NAMES}), *listing({1: NAMES, 0: NAMES[:2], 2: NAMES[:2]}, OLDER)]
    assert numbered(found(slices).damaged) == {(0, 1), (2, 1)}


def test_a_list_that_other_stages_have_as_well_is_no_mark_of_a_stage():
    stages = Stages(devices=2)
    slices = listing({0: FIRST, 1: FIRST, 3: FIRST})
    older = {0: FIRST, 1: FIRST, 3: SECOND}
    assert numbered(found([*slices, *listing(older, OLDER)], OF_STAGES, stages).damaged) == {(3, 0)}
    mixed = [*slices, *listing(older, OLDER), *listing({1: SECOND}, Step(1, 7))]
    assert (3, 0) not in numbered(found(mixed, OF_STAGES, stages).damaged)


def test_damaged_and_encrypted_slices_are_passed_over():
    for changes in ({"problem": "cut"}, {"encryption": "AES-GCM"}):
        slices = [replace(slice_file(0, names=NAMES[:2]), **changes), *(slice_file(rank) for rank in (1, 2, 3))]
        assert found(slices).damaged == {}


def of_run(rank, run, step=STEP, names=NAMES, **changes):
    return backed(slice_file(rank, step, names=names, **changes), "a", run=run)


def test_slices_of_different_runs_are_not_compared():
    slices = [of_run(0, "old", names=NAMES[:2]), *(of_run(rank, "new") for rank in (1, 2, 3))]
    assert found(slices).damaged == {}


@pytest.mark.parametrize("named", ["here", "elsewhere"])
def test_slices_without_manifest_join_the_run_of_most_slices_of_their_step_or_of_all(named):
    run_at = STEP if named == "here" else OLDER
    slices = [slice_file(0, names=NAMES[:2]), *(of_run(rank, "new", run_at) for rank in (1, 2, 3))]
    slices += [of_run(0, "old", run_at, prefix="other")]
    assert numbered(found(slices).damaged) == {(0, 0)}


def test_a_conflict_in_another_run_damages_its_slices_and_blocks_no_step():
    old = [of_run(0, "old", shape=(2, 2)), of_run(2, "old")]
    others = [of_run(1, "old", names=("x", "y")), *(of_run(rank, "new", prefix="test_1") for rank in range(4))]
    findings = found([*old, *others])
    assert findings.conflicts == {}
    assert set(findings.damaged) == {file.path for file in old}
    findings = found(old)
    assert (list(findings.conflicts), findings.damaged) == ([((0, 2), STEP)], {})


@pytest.mark.parametrize(
    ("first", "second", "local", "differ"),
    [
        (("a", "own1"), ("a", "own2"), ("own1", "own2"), False),
        (("a", "own1"), ("a", "own2"), (), True),
        (("a", "own1"), ("b", "own2"), ("own1", "own2"), True),
        (("own1", "a"), ("a",), ("own1",), False),
    ],
    ids=["rank-local", "not recorded", "more than these", "one has it"],
)
def test_replicas_may_list_other_rank_local_parameters(first, second, local, differ):
    training = TrainingRecord(1000, None, 100, rank_local=local)
    slices = [
        backed(slice_file(rank, names=names), "a", training=training) for rank, names in ((0, first), (2, second))
    ]
    findings = found(slices)
    assert bool(findings.conflicts) is differ
    assert bool(findings.deduplicated) is differ
    assert findings.damaged == {}
