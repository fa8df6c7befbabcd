"""Runs without manifests in one folder: whichever is taken, no larger one is passed over, and none without a word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.planning.tree.prefixes import base_of
from ms_recover.verbs.session import Session
from tests.support.examples import examples
from tests.support.inventories import OLDER, STEP, slice_file, tree

NAMES = ("job", "job_1", "job_2", "other", "third_1")


class Folder:
    """Runs that saved one step, perhaps an older one, each on some ranks; the contents differ from run to run."""

    def __init__(self, ranks: int, model_parallel: int, files: tuple[SliceFile, ...]) -> None:
        self.ranks, self.model_parallel, self.files = ranks, model_parallel, files

    def __repr__(self) -> str:
        files = [f"{file.prefix}-{file.step} {file.rank} at {file.mtime_ns}" for file in self.files]
        return f"{self.ranks} ranks, {self.model_parallel} parts: {', '.join(files)}"

    def held(self, *names: str) -> set[int]:
        return {file.rank for file in self.files if file.prefix in names and file.step == STEP}

    @property
    def names(self) -> list[str]:
        return sorted({file.prefix for file in self.files if file.step == STEP})

    def is_plain(self, name: str) -> bool:
        """Whether no rank has slices of two reruns of a run, so that it can be taken without a word."""
        reruns = [other for other in self.names if base_of(other) == base_of(name)]
        return len(self.held(*reruns)) == sum(len(self.held(other)) for other in reruns)

    def plan(self, **options: object) -> Plan:
        """Plan as `api.plan` does: read what the plan so far rests on, until it rests on what was read."""
        groups = [list(range(first, self.ranks, self.model_parallel)) for first in range(self.model_parallel)]
        lists = {rank: groups[rank % self.model_parallel] for rank in range(self.ranks)}
        return Session(tree(self.files, lists), PlanOptions(**options), read=self._read).planned.plan

    def _read(self, files: Sequence[SliceFile]) -> Contents:
        return Contents({file.path: self._digests(file) for file in files})

    def _digests(self, file: SliceFile) -> Digests:
        texts = [f"{file.prefix} {file.step} {file.rank % self.model_parallel} {index}" for index in range(5)]
        whole, *others = (f"{DIGEST}:{text.encode().hex()[-32:]:0>32}" for text in texts)
        return Digests(whole, tuple(others))

    def taken(self, plan: Plan) -> set[str]:
        """Return the prefixes of the slices that a plan keeps and copies."""
        paths = {rank.path for rank in plan.ranks if rank.verdict == "keep"}
        paths |= {action.replica.path for action in plan.actions}
        return {file.prefix for file in self.files if file.path in paths}


@st.composite
def folders(draw: st.DrawFn) -> Folder:
    model_parallel = draw(st.integers(1, 2))
    ranks = model_parallel * draw(st.integers(2, 8 // model_parallel))
    files = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=3, unique=True)):
        held = range(ranks) if draw(st.booleans()) else draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        begun, spread = draw(st.integers(0, 3)) * 10, draw(st.sampled_from((0, 5, 20)))
        for step in (STEP, OLDER) if draw(st.booleans()) else (STEP,):
            files += [
                slice_file(rank, step, prefix=name, mtime=begun + draw(st.integers(0, spread))) for rank in sorted(held)
            ]
    return Folder(ranks, model_parallel, tuple(files))


@settings(max_examples=examples(200))
@given(folders(), st.booleans())
def test_no_run_is_taken_that_fewer_ranks_have_than_another_and_each_other_one_is_named(folder, newest) -> None:
    plan = folder.plan(newest=newest)
    event(f"newest {newest}, step {plan.step}, actions {bool(plan.actions)}")
    if plan.step != STEP:
        return
    taken = folder.taken(plan)
    assert len({base_of(name) for name in taken}) == 1
    taken |= {name for name in folder.names for one in taken if folder.is_plain(one) and base_of(name) == base_of(one)}
    warned = defaultdict(list)
    for text in plan.warnings:
        warned[text.partition("--run ")[2].partition(" takes it")[0]].append(text)
    for name in set(folder.names) - taken:
        (text,) = warned[name]
        assert text.startswith(f"step {STEP} of another run is passed over: ")
        other = folder.plan(run=name)
        if other.step == STEP and folder.is_plain(name):
            assert {base_of(one) for one in folder.taken(other)} == {base_of(name)}
            assert len(folder.held(*taken)) >= len(folder.held(*folder.taken(other)))


@settings(max_examples=examples(100))
@given(folders())
def test_a_run_that_is_chosen_by_its_prefix_is_never_mixed_with_another(folder) -> None:
    for name in folder.names:
        plan = folder.plan(run=name)
        if plan.recoverable:
            taken = folder.taken(plan)
            assert taken == {name} or not any(folder.held(name) & folder.held(other) for other in taken - {name})
        alone = [text for text in plan.warnings if text.startswith("only rank")]
        assert not alone or len({file.rank for file in folder.files if file.prefix in folder.taken(plan)}) == 1
