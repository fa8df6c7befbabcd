"""The verb audit where it reads more than a plan of the tree does."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ms_recover import api
from ms_recover.errors import StorageError, UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.topology import Topology
from ms_recover.scanning.read import read_contents
from ms_recover.verbs.audit import audit_planned, count_ranks_of_claims, evidence_of
from ms_recover.verbs.session import Session
from tests.support.audit_law import hosts_of, scene_of
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.support.law_files import make
from tests.support.plans import make_plan
from tests.unit.planning.test_contents import backed, digests

SEED = 1116
"""A tree whose audit reads slices of an older step."""


def test_a_tree_that_cannot_be_read_any_more_ends_the_audit(tmp_path: Path) -> None:
    """It is no answer to the question whether a loss is fatal."""
    scene = scene_of(SEED)
    make(scene, tmp_path / "tree")
    inventory = api.scan(tmp_path / "tree")
    session = Session(inventory, scene.options)
    assert session.planned.plan.recoverable

    def read(files):
        if not all(map(session.contents.knows, files)):
            raise StorageError("the disk is gone")
        return read_contents(inventory.root, files)

    topology = Topology(("host",), (hosts_of(SEED, scene.job.size),), "the test")
    with pytest.raises(StorageError, match="the disk is gone"):
        api.audit(inventory, scene.options, topology, read=read)


def test_an_audit_of_a_plan_reads_no_more_and_answers_by_what_was_read(tmp_path: Path) -> None:
    scene = scene_of(SEED)
    make(scene, tmp_path / "tree")
    session = Session(api.scan(tmp_path / "tree"), scene.options)
    planned = session.planned
    known = session.contents
    topology = Topology(("host",), (hosts_of(SEED, scene.job.size),), "the test")
    losses = audit_planned(planned, topology).levels[0].singles
    assert session.contents == known
    assert {rank for loss in losses for rank in loss.ranks} == set(range(scene.job.size))
    for loss in losses:
        left, options = planned.tree.facts.without(frozenset(loss.ranks))
        assert loss.step in (None, make_plan(left, options, contents=known).step)


SLICES = [slice_file(rank) for rank in range(4)]


@pytest.mark.parametrize(
    ("inventory", "options", "words"),
    [
        (tree(SLICES, {}), {}, "nothing"),
        (tree(SLICES, {0: [0, 2]}), {}, "1 rank list"),
        (tree(SLICES, pairs(4)), {}, "4 rank lists"),
        (tree([backed(SLICES[0], "a"), *SLICES[1:]], pairs(4)), {}, "4 rank lists, 1 manifest"),
        (tree(SLICES, {}), {"axes": Axes.parse("dp=2,mp=2")}, f"--axes {Axes.parse('dp=2,mp=2')}"),
        (tree(SLICES, {}), {"groups": (frozenset({0, 2}),)}, "--group"),
        (
            replace(tree(SLICES, {}), iterations=(object(),), strategy_files=(object(),)),
            {},
            "metadata.json, 1 strategy file",
        ),
    ],
)
def test_what_says_who_holds_the_same_is_named(inventory: Inventory, options: dict[str, Any], words: str) -> None:
    assert evidence_of(inventory, PlanOptions(**options)) == words


@pytest.mark.parametrize(("axes", "known", "ranks"), [("dp=2,mp=2", (), 4), (None, (0, 1), 2)])
def test_axes_say_how_many_ranks_there_are_where_nothing_else_does(
    axes: str | None, known: tuple[int, ...], ranks: int
) -> None:
    options = PlanOptions(axes=None if axes is None else Axes.parse(axes))
    assert count_ranks_of_claims(Inventory("/tree", known), options) == ranks


@pytest.mark.parametrize(("known", "size", "by"), [((), 8, "8, as given"), (range(6), None, "6, by the ranks")])
def test_axes_of_another_number_of_ranks_are_refused(known: Sequence[int], size: int | None, by: str) -> None:
    options = PlanOptions(axes=Axes.parse("dp=2,mp=2"), world_size=size)
    with pytest.raises(UsageError, match=f"= 4 ranks, but there are {by}"):
        count_ranks_of_claims(Inventory("/tree", tuple(known)), options)


def test_before_the_first_checkpoint_an_audit_goes_by_what_is_claimed() -> None:
    found = api.audit(tree([], pairs(4)))
    assert found.evidence == "4 rank lists"
    assert "redundancy" not in {finding.kind for finding in found.findings}
    assert [loss.fatal for loss in found.levels[0].singles] == [False] * 4
    assert found.levels[0].minimal == (("0", "2"), ("1", "3"))


@pytest.mark.parametrize(("size", "read"), [(100, [4, 5]), (1 << 29, [4, 5]), ((1 << 29) + 1, [])])
def test_no_more_than_a_gibibyte_is_read_to_know_what_follows_losses(size: int, read: list[int]) -> None:
    """Each of two hosts has a group's slices of the newest step; the older step has two more, of ranks 4 and 5."""
    triples = {rank: [rank % 2, rank % 2 + 2, rank % 2 + 4] for rank in range(6)}
    older = [slice_file(rank, OLDER, size=size) for rank in range(6)]
    newest = [backed(slice_file(rank), f"{rank % 2}", pairs=False, world_size=6) for rank in range(4)]
    asked: list[SliceFile] = []

    def values(files: Sequence[SliceFile]) -> Contents:
        asked.extend(files)
        return Contents({file.path: digests(f"{file.rank % 2}") for file in files})

    session = Session(tree([*older, *newest], triples), read=values)
    assert session.planned.plan.step == STEP
    asked.clear()
    hosts = Topology(("host",), (("a", "b", "a", "b", "c", "c"),), "the test")
    found = audit_planned(session.planned, hosts, read=session.reader)
    assert [(file.rank, file.step) for file in asked] == [(rank, OLDER) for rank in read]
    assert found.levels[0].singles[2].step == STEP


@pytest.mark.parametrize(
    ("values", "disputed", "words"),
    [("aaxb", True, "differ"), ("a-ab", False, ""), ("a-a-", False, "rank")],
    ids=["replicas differ", "one replica", "no replica"],
)
def test_an_audit_says_why_nothing_can_be_recovered_already(values: str, disputed: bool, words: str) -> None:
    slices = [slice_file(rank) for rank in range(4) if values[rank] != "-"]
    inventory = tree(slices, {0: [0, 2], 1: [1, 3]}, ranks=range(4))
    contents = Contents({file.path: digests(values[file.rank]) for file in slices})
    found = api.audit(inventory, read=contents.of)
    assert found.disputed == disputed
    assert words in found.why
    assert bool(found.why) == bool(words)
