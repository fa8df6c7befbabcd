"""Each rule of judging: a slice that it decides, and one that looks alike and is sound."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import RankPath, StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices, judge_step
from ms_recover.planning.judging.judgement import Case
from ms_recover.planning.judging.rules import RULES
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, parameters, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, TRIPLES, backed, contents, digests

UNCHANGED = "unchanged since its manifest was written, which rests on"
RECOVERED = "recovered from rank 2 (ckpt_dir2/test-2_8.safetensors), by manifest"


def judge(inventory, known=NOTHING_READ, *, options=DEFAULT_PLAN, run_id=None, sealing=False):
    """Return for each path of the step the rule that decided it, and the judgement; rule by rule, as `judge_step`."""
    compared = compare_slices(gather_facts(inventory, options, known))
    run = next(run for run in runs_of(compared.facts, STEP) if run_id is None or run.run_id == run_id)
    slices = compared.facts.counted_at(STEP)
    judged, by = {}, {}
    for rule in RULES:
        pending = tuple(one for one in slices if one.path not in judged)
        case = Case(
            compared=compared, step=STEP, run=run, sealing=sealing, slices=slices, pending=pending, judged=judged
        )
        ruling = rule.judge(case)
        judged |= ruling.slices
        by |= dict.fromkeys(ruling.slices, rule.name)
    assert judged == judge_step(compared, STEP, run, sealing=sealing).slices
    return {path: (by[path], judged[path]) for path in judged}


def decided(inventory, known=NOTHING_READ, **how):
    """Return for each path that is not sound the rule that decided it, and the status."""
    found = judge(inventory, known, **how)
    return {path: (rule, one.status) for path, (rule, one) in found.items() if one.status != "sound"}


def path(rank, name="test-2_8.ckpt"):
    return f"ckpt_dir{rank}/{name}"


def plain(*without):
    return [slice_file(rank) for rank in range(4) if rank not in without]


def all_backed(*without, **changes):
    return [backed(slice_file(rank), "ab"[rank % 2], **changes) for rank in range(4) if rank not in without]


def in_safetensors(file, **changes):
    return replace(file, place=RankPath(("ckpt_dir", "/test-2_8.safetensors")), **changes)


def test_every_rule_has_a_name_a_reason_and_a_test_of_its_own():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule.name
        assert rule.reason.endswith(".")
        prefix = f"test_rule_{rule.name.replace(' ', '_')}_"
        assert [test for test in globals() if test.startswith(prefix)], f"{rule.name!r} has no test"


def test_every_slice_is_decided_by_some_rule():
    slices = [*plain(1, 3), slice_file(1, problem="cut"), slice_file(3, prefix="test_1"), slice_file(3)]
    assert set(judge(tree(slices, PAIRS))) == {file.path for file in slices}


def test_rule_unreadable_decides_a_slice_that_may_not_be_opened():
    refused = slice_file(0, problem="permission denied")
    found = judge(tree([replace(refused, denied=True), *plain(0)], PAIRS))
    assert (found[path(0)][0], found[path(0)][1].status) == ("unreadable", "unreadable")
    assert found[path(0)][1].reason == "permission denied"
    assert decided(tree([refused, *plain(0)], PAIRS)) == {path(0): ("damaged", "damaged")}


def test_rule_unreadable_leaves_a_slice_whose_manifest_alone_is_broken():
    slices = [replace(slice_file(0), manifest_problem="is no JSON"), *plain(0)]
    assert decided(tree(slices, PAIRS)) == {}


def test_rule_another_run_decides_a_slice_whose_manifest_names_one():
    slices = [*all_backed(3, run="new"), backed(slice_file(3), "b", run="old")]
    assert decided(tree(slices, PAIRS)) == {path(3): ("another run", "foreign")}


def test_rule_another_run_decides_a_slice_under_the_prefix_of_another_network():
    slices = [*plain(), slice_file(3, prefix="other")]
    assert decided(tree(slices, PAIRS)) == {path(3, "other-2_8.ckpt"): ("another run", "foreign")}


def test_rule_another_run_leaves_a_rerun_suffix_that_one_rank_alone_has():
    assert decided(tree([*plain(3), slice_file(3, prefix="test_1")], PAIRS)) == {}
    slices = [*all_backed(3), backed(slice_file(3, prefix="test_1"), "b")]
    assert decided(tree(slices, PAIRS)) == {}


def test_rule_damaged_decides_broken_headers_lists_manifests_and_contents():
    damaged = {path(0): ("damaged", "damaged")}
    assert decided(tree([slice_file(0, problem="cut"), *plain(0)], PAIRS)) == damaged
    assert decided(tree([slice_file(0, names=NAMES[:2]), *plain(0)], PAIRS)) == damaged
    assert decided(tree([backed(slice_file(0), "a", size=7), *all_backed(0)], PAIRS)) == damaged
    assert decided(tree(all_backed(), PAIRS), contents(r0="x")) == damaged


def test_rule_damaged_names_the_parameters_that_are_still_those_of_the_manifest():
    known = contents(r0="x")
    known.digests[path(0)] = Digests("file:x", ("p:a", "p:x", "p:a", "p:a"))
    judgement = judge(tree(all_backed(), PAIRS), known)[path(0)][1]
    assert judgement.good == frozenset(NAMES) - {"b"}
    assert "'b'" in judgement.reason


def test_rule_damaged_leaves_contents_that_are_those_of_the_manifest():
    assert decided(tree(all_backed(), PAIRS), contents(r0="a", r1="b", r2="a", r3="b")) == {}


def test_rule_damaged_leaves_a_pipeline_stage_that_lists_fewer_parameters():
    slices = [slice_file(rank, names=NAMES if rank % 2 else ("x", "y")) for rank in range(4)]
    assert decided(tree(slices, PAIRS)) == {}


def test_rule_replaced_decides_the_slice_beside_one_recovered_in_the_other_format():
    others = [in_safetensors(slice_file(rank)) for rank in range(3)]
    recovered = backed(in_safetensors(slice_file(3)), "b", run="", origin=RECOVERED)
    for old in (slice_file(3), slice_file(3, problem="cut")):
        inventory = tree([*others, old, recovered], PAIRS)
        assert decided(inventory) == {path(3): ("replaced", "replaced")}


def test_rule_replaced_leaves_formats_that_differ_from_rank_to_rank():
    others = [slice_file(rank) for rank in range(3)]
    recovered = backed(in_safetensors(slice_file(3)), "b", run="", origin=RECOVERED)
    assert decided(tree([*others, recovered], PAIRS)) == {}


def test_rule_replaced_leaves_the_choice_to_the_operator_who_asks_for_the_newest():
    others = [in_safetensors(slice_file(rank)) for rank in range(3)]
    recovered = backed(in_safetensors(slice_file(3)), "b", run="", origin=RECOVERED)
    inventory = tree([*others, slice_file(3, mtime=9), recovered], PAIRS)
    rules = {rule for rule, _ in judge(inventory, options=PlanOptions(newest=True)).values()}
    assert "replaced" not in rules


def test_rule_uncommitted_decides_a_slice_without_manifest_of_a_run_that_writes_them():
    assert decided(tree([slice_file(0), *all_backed(0)], PAIRS)) == {path(0): ("uncommitted", "uncommitted")}


def test_rule_uncommitted_decides_a_whole_step_when_another_step_of_its_prefix_is_committed():
    older = [backed(slice_file(rank, OLDER), "ab"[rank % 2]) for rank in range(4)]
    inventory = tree([*plain(), *older], PAIRS)
    assert set(decided(inventory).values()) == {("uncommitted", "uncommitted")}
    assert decided(inventory, sealing=True) == {}


def test_rule_uncommitted_leaves_a_slice_without_manifest_where_others_were_sealed():
    inventory = tree([slice_file(0), *all_backed(0, origin="sealed by vote")], PAIRS)
    assert decided(inventory, contents(r0="a", r2="a")) == {}


def test_rule_doubles_decides_two_slices_of_one_rank():
    slices = [*plain(), slice_file(0, prefix="test_1")]
    two = {path(0), path(0, "test_1-2_8.ckpt")}
    assert decided(tree(slices, PAIRS)) == dict.fromkeys(two, ("doubles", "ambiguous"))


def test_rule_doubles_lets_the_one_with_a_manifest_count():
    sealed = all_backed(origin="sealed by vote")
    found = decided(tree([*sealed, slice_file(0, prefix="test_1")], PAIRS))
    assert found == {path(0, "test_1-2_8.ckpt"): ("doubles", "superseded")}


def test_rule_doubles_leaves_two_slices_of_different_steps_and_a_damaged_second_one():
    older = [slice_file(rank, OLDER) for rank in range(4)]
    assert decided(tree([*plain(), *older], PAIRS)) == {}
    damaged = slice_file(0, prefix="test_1", problem="cut")
    found = decided(tree([*plain(), damaged], PAIRS))
    assert found == {damaged.path: ("damaged", "damaged")}


def test_rule_dealt_out_calls_slices_sound_that_share_no_parameter():
    one, other = ("a", "global_step"), ("b", "moment1.a")
    slices = [slice_file(rank, names=one if rank < 2 else other) for rank in range(4)]
    found = judge(tree(slices, PAIRS))
    assert {(rule, judgement.status) for rule, judgement in found.values()} == {("dealt out", "sound")}


def test_rule_dealt_out_leaves_pipeline_stages_with_parameters_of_their_own():
    one, other = ("a", "global_step"), ("b", "moment1.a")
    slices = [slice_file(rank, names=(one, other)[rank % 2]) for rank in range(4)]
    found = judge(tree(slices, PAIRS))
    assert {(rule, judgement.status) for rule, judgement in found.values()} == {("contents", "sound")}


def test_rule_conflicting_lists_decides_replicas_of_other_shapes():
    slices = [slice_file(0, shape=(2, 2)), *plain(0)]
    undecided = ("conflicting lists", "undecided")
    assert decided(tree(slices, PAIRS)) == {path(0): undecided, path(2): undecided}


def test_rule_conflicting_lists_leaves_other_shapes_in_another_group():
    slices = [slice_file(rank, shape=(2, 2) if rank % 2 else (4,)) for rank in range(4)]
    assert decided(tree(slices, PAIRS)) == {}


def under(rank, strategy, step=STEP, **changes):
    return backed(slice_file(rank, step), "ab"[rank % 2], strategy_digest=strategy, **changes)


def test_rule_another_layout_decides_the_one_of_three_that_names_another_strategy_file():
    slices = [under(rank, "s" if rank != 2 else "t", pairs=False, world_size=6) for rank in range(6)]
    assert decided(tree(slices, TRIPLES)) == {path(2): ("another layout", "foreign")}


def test_rule_another_layout_decides_a_slice_unlike_its_own_other_steps():
    slices = [under(rank, "s" if rank != 2 else "t") for rank in range(4)]
    older = [under(rank, "s", OLDER) for rank in range(4)]
    assert decided(tree([*slices, *older], PAIRS)) == {path(2): ("another layout", "foreign")}


def test_rule_another_layout_leaves_one_of_each_and_stages_with_files_of_their_own():
    assert decided(tree([under(rank, "s" if rank != 2 else "t") for rank in range(4)], PAIRS)) == {}
    assert decided(tree([under(rank, "st"[rank % 2]) for rank in range(4)], PAIRS)) == {}


GROUP = {rank: [0, 1, 2, 3] for rank in range(4)}


def of_one_group(file, value, **changes):
    return backed(file, value, group=(0, 1, 2, 3), origin="sealed by vote", **changes)


def test_rule_unlike_a_manifest_decides_a_slice_that_lists_other_parameters():
    """Its list is that of the run that most manifests name, and is wrong for the other one."""
    slices = [of_one_group(slice_file(0, names=("x", "y")), "f", run="other"), of_one_group(slice_file(1), "a", run="")]
    inventory = tree([*slices, slice_file(2)], GROUP)
    known = contents(r2="a")
    found = decided(inventory, known, run_id="other")
    assert found[path(2)] == ("unlike a manifest", "suspect")
    assert path(2) not in decided(inventory, known, run_id="")


def test_rule_unlike_a_manifest_leaves_the_same_parameters_in_the_order_of_another_format():
    turned = in_safetensors(slice_file(2), parameters=parameters(NAMES[::-1]))
    inventory = tree([*(of_one_group(slice_file(rank), "a") for rank in (0, 1, 3)), turned], GROUP)
    known = contents()
    known.digests[turned.path] = digests("a")
    assert decided(inventory, known) == {}


def test_rule_contents_decides_the_outvoted_and_the_tied():
    six = tree([slice_file(rank) for rank in range(6)], TRIPLES)
    known = contents(r0="a", r2="x", r4="a", r1="b", r3="b", r5="b")
    assert decided(six, known) == {path(2): ("contents", "suspect")}
    tied = decided(tree(plain(), PAIRS), contents(r0="a", r2="x", r1="b", r3="b"))
    assert tied == {path(0): ("contents", "undecided"), path(2): ("contents", "undecided")}


def test_rule_contents_decides_a_slice_that_holds_another_groups_bytes():
    found = decided(tree(plain(), PAIRS), contents(r0="b", r1="b", r2="a", r3="b"))
    assert found == {path(0): ("contents", "suspect")}


def test_rule_contents_decides_a_lone_slice_that_sealing_passed_over_unless_it_seals_again():
    inventory = tree([slice_file(2), *all_backed(0, 2, origin="sealed by vote")], PAIRS)
    assert decided(inventory, contents(r2="a")) == {path(2): ("contents", "uncommitted")}
    assert decided(inventory, contents(r2="a"), sealing=True) == {}


def test_rule_contents_leaves_replicas_that_differ_as_they_may_and_names_the_parameters():
    names = ("a", "moving_mean", "c", "d")
    known = contents()
    for rank in range(2):
        known.digests[path(rank)] = Digests(f"file:{rank}", ("p", str(rank), "p", "p"))
    found = judge(tree([slice_file(rank, names=names) for rank in range(2)], {0: [0, 1], 1: [0, 1]}), known)
    assert {judgement.status for _, judgement in found.values()} == {"sound"}
    assert {judgement.borrowed for _, judgement in found.values()} == {("moving_mean",)}


@pytest.mark.parametrize(
    ("slices", "known", "evidence"),
    [
        (all_backed(), NOTHING_READ, "manifest"),
        (plain(), contents(r0="a", r1="b", r2="a", r3="b"), "vote"),
        (plain(), NOTHING_READ, "structure"),
        (all_backed(origin="sealed by structure"), NOTHING_READ, "vote"),
    ],
)
def test_rule_contents_states_the_evidence_of_sound_slices(slices, known, evidence):
    found = judge(tree(slices, PAIRS), known)
    assert {(judgement.status, judgement.evidence) for _, judgement in found.values()} == {("sound", evidence)}


def with_layouts(inventory, *layouts):
    strategy = Strategy((0,), 0, layouts)
    return replace(inventory, strategy_files=(StrategyFile(0, "ckpt_dir0/strategy.ckpt", strategy, "s"),))


def findings(inventory, known=NOTHING_READ, options=DEFAULT_PLAN, **how):
    return compare_slices(gather_facts(inventory, options, known), **how)


def test_rule_dealt_not_cut_forgives_a_short_slice_whose_replica_has_the_rest_and_no_other():
    cut, alike = Layout("w", (2, 2), ((0,),)), Layout("norm", (2, 2), ((),))
    layouts = (cut, replace(cut, parameter="moment1.w"), alike, replace(alike, parameter="bias"))
    dealt = [("w", "norm"), ("w",), ("moment1.w", "bias"), ("moment1.w",)]
    slices = [slice_file(rank, names=("global_step", *names)) for rank, names in enumerate(dealt)]
    assert not findings(with_layouts(tree(slices, PAIRS), *layouts)).structure.damaged
    assert path(1) in findings(tree(slices, PAIRS)).structure.damaged


@pytest.mark.parametrize(
    ("last", "changes", "damaged"),
    [
        ((), {}, True),
        (("moment1.w",), {}, False),
        (("behind",), {}, False),
        ((), {"manifest": True}, False),
        ((), {"older": True}, False),
    ],
    ids=["cut", "whole", "has what comes behind", "saved so", "listed the same before"],
)
def test_rule_cut_off_finds_the_end_of_a_slice_that_lacks_what_was_dealt_to_it(last, changes, damaged):
    """Ranks 0 and 1 hold one half of every parameter, ranks 2 and 3 the other."""
    names = ("y", "x", "w", "moment1.w", "behind")
    dealt = [("y", "x", "w"), ("moment1.w", "behind"), ("y", "w", "behind"), ("x", *last)]
    slices = [slice_file(rank, names=("global_step", *held)) for rank, held in enumerate(dealt)]
    if "manifest" in changes:
        slices[3] = backed(slices[3], "a", pairs=False, group=(3,))
    older = [slice_file(3, OLDER, names=("global_step", *dealt[3]))] if "older" in changes else []
    groups = {rank: [rank] for rank in range(4)}
    cut = with_layouts(tree([*slices, *older], groups), *(Layout(name, (2, 2), ((1,),)) for name in names))
    found = findings(cut).structure
    assert STEP in found.deduplicated
    assert set(found.damaged) == ({path(3)} if damaged else set())


@pytest.mark.parametrize(
    ("there", "states", "damaged"), [((3,), True, True), ((2, 3), True, False), ((3,), False, False)]
)
def test_rule_cut_off_finds_a_slice_without_the_states_that_another_stage_saves(there, states, damaged):
    """Ranks 0 and 1 are the first stage; two slices were not cut off at the same place."""
    first = [slice_file(rank, names=("global_step", "w", *(["moment1.w"] if states else []))) for rank in range(2)]
    slices = [*first, *(slice_file(rank, names=("global_step", "v")) for rank in there)]
    groups = {rank: [rank // 2 * 2, rank // 2 * 2 + 1] for rank in range(4)}
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 2,), 2, layouts), "s")
        for rank, name in ((0, "w"), (2, "v"))
        for layouts in [tuple(Layout(one, (2,), ((),)) for one in (name, f"moment1.{name}"))]
    )
    found = findings(replace(tree(slices, groups), strategy_files=files)).structure
    assert set(found.damaged) == ({path(3)} if damaged else set())


def test_rule_cut_off_leaves_the_weights_of_a_run_beside_slices_with_states_of_another():
    weights = [slice_file(rank, names=("global_step", "w"), prefix="later") for rank in range(4)]
    others = [slice_file(rank, names=("global_step", "w", "moment1.w")) for rank in range(2)]
    layouts = (Layout("w", (4,), ((0,),)), Layout("moment1.w", (4,), ((0,),)))
    groups = {rank: [rank] for rank in range(4)}
    damaged = findings(with_layouts(tree([*weights, *others], groups), *layouts)).structure.damaged
    assert damaged.keys().isdisjoint(path(rank, "later-2_8.ckpt") for rank in (2, 3))


def test_rule_refuted_layouts_names_the_strategy_file_that_contents_of_a_step_contradict():
    alone = tree(plain(), {rank: [rank] for rank in range(4)})
    alike = with_layouts(alone, *(Layout(name, (4,), ((),)) for name in NAMES[:3]))
    (why,) = findings(alike, contents(r0="a", r1="b", r2="c", r3="d")).refuted[STEP].values()
    assert "hold different contents in 'a', 'b', 'moment1.a', by ckpt_dir0/strategy.ckpt" in why
    assert not findings(alike, contents(r0="a", r1="a", r2="a", r3="a")).refuted


def test_rule_refuted_word_refuses_it_where_contents_differ_once_all_that_shows_it_is_read():
    options = PlanOptions(groups=(frozenset({0, 1}),))
    slices = [slice_file(rank, step) for rank in range(2) for step in (OLDER, STEP)]
    known = contents(r0="a", r1="b")
    older = findings(tree(slices, {}), known, options, all_read=False).unread
    assert [(file.rank, file.step) for file in older] == [(0, OLDER), (1, OLDER)]
    with pytest.raises(ContradictionError, match="--group 0,1 is contradicted by contents"):
        findings(tree(slices, {}), known, options)
    assert not findings(tree(slices, {}), contents(r0="a", r1="a"), options).unread


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("b", {0: ("contents", "undecided"), 2: ("contents", "undecided")}),
        ("a", {0: ("contents", "suspect")}),
    ],
    ids=["both", "one"],
)
def test_of_two_that_differ_the_misplaced_one_is_wrong_unless_both_are(held, expected):
    """Rank 0 holds what its group held before; rank 2 what the other group holds, or its own."""
    slices = [slice_file(rank, step) for step in (OLDER, STEP) for rank in range(4)]
    values = {(rank, OLDER): ("old", "other")[rank % 2] for rank in range(4)}
    values |= {(0, STEP): "old", (2, STEP): held, (1, STEP): "b", (3, STEP): "b"}
    known = Contents({file.path: digests(values[file.rank, file.step]) for file in slices})
    assert decided(tree(slices, PAIRS), known) == {path(rank): one for rank, one in expected.items()}


def test_rule_damaged_says_whether_more_is_wrong_than_the_place_or_what_others_list():
    wrong = {
        "header": (slice_file(0, problem="cut"), NOTHING_READ, False),
        "contents": (backed(slice_file(0), "a"), contents(r0="x"), False),
        "size": (backed(slice_file(0), "a", size=7), NOTHING_READ, False),
        "place": (backed(slice_file(0), "a", rank=2), NOTHING_READ, True),
        "list": (slice_file(0, names=NAMES[:2]), NOTHING_READ, True),
    }
    for how, (slice_, known, whole) in wrong.items():
        rule, judgement = judge(tree([slice_, *plain(0)], PAIRS), known)[path(0)]
        assert (rule, judgement.whole, judgement.proven_damaged) == ("damaged", whole, not whole), how


def test_rule_damaged_names_no_parameters_where_a_manifest_says_nothing_of_them():
    known = contents(r0="x")
    known.digests[path(0)] = Digests("file:x", ("p:a", "p:x", "p:a", "p:a"))
    for slice_ in (backed(slice_file(0), "a", rank=2), slice_file(0, names=NAMES[:2])):
        assert judge(tree([slice_, *all_backed(0)], PAIRS), known)[path(0)][1].good is None
    assert judge(tree(all_backed(), PAIRS), contents(r0="x"))[path(0)][1].good is None


def test_rule_damaged_leaves_lists_of_slices_that_hold_the_bytes_of_another():
    """A slice of another rank in the wrong place shows nothing about what replicas list."""
    second = ("x", "y", "z", "global_step")
    slices = [slice_file(rank, names=second if rank != 2 else NAMES) for rank in range(4)]
    found = judge(tree(slices, PAIRS), contents(r0="b", r1="b", r2="a", r3="b"))
    assert {one: (rule, judgement.status) for one, (rule, judgement) in found.items()} == {
        path(0): ("contents", "suspect"),
        **{path(rank): ("contents", "sound") for rank in (1, 2, 3)},
    }


def test_rule_replaced_leaves_slices_of_the_same_format_and_recovered_ones():
    others = [in_safetensors(slice_file(rank)) for rank in range(3)]
    recovered = backed(in_safetensors(slice_file(3)), "b", run="", origin=RECOVERED)
    beside = in_safetensors(slice_file(3, prefix="test_1"))
    beside = replace(beside, place=RankPath(("ckpt_dir", "/test_1-2_8.safetensors")))
    assert {rule for rule, _ in decided(tree([*others, beside, recovered], PAIRS)).values()} == {"doubles"}
    both = [recovered, backed(slice_file(3), "b", run="", origin=RECOVERED)]
    assert {rule for rule, _ in decided(tree([*others, *both], PAIRS)).values()} == {"doubles"}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(None, "not committed: its manifest is missing, so saving it was not finished"), ("bad", "not committed: bad")],
)
def test_rule_uncommitted_says_what_is_wrong_with_the_manifest(problem, reason):
    slices = [replace(slice_file(0), manifest_problem=problem), *all_backed(0)]
    rule, judgement = judge(tree(slices, PAIRS))[path(0)]
    assert (rule, judgement.reason) == ("uncommitted", reason)


def test_rule_doubles_names_the_slices_and_how_to_choose():
    found = judge(tree([*plain(), slice_file(0, prefix="test_1")], PAIRS))
    reason = found[path(0)][1].reason
    assert f"{path(0)} and {path(0, 'test_1-2_8.ckpt')}: remove" in reason
    assert reason.endswith(", or one by its prefix with --run test or --run test_1")
    loose = in_safetensors(slice_file(0))
    reason = judge(tree([*plain(), loose], PAIRS))[path(0)][1].reason
    assert reason.endswith("choose the newest run with --newest")
    sealed = all_backed(origin="sealed by vote")
    found = judge(tree([*sealed, slice_file(0, prefix="test_1")], PAIRS))
    assert found[path(0, "test_1-2_8.ckpt")][1].reason == f"{path(0)} is the slice of this step that has a manifest"
    assert found[path(0)][1].status == "sound"


def test_rule_contents_compares_the_rest_again_where_misplaced_slices_are_set_aside():
    slices = [slice_file(rank, step) for step in (OLDER, STEP) for rank in range(4)]
    values = {OLDER: ["old"] * 4, STEP: ["old", "old", "new", "new"]}
    known = Contents({file.path: digests(values[file.step][file.rank]) for file in slices})
    found = judge(tree(slices, GROUP), known)
    assert {one.status for _, one in (found[path(0)], found[path(1)])} == {"suspect"}
    assert {(one.status, one.evidence) for _, one in (found[path(2)], found[path(3)])} == {("sound", "vote")}


@pytest.mark.parametrize(("value", "kept_values"), [("x", None), ("partly", {"b", "moment1.a", "global_step"})])
def test_rule_contents_says_what_of_an_outvoted_slice_may_be_used(value, kept_values):
    known = contents(r0="a", r2="x", r4="a", r1="b", r3="b", r5="b")
    if value == "partly":
        known.digests[path(2)] = Digests("file:partly", ("p:x", "p:a", "p:a", "p:a"))
    judgement = judge(tree([slice_file(rank) for rank in range(6)], TRIPLES), known)[path(2)][1]
    assert (judgement.status, judgement.good, judgement.kept) == ("suspect", kept_values, False)


def test_rule_contents_keeps_an_outvoted_slice_that_training_saved_so():
    values = {rank: "x" if rank == 2 else "ab"[rank % 2] for rank in range(6)}
    slices = [backed(slice_file(rank), value, pairs=False, world_size=6) for rank, value in values.items()]
    judgement = judge(tree(slices, TRIPLES))[path(2)][1]
    assert (judgement.status, judgement.evidence, judgement.kept) == ("suspect", "manifest", True)
    assert judgement.reason.endswith("training saved its manifest, which proves it: --lost 2 replaces it")


def test_rule_contents_decides_a_slice_without_replica_that_holds_the_bytes_of_another_list():
    slices = plain(2)
    assert decided(tree(slices, PAIRS), contents(r0="b", r1="b", r3="b")) == {path(0): ("contents", "suspect")}
    assert decided(tree(slices, PAIRS), contents(r0="a", r1="b", r3="b")) == {}
    assert decided(tree(plain(), PAIRS), contents(r0="b", r1="b", r2="b", r3="b")) == {}


@pytest.mark.parametrize(
    ("origin", "known", "words"),
    [
        (None, NOTHING_READ, "sound in structure"),
        (None, contents(r0="a", r2="a"), "sound by the vote of 2 equal slices"),
        ("saved", NOTHING_READ, "sound by its manifest"),
        (
            "sealed by structure",
            NOTHING_READ,
            "unchanged since its manifest was written, which rests on structure alone",
        ),
        (
            "sealed by operator",
            NOTHING_READ,
            "unchanged since its manifest was written, which rests on the operator's word",
        ),
    ],
)
def test_rule_contents_says_what_a_sound_slice_rests_on(origin, known, words):
    first = backed(slice_file(0), "a", origin=origin) if origin else slice_file(0)
    slices = [first, slice_file(2)] if origin is None else [first]
    assert judge(tree(slices, {0: [0, 2], 2: [0, 2]}, ranks=(0, 1, 2)), known)[path(0)][1].reason == words


def test_rule_contents_leaves_the_slice_beside_one_that_the_operator_declared_lost():
    """Sealing passed both over because they differ; the operator says which one is wrong."""
    sealed = [backed(slice_file(rank), "b", origin="sealed by vote") for rank in (1, 3)]
    inventory = tree([*sealed, slice_file(0), slice_file(2)], PAIRS)
    known = contents(r0="a", r2="x", r1="b", r3="b")
    lost = PlanOptions(lost=frozenset((2,)))
    assert decided(inventory, known, options=lost) == {}
    assert decided(tree([*sealed, slice_file(0)], PAIRS), known) == {path(0): ("contents", "uncommitted")}


@pytest.mark.parametrize(
    ("now", "before", "decided_"),
    [
        ("sstt", {}, set()),
        ("ssts", {2: "s"}, {2}),
        ("ssts", {2: "t"}, set()),
        ("usts", {2: "s"}, {2}),
        ("uvts", {2: "w"}, set()),
    ],
    ids=["two of each", "unlike its own", "like its own", "and others", "a file that nobody else names"],
)
def test_rule_another_layout_compares_with_the_strategy_files_that_others_name(now, before, decided_):
    slices = [under(rank, strategy) for rank, strategy in enumerate(now)]
    older = [under(rank, strategy, OLDER) for rank, strategy in before.items()]
    found = decided(tree([*slices, *older], PAIRS))
    assert {one for one, (rule, _) in found.items() if rule == "another layout"} == {path(rank) for rank in decided_}


def test_rule_contents_leaves_unread_replicas_that_sealing_passed_over_and_decides_one_alone():
    sealed = [backed(slice_file(rank), "b", origin="sealed by vote") for rank in (1, 3)]
    assert decided(tree([*sealed, slice_file(0)], PAIRS)) == {path(0): ("contents", "uncommitted")}
    both = tree([*sealed, slice_file(0), slice_file(2)], PAIRS)
    assert decided(both) == {}
    assert decided(both, contents(r0="a", r2="a", r1="b", r3="b")) == {}
    assert decided(both, contents(r0="a", r1="b", r3="b")) == {path(0): ("contents", "uncommitted")}
