"""A report and figures rest on one plan, and have the audit of its own verb."""

import sys

import pytest

from ms_recover import api
from ms_recover.model.options import AuditOptions, PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import UNKNOWN, Topology
from ms_recover.planning.plan.planner import plan_choice
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs.audit import audit
from ms_recover.verbs.metrics import HOST, measure
from ms_recover.verbs.report import describe
from tests.support.audits import RandomTree
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.support.iteration_trees import unpack

HOSTS = Topology(("host",), (("a", "a", "b", "b"),), "a hostfile")
PLANNER = plan_choice.__code__


def plans_made(make):
    """Return the result of a call, and how often a tree was planned meanwhile."""
    count = 0

    def look(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code is PLANNER

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        made = make()
    finally:
        sys.setprofile(before)
    return made, count


@pytest.mark.parametrize("seed", range(12))
def test_a_report_has_the_audit_of_its_own_verb(seed, tmp_path):
    given = RandomTree.of(seed)
    given.make(tmp_path)
    inventory = api.scan(tmp_path)
    options = PlanOptions(world_size=given.ranks)
    expected = audit(inventory, options, given.topology())
    assert describe(inventory, options, given.topology()).audit == expected


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(quick=True), PlanOptions(lost=frozenset([0, 2]))])
def test_a_report_reads_and_plans_once(options, tmp_path):
    inventory = api.scan(make_tree(tmp_path, steps=(Step(1, 8), Step(2, 8))))
    expected, of_audit = plans_made(lambda: audit(inventory, options, HOSTS))
    made, of_report = plans_made(lambda: describe(inventory, options, HOSTS))
    assert made.audit == expected
    assert of_report == of_audit


def test_a_report_about_iterations_plans_once(tmp_path):
    inventory = api.scan(unpack("dp2_mp4", tmp_path / "tree"))
    expected, of_audit = plans_made(lambda: audit(inventory))
    made, of_report = plans_made(lambda: describe(inventory))
    assert made.audit == expected
    assert of_report == of_audit


@pytest.mark.parametrize("lost", [(), (0,), (0, 2), (0, 1, 2, 3)])
def test_figures_are_those_of_plan_and_audit_and_take_one_plan(lost):
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    inventory = tree([one for one in slices if (one.rank, one.step) not in {(rank, STEP) for rank in lost}], pairs(4))
    options = PlanOptions(quick=True)
    costs = audit(inventory, options, HOSTS, AuditOptions(losses=1))
    made, plans = plans_made(lambda: measure(inventory, options, topology=HOSTS))
    level = costs.level(HOST)
    assert made.host_losses == max(level.survived, 0)
    assert made.single_copy_bytes == costs.single_copy_bytes
    assert plans == 1


def test_figures_of_clean_steps_count_losses_at_all_steps(tmp_path):
    root = make_tree(tmp_path, steps=(Step(1, 8), Step(2, 8)))
    save_manifests(root)
    inventory = api.scan(root)
    clean = measure(inventory, PlanOptions(clean=True), topology=HOSTS)
    assert (clean.host_losses, clean.single_copy_bytes) == (
        measure(inventory, topology=HOSTS).host_losses,
        audit(inventory, PlanOptions(quick=True), HOSTS).single_copy_bytes,
    )


@pytest.mark.parametrize(
    ("hosts", "level", "words"),
    [
        (("a", "a", "b", "b"), HOST, []),
        (("a", "a", UNKNOWN, "b"), "rank", ["nothing names the hosts of rank 2."]),
        ((UNKNOWN, "a", UNKNOWN, UNKNOWN), "rank", ["nothing names the hosts of ranks 0, 2-3."]),
    ],
)
def test_an_audit_counts_hosts_where_that_of_every_rank_is_known(hosts, level, words):
    inventory = tree([slice_file(rank) for rank in range(4)], pairs(4))
    report = describe(inventory, PlanOptions(quick=True), Topology(("host",), (hosts,), "a hostfile"))
    assert [one.name for one in report.audit.levels] == [level]
    assert [text.partition(": ")[2] for text in report.missing] == words


def test_a_report_says_why_it_has_no_audit_and_no_history():
    slices = [slice_file(rank, problem="cut") for rank in range(4)]
    hosts = Topology(("host",), (("a", "b", "c"),), "a hostfile")
    report = describe(tree(slices, pairs(4)), PlanOptions(quick=True), hosts)
    assert report.audit is None
    assert [text.partition(":")[0] for text in report.missing] == ["No audit"]
    assert "a hostfile places 3 ranks, and the job has 4" in report.missing[0]
