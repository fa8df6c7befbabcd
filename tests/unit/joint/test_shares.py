"""What each of several nodes does of a plan, and what they did as one outcome."""

from dataclasses import replace

import pytest

from ms_recover.errors import StorageError, UnrecoverableError
from ms_recover.joint.shares import documents_of, joined, lost_outcome, outcome_at, share_here, share_of, with_homes
from ms_recover.joint.union import HERE, unite
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece, Runs
from ms_recover.model.inventory import Inventory, MetaFile, RankPath
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import RankVerdict
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.support.plans import make_plan

ITERATION = Step.iteration(100)
PAIRS = {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}


def node(name, *slices):
    return replace(tree(slices, {file.rank: PAIRS[file.rank] for file in slices}), root=name)


def copying(rank, source, *, replaces=None):
    replica = Replica(source, slice_file(source).path, FileState(100, 1), None)
    target = slice_file(rank).path
    return CopyAction(rank=rank, replica=replica, target=target, replaces=replaces, reason="missing")


def composing(rank, *sources):
    replicas = tuple(copying(rank, source).replica for source in sources)
    pieces = tuple(Piece(number, Runs(0, 0, 8), 16) for number in range(len(sources)))
    return ComposeAction(
        rank=rank,
        sources=replicas,
        model=0,
        parameters=(ComposedParameter(Parameter("w", "Float32", (4,), 16), pieces),),
        target=slice_file(rank).path,
        replaces=None,
        reason="",
        kind="partial",
    )


def plan_of(*actions, **fields):
    made = make_plan(tree([slice_file(0)], {}), PlanOptions(quick=True))
    return replace(made, **{"step": STEP, "actions": actions, "considered": STEP, **fields})


def test_a_slice_that_changed_after_the_plan_stays_the_one_that_the_plan_saw():
    """So that a newer one is not replaced."""
    then, now = slice_file(1, problem="cut off", size=40, mtime=9), slice_file(1, problem="cut off", size=50, mtime=99)
    union = unite(Inventory(root=""), [node("n0", slice_file(0)), node("n1", now)], spread=True)
    planned = copying(1, 3, replaces=FileState(then.size, then.mtime_ns))
    assert share_of(plan_of(planned), union, 1, lambda rank: rank == 1).actions == (planned,)


@pytest.mark.parametrize(
    ("verdict", "home", "words"),
    [
        (RankVerdict(1, "missing", "copy", "no file", source="ckpt_dir0/test-2_8.ckpt"), 1, "; at n1, fetched from n0"),
        (RankVerdict(1, "missing", "copy", "no file", source="ckpt_dir0/test-2_8.ckpt"), 0, "; at n0"),
        (RankVerdict(1, "missing", "compose", "no file"), 1, "; at n1"),
        (RankVerdict(1, "ok", "keep", "no file"), 1, ""),  # whose rank list alone is written there
        (RankVerdict(1, "missing", "copy", "no file"), None, ""),  # of a step that cannot be recovered
    ],
)
def test_a_verdict_names_the_node_that_writes_and_the_one_that_it_reads(verdict, home, words):
    union = unite(Inventory(root=""), [node("n0", slice_file(0)), node("n1", slice_file(2))], spread=True)
    made = with_homes(plan_of(ranks=(verdict,)), union, {} if home is None else {1: home})
    assert [one.reason for one in made.ranks] == [f"no file{words}"]


def test_of_verdicts_those_on_ranks_that_live_elsewhere_say_so_and_no_others():
    union = unite(node("here", slice_file(0), slice_file(2)), [node("there:1", slice_file(3))])
    ranks = (
        RankVerdict(0, "ok", "keep", "sound", path=slice_file(0).path),
        RankVerdict(1, "missing", "copy", "no file", source=slice_file(0).path),
        RankVerdict(2, "missing", "copy", "no file", source=slice_file(3).path),
        RankVerdict(3, "ok", "keep", "sound", path=slice_file(3).path),
        RankVerdict(4, "missing", "copy", "no file", source=slice_file(3).path),
    )
    shared = share_here(plan_of(ranks=ranks), union, [0, 1, 2], {})
    assert [one.reason for one in shared.ranks] == [
        "sound",
        "no file",
        "no file; fetched from there:1",
        "sound",
        "no file; it lives elsewhere: recover it there",
    ]


def test_the_records_of_mindformers_that_only_another_node_has_come_for_ranks_that_are_named_here():
    def record(step):
        place = RankPath(("ckpt_dir", f"/meta-{step}.json"))
        return MetaFile(rank=1, path=place.of(1), place=place, step=step, file=f"test-{step}.ckpt")

    there = replace(node("there:1", slice_file(1)), meta_files=(record(STEP), record(OLDER)))
    union = unite(node("here", slice_file(0)), [there])
    plan = plan_of(ranks=(RankVerdict(1, "ok", "keep", "sound", path=slice_file(1).path),))
    written = share_here(plan, union, [1], {}).meta_files
    assert [(one.rank, one.target, one.file) for one in written] == [(1, record(STEP).path, f"test-{STEP}.ckpt")]


