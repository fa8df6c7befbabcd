"""Several nodes as one, and what of a plan over them is to be done here."""

from dataclasses import replace

import pytest

from ms_recover.cli.tree import plan_code
from ms_recover.joint.shares import share_here, share_of
from ms_recover.joint.union import unite
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.inventory import MetaFile, Note, RankPath, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import DocumentWrite, GivenUpSlice
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.inventories import OLDER, STEP, group_file, slice_file, tree
from tests.support.plans import make_plan

META = RankPath(("ckpt_dir", "/meta.json"))
GROUPS = {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}


def node(*slices, ranks=None, name="here"):
    held = ranks if ranks is not None else {file.rank for file in slices}
    return replace(tree(list(slices), {rank: GROUPS[rank] for rank in held}), root=name)


def planned(local, *served, ranks=None):
    union = unite(local, served)
    plan = make_plan(union.inventory, PlanOptions(ranks=None if ranks is None else frozenset(ranks), world_size=4))
    return share_here(plan, union, ranks, {})


def test_what_is_missing_here_comes_from_there():
    here, there = node(slice_file(0)), node(slice_file(2), slice_file(3), name="there:1")
    plan = planned(here, there)
    [action] = plan.actions
    assert isinstance(action, CopyAction)
    assert (action.rank, action.source_rank, action.replaces) == (1, 3, None)
    assert plan.ranks[1].reason.endswith("fetched from there:1")
    assert [write.rank for write in plan.group_files] == [1]


def test_a_sound_slice_of_this_node_counts_first():
    here, there = node(slice_file(0), slice_file(1)), node(slice_file(0), slice_file(3), name="there:1")
    union = unite(here, [there])
    assert union.holders == {"ckpt_dir3/test-2_8.ckpt": 0}
    assert union.away == {3}


def test_the_own_slice_comes_back_over_a_damaged_one():
    here = node(slice_file(0), slice_file(1, problem="cut off", size=40, mtime=9))
    there = node(slice_file(1), slice_file(2), name="there:1")
    plan = planned(here, there)
    actions = {action.rank: action for action in plan.actions}
    assert actions[1].source_rank == 1
    assert actions[1].replaces == FileState(40, 9)
    assert plan.ranks[1].verdict == "copy"
    assert "its own slice is at there:1" in plan.ranks[1].reason
    assert actions[3].source_rank == 1  # nobody has rank 3, so it lives here


def test_what_is_replaced_is_the_file_of_this_node():
    """Also where the plan knows a peer's damaged slice of the same name."""
    here = node(slice_file(0, problem="cut off", size=40, mtime=9))
    there = node(slice_file(0), slice_file(2), slice_file(3), name="there:1")
    union = unite(here, [there])
    plan = make_plan(union.inventory, PlanOptions(world_size=4, lost=frozenset([0])))
    [action, _] = share_here(plan, union, None, {}).actions
    assert (action.rank, action.source_rank) == (0, 2)
    assert action.replaces == FileState(40, 9)


def test_ranks_of_other_nodes_are_left_to_them():
    here, there = node(slice_file(0), slice_file(1)), node(slice_file(2), ranks=(2, 3), name="there:1")
    plan = planned(here, there)
    assert plan.recoverable
    assert not plan.actions
    assert "recover it there" in plan.ranks[3].reason
    [action] = planned(here, there, ranks=[3]).actions
    assert (action.rank, action.source_rank) == (3, 1)


def test_only_given_ranks_need_a_slice():
    here, there = node(slice_file(0, OLDER), ranks=(0,)), node(slice_file(2), slice_file(2, OLDER), name="there:1")
    assert planned(here, there).step is None
    plan = planned(here, there, ranks=[0])
    assert plan.step == STEP
    assert [action.rank for action in plan.actions] == [0]


NOT_ALLOWED = "permission denied for user nobody (uid 65534)"


def test_a_directory_that_a_server_may_not_list_is_unreadable_with_its_host_and_not_missing():
    denied = ((3, Note("ckpt_dir3", NOT_ALLOWED)),)
    there = replace(node(slice_file(2), name="there:1"), ranks=(2, 3), denied=denied)
    plan = planned(node(slice_file(0)), there)
    assert plan.step is None
    assert (plan.ranks[3].verdict, plan.ranks[3].state) == ("unrecoverable", "unreadable")
    assert plan.ranks[3].reason.startswith(f"ckpt_dir3: {NOT_ALLOWED} at there:1")
    assert plan.ranks[1].state == "missing"
    assert plan_code(plan) == 1