def with_documents(found, *, tracker, common=None, state=None, problem=None):
    one = Iteration(
        step=ITERATION,
        directory="",
        metadata=Document(path="metadata", value=object()),
        common=Document(path="common", value=common, state=state, problem=problem),
    )
    return replace(found, iterations=(one,), tracker=Document(path="tracker", value=tracker))


def test_a_damaged_document_of_this_node_is_replaced_as_it_was_seen_and_a_sound_one_stays():
    damaged = FileState(7, 1)
    here = with_documents(node("here", slice_file(0)), tracker=100, state=damaged, problem="cut off")
    union = unite(here, [with_documents(node("there:1", slice_file(2)), tracker=100, common=object())])
    [write] = documents_of(plan_of(step=ITERATION), union, HERE)
    assert (write.target, write.replaces, write.sources) == ("common", damaged, ("the document at there:1",))
    assert union.lent == {"common": 0}


def test_a_document_that_no_node_can_read_is_damaged_as_on_this_one():
    here = with_documents(node("here", slice_file(0)), tracker=100, state=FileState(7, 1), problem="cut off")
    there = with_documents(node("there:1", slice_file(2)), tracker=None, state=FileState(8, 1), problem="no JSON")
    union = unite(here, [there])
    assert union.inventory.iterations[0].common == here.iterations[0].common
    assert union.lent == {}


def outcome(*results, **fields):
    return replace(Outcome("/tree", STEP, results, (), True), **fields)


def test_errors_of_a_node_name_it():
    done = outcome(ActionResult(0, 1, "a", "b", "copied"), ActionResult(2, 1, "a", "c", "failed", error="no space"))
    named = outcome_at("n1", replace(done, errors=("no sync",)))
    assert [one.error for one in named.results] == [None, "n1: no space"]
    assert named.errors == ("n1: no sync",)


def test_of_a_node_that_is_lost_each_action_has_failed():
    error = StorageError("gone")
    ended = lost_outcome("n1", plan_of(copying(1, 0)), error)
    assert [(one.rank, one.status, one.error, one.source_rank) for one in ended.results] == [
        (1, "failed", "n1: gone", 0)
    ]
    assert (ended.errors, ended.exit_code, ended.step) == ((), error.exit_code, STEP)
    part = plan_of(step=None, considered=OLDER, partials=(composing(1, 0, 2),))
    ended = lost_outcome("n1", part, error)
    assert [(one.status, one.source_rank, one.source) for one in ended.results] == [("failed", None, "2 slices")]
    assert ended.step == OLDER
    # a share of nothing but rank lists has no action that could have failed
    assert lost_outcome("n1", plan_of(), error).errors == ("n1: gone",)


def test_outcomes_of_nodes_are_one_with_the_results_in_the_order_of_the_plan():
    actions = (copying(1, 0), copying(3, 0))
    first, second = (ActionResult(one.rank, 0, one.source, one.target, "copied") for one in actions)
    ends = [
        outcome(second, group_files=("b",), set_aside=("y",), exit_code=0),
        outcome(first, group_files=("a",), set_aside=("x", "y"), exit_code=5, errors=("n0: no sync",)),
    ]
    made = joined(plan_of(*actions), actions, ends, verify=False)
    assert made.results == (first, second)
    assert (made.group_files, made.set_aside, made.errors) == (("a", "b"), ("x", "y"), ("n0: no sync",))
    assert (made.exit_code, made.partial, made.verified, made.step) == (5, False, False, STEP)


def test_an_outcome_of_parts_is_partial_and_of_the_step_that_has_them():
    part = composing(1, 0, 2)
    plan = plan_of(step=None, considered=OLDER, partials=(part,))
    written = ActionResult(1, None, "2 slices", part.target, "composed")
    made = joined(plan, plan.partials, [outcome(written)], verify=True)
    assert (made.partial, made.step, made.exit_code, made.verified) == (True, OLDER, UnrecoverableError.exit_code, True)


def test_a_slice_that_is_brought_has_the_digest_that_was_read_or_that_its_manifest_names():
    there = node("there:1", slice_file(1), slice_file(3))
    union = unite(node("here", slice_file(0)), [there])
    plan = plan_of(ranks=tuple(RankVerdict(rank, "ok", "keep", "sound", path=slice_file(rank).path) for rank in (1, 3)))

    def brought(digests):
        return [one.replica.digest for one in share_here(plan, union, [1, 3], digests).actions]

    assert brought({}) == [None, None]
    assert brought({slice_file(1).path: Digests("read", ())}) == ["read", None]


def test_iterations_of_all_nodes_are_in_order_newest_first():
    def holding(name, *numbers):
        documents = Document(path="metadata"), Document(path="common")
        held = (
            Iteration(step=Step.iteration(number), directory="", metadata=documents[0], common=documents[1])
            for number in numbers
        )
        return replace(node(name, slice_file(0)), iterations=tuple(held))

    union = unite(holding("here", 300, 100), [holding("there:1", 400, 200), holding("there:2", 300, 50)])
    assert [one.step.step for one in union.inventory.iterations] == [400, 300, 200, 100, 50]