def test_a_directory_that_a_server_may_not_list_keeps_nobody_from_what_others_hold():
    denied = ((3, Note("ckpt_dir3", NOT_ALLOWED)),)
    there = replace(node(slice_file(2), name="there:1"), ranks=(2, 3), denied=denied)
    plan = planned(node(slice_file(1), ranks=(0, 1)), there)
    assert [action.rank for action in plan.actions] == [0]
    assert "recover it there" in plan.ranks[3].reason
    assert plan_code(plan) == 0


def test_a_directory_of_this_node_that_may_not_be_listed_stays_denied():
    here = replace(node(slice_file(0)), ranks=(0, 1), denied=((1, Note("ckpt_dir1", NOT_ALLOWED)),))
    plan = planned(here, node(slice_file(2), slice_file(3), name="there:1"))
    assert plan.ranks[1].state == "unreadable"
    assert plan.ranks[1].reason.startswith(f"ckpt_dir1: {NOT_ALLOWED};")
    assert plan_code(plan) == 1


def test_a_slice_that_a_server_may_not_open_names_its_host():
    shut = replace(slice_file(3, problem=NOT_ALLOWED), denied=True)
    plan = planned(node(slice_file(0)), node(slice_file(2), shut, name="there:1"))
    assert plan.ranks[3].state == "unreadable"
    assert f"{shut.path}: {NOT_ALLOWED} at there:1" in plan.ranks[3].reason
    assert plan_code(plan) == 1


def test_lists_of_this_node_come_first():
    here, there = node(slice_file(0)), node(slice_file(2), name="there:1")
    mine, theirs = replace(group_file(5, [5]), problem="mine"), replace(group_file(5, [5]), problem="theirs")
    union = unite(replace(here, group_files=(mine,)), [replace(there, group_files=(theirs,))])
    assert union.inventory.group_files == (mine,)


def test_each_node_writes_the_records_of_mindformers_for_its_own_ranks():
    def with_metas(found):
        metas = tuple(
            MetaFile(rank=rank, path=f"ckpt_dir{rank}/meta.json", place=META, step=STEP, file=f"test-{STEP}.ckpt")
            for rank in found.ranks
        )
        return replace(found, meta_files=metas)

    here = with_metas(node(slice_file(0, OLDER), slice_file(0)))
    there = with_metas(node(*(slice_file(rank, OLDER) for rank in (1, 2, 3)), slice_file(2), name="there:1"))
    plan = planned(here, there)
    assert plan.step == OLDER
    assert [(write.rank, write.file) for write in plan.meta_files] == [(0, f"test-{OLDER}.ckpt")]


def test_only_slices_of_this_node_are_set_aside():
    here, there = node(slice_file(0)), node(slice_file(2), slice_file(3), name="there:1")
    union = unite(here, [there])
    plan = make_plan(union.inventory, PlanOptions(world_size=4))
    given_up = tuple(
        GivenUpSlice(rank=rank, path=f"ckpt_dir{rank}/test-2_8.ckpt", state=None, reason="") for rank in (0, 2)
    )
    cut = share_here(replace(plan, set_aside=given_up), union, None, {})
    assert [one.rank for one in cut.set_aside] == [0]


def test_a_damaged_slice_of_this_node_is_set_aside_with_the_one_of_another_node_that_counts():
    """Else the damaged one of a given-up step would lie here alone, and be the newest."""
    broken = slice_file(1, problem="cut off", size=40, mtime=9)
    union = unite(node(slice_file(0), broken), [node(slice_file(1), name="there:1")])
    plan = make_plan(tree([slice_file(0)], {}), PlanOptions(quick=True))
    given_up = GivenUpSlice(rank=1, path=broken.path, state=FileState(100, 1), reason="")
    cut = share_here(replace(plan, set_aside=(given_up,)), union, None, {})
    assert [(one.path, one.state) for one in cut.set_aside] == [(broken.path, FileState(40, 9))]


@pytest.mark.parametrize(
    ("here", "kept"),
    [
        ({}, True),
        ({"problem": "cut off"}, False),
        ({"problem": "input/output error", "failing": True}, True),
    ],
    ids=["sound", "cut off", "not given by its device"],
)
def test_a_node_keeps_what_it_replaces_unless_its_structure_is_damaged(here, kept):
    """The plan replaces the outvoted slice of another node, which counts; this node has one of that name."""
    own = replace(slice_file(1), **here)
    union = unite(node(slice_file(0)), [node(slice_file(1), name="there:1"), node(own, name="there:2")])
    aside = f"{own.path}.outvoted"
    action = CopyAction(
        rank=1,
        replica=Replica(0, slice_file(0).path, FileState(100, 1), None),
        target=own.path,
        replaces=FileState(100, 1),
        reason="outvoted",
        evidence="structure",
        group=(0, 1),
        set_aside=aside,
    )
    plan = replace(make_plan(tree([slice_file(0)], {}), PlanOptions(quick=True)), step=STEP, actions=(action,))
    [made] = share_of(plan, union, 1, lambda rank: rank == 1).actions
    assert made.set_aside == (aside if kept else None)


def test_a_slice_of_this_node_that_only_its_device_fails_to_give_is_kept_beside_what_replaces_it():
    there = node(slice_file(1), slice_file(2), slice_file(3), name="there:1")
    kept = {}
    for failing in (True, False):
        broken = replace(slice_file(1, problem="input/output error", size=40), failing=failing)
        plan = planned(node(slice_file(0), broken), there)
        kept[failing] = {action.rank: action.set_aside for action in plan.actions}[1]
    assert kept == {True: f"{slice_file(1).path}.outvoted", False: None}


def test_strategy_files_beside_slices_come_from_other_nodes_and_those_named_by_an_operator_do_not():
    layouts = Strategy((0,), 1, (Layout("w", (2,), ((),)),))
    paths = {"ckpt_dir2/strategy.ckpt", "ckpt_dir2/other.ckpt", "/named/strategy.ckpt", "ckpt_dir3/strategy.ckpt"}
    files = tuple(StrategyFile(2, path, layouts, "digest" if "dir3" not in path else "") for path in sorted(paths))
    there = replace(node(slice_file(2), slice_file(3), name="there:1"), strategy_files=files)
    union = unite(node(slice_file(0), slice_file(1)), [there])
    plan = make_plan(union.inventory, PlanOptions(world_size=4))
    cut = share_here(plan, union, [0, 1, 2, 3], {})
    assert [write.target for write in cut.strategy_files] == ["ckpt_dir2/strategy.ckpt"]


ITERATION = Step.iteration(100)


@pytest.mark.parametrize(("tracked", "written"), [(100, ["common", "tracker"]), (200, ["common"])])
def test_of_the_documents_of_other_nodes_those_of_the_planned_iteration_are_written(tracked, written):
    def with_documents(found, *, common=None, value=None):
        one = Iteration(
            step=ITERATION,
            directory="",
            metadata=Document(path="metadata", value=object()),
            common=Document(path="common", value=common),
        )
        return replace(found, iterations=(one,), tracker=Document(path="tracker", value=value))

    here = with_documents(node(slice_file(0), slice_file(1)))
    there = with_documents(node(slice_file(2), slice_file(3), name="there:1"), common=object(), value=tracked)
    union = unite(here, [there])
    plan = replace(make_plan(tree([slice_file(0)], {}), PlanOptions(quick=True)), step=ITERATION, actions=())
    cut = share_here(plan, union, None, {})
    assert [write.target for write in cut.documents] == written
    assert {write.sources for write in cut.documents} == {("the document at there:1",)}
    none = share_here(replace(plan, step=Step.iteration(300)), union, None, {})
    assert none.documents == ()
    tracker = DocumentWrite(target="tracker", value=100, replaces=None, reason="names iteration 50")
    both = share_here(replace(plan, documents=(tracker,)), union, None, {})
    assert [write.target for write in both.documents] == ["common", "tracker"]  # which is written last
    assert both.documents[1] == tracker


@pytest.mark.parametrize(
    ("step", "ranks", "brought"),
    [(ITERATION, None, [2, 3]), (ITERATION, [0, 1], []), (STEP, None, []), (None, None, [])],
    ids=["iteration", "iteration, ranks that live here", "step", "no step"],
)
def test_of_an_iteration_each_node_has_all_files_unless_its_ranks_are_named(step, ranks, brought):
    union = unite(node(slice_file(0), slice_file(1)), [node(slice_file(2), slice_file(3), name="there:1")])
    plan = replace(make_plan(union.inventory, PlanOptions(world_size=4)), step=step)
    assert [action.rank for action in share_here(plan, union, ranks, {}).actions] == brought


@pytest.mark.parametrize(("evidence", "stated"), [("manifest", "manifest"), (None, "structure")])
def test_a_slice_that_is_brought_keeps_the_evidence_for_it(evidence, stated):
    union = unite(node(slice_file(0)), [node(slice_file(1), slice_file(2), slice_file(3), name="there:1")])
    plan = make_plan(union.inventory, PlanOptions(world_size=4))
    verdicts = tuple(replace(one, evidence=evidence) for one in plan.ranks)
    cut = share_here(replace(plan, ranks=verdicts), union, [1], {})
    assert [(action.rank, action.evidence) for action in cut.actions] == [(1, stated)]
