"""Whatever runs, names and records a tree has: the step that is taken is the one that was trained longest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.model.inventory import RankPath, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.examples import examples
from tests.support.inventories import pairs, parameters, tree
from tests.support.mindformers_tree import resumed_file
from tests.support.plans import make_plan
from tests.support.rerun_trees import Evidence, Run, Training

RANKS = 4
OPTIONS = PlanOptions(quick=True, world_size=RANKS)


@dataclass(frozen=True)
class Truth:
    """A step that was saved: its run, the steps before it, and the ranks that have it."""

    run: Run
    position: int
    ranks: frozenset[int]

    @property
    def recoverable(self) -> bool:
        training = self.run.training
        return all(self.ranks & set(training.group(rank)) for rank in range(training.ranks))

    @property
    def whole(self) -> bool:
        return len(self.ranks) == self.run.training.ranks

    @property
    def age(self) -> tuple[int, int]:
        return self.position, self.run.number

    @property
    def names(self) -> set[str]:
        """The names of its slices, when every rank has one."""
        return {self.run.path(rank, self.position).name for rank in range(self.run.training.ranks)}


@dataclass(frozen=True)
class Job:
    """A tree, every step in it by the time of its save, and what lies in it that may mislead."""

    training: Training
    saved: tuple[Truth, ...]

    @property
    def recoverable(self) -> bool:
        return any(one.recoverable for one in self.saved)

    @property
    def is_tidy(self) -> bool:
        """Whether the newest step is whole, and nothing newer lies about."""
        return self.newest.whole and not self.longer

    @property
    def longer(self) -> list[Truth]:
        """Those that were trained longer than the newest one that is recoverable, newest first."""
        found = [one for one in self.saved if one.age > self.newest.age]
        return sorted(found, key=lambda one: one.age, reverse=True)

    @property
    def newest(self) -> Truth:
        """The recoverable step that was trained longest; of equals that of the later run."""
        recoverable = [one for one in self.saved if one.recoverable]
        return max(recoverable, key=lambda one: one.age)


@contextmanager
def job_of(draw: st.DrawFn, *evidence: Evidence) -> Iterator[Job]:
    """Draw a job, in a directory that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ms_recover-order-") as home:
        yield draw_job(draw, Path(home) / "checkpoint", evidence)


def draw_job(draw: st.DrawFn, root: Path, evidence: Sequence[Evidence]) -> Job:
    """Draw one to three runs, each resumed from the newest step; ranks may have died before their last slice.

    Where that needs a copy, or would make the next names differ, a plan is applied first.
    """
    stated = draw(st.sampled_from(evidence), label="evidence")
    training = Training(root, ranks=RANKS, apart=draw(st.booleans(), label="no replicas"), evidence=stated)
    job = Job(training=training, saved=())
    for number in range(draw(st.integers(1, 3), label="runs")):
        if number and not (job.recoverable and (stated != "nothing" or job.is_tidy)):
            break
        job = replace(job, saved=_resumable(job))
        run, saved = training.resume(job.newest.position if number else 0), list(job.saved)
        for gap in draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="saves"):
            at = max([run.start, *(one.position for one in saved if one.run is run)]) + gap
            saved.append(Truth(run, at, frozenset(range(RANKS))))
            run.save(at, late=True)
        lacking = draw(st.sets(st.integers(0, RANKS - 1), max_size=2), label="without the last slice")
        for rank in lacking:
            remove_slice(run, rank, saved[-1].position)
        saved[-1] = replace(saved[-1], ranks=saved[-1].ranks - lacking)
        _write_metas(draw, run, saved)
        job = replace(job, saved=tuple(saved))
    return job


def _resumable(job: Job) -> tuple[Truth, ...]:
    """Return what is in a tree after a plan was applied to it, where the next run needs that."""
    if not job.recoverable or job.is_tidy:
        return job.saved
    api.apply(api.plan(api.scan(job.training.root), OPTIONS))
    assert all(job.newest.run.path(rank, job.newest.position).exists() for rank in range(RANKS))
    held = [
        replace(one, ranks=frozenset(rank for rank in range(RANKS) if one.run.path(rank, one.position).exists()))
        for one in job.saved
    ]
    return tuple(one for one in held if one.ranks)


def remove_slice(run: Run, rank: int, position: int) -> None:
    """Remove a slice and its manifest, as of a rank that died before."""
    path = run.path(rank, position)
    path.unlink()
    Path(f"{path}.manifest.json").unlink(missing_ok=True)


def _write_metas(draw: st.DrawFn, run: Run, saved: list[Truth]) -> None:
    """Let meta.json name the last slice of a rank, or an earlier one as of asynchronous saves; some are lost."""
    for rank in range(RANKS):
        own = [one for one in saved if rank in one.ranks]
        late = draw(st.sampled_from(["right", "late", "lost"]), label=f"meta.json of rank {rank}")
        path = run.training.folder(rank) / "meta.json"
        if late == "lost" or not own:
            path.unlink(missing_ok=True)
            continue
        named = own[-2] if late == "late" and len(own) > 1 else own[-1]
        named.run.write_meta(rank, named.position)


def is_refused_as_double(plan, truth: Truth) -> bool:
    """Whether two runs saved a step under one name, no manifest and no meta.json of most ranks tells them apart."""
    step = truth.run.step(truth.position)
    reasons = [one.reason for one in plan.rejected_steps if one.step == step]
    return any("two slices for one step" in why and f"--run {prefix_of(truth)}" in why for why in reasons)


def prefix_of(truth: Truth) -> str:
    return truth.run.prefixes[0].replace("_rank_0", "")


def names(plan) -> set[str]:
    return {rank.path.rpartition("/")[2] for rank in plan.ranks}


@given(data=st.data())
@settings(max_examples=examples(120))
def test_the_step_that_was_trained_longest_is_taken(data):
    with job_of(data.draw, "manifest", "global_step", "step_num") as job:
        if not job.recoverable:
            return
        plan, truth = api.plan(api.scan(job.training.root), OPTIONS), job.newest
        event(f"{len(job.training.runs)} runs, {'whole' if truth.whole else 'copied'}")
        if is_refused_as_double(plan, truth):
            assert plan.not_newest
            return
        assert (plan.step, plan.cumulative_step) == (truth.run.step(truth.position), truth.position)
        assert names(plan) == truth.names
        longer = dict.fromkeys((one.run.step(one.position), one.position) for one in job.longer)
        assert [one.step for one in plan.rejected_steps] == [step for step, _ in longer]
        last = {one.run.step(one.position) for one in job.longer if one.run is job.training.runs[-1]}
        assert last <= {one.step for one in plan.given_up}
        assert not any(one.may_be_newer for one in plan.rejected_steps)


@given(data=st.data())
@settings(max_examples=examples(60))
def test_where_nothing_states_it_the_newest_step_is_not_known(data):
    """Names decide; where the step that was trained longest is another one, a rerun is named that may be newer."""
    with job_of(data.draw, "nothing") as job:
        if not job.recoverable:
            return
        plan = api.plan(api.scan(job.training.root), OPTIONS)
        if plan.step is None:  # two runs saved steps of one name
            event("none is taken")
            reasons = " ".join(one.reason for one in (*plan.ranks, *plan.rejected_steps))
            assert "--newest" in reasons or "--run" in reasons
        elif names(plan) != job.newest.names:
            event("another step is taken")
            assert plan.not_newest
            assert plan.warnings or plan.given_up


@given(data=st.data())
@settings(max_examples=examples(60))
def test_after_apply_mindformers_resumes_from_the_planned_step_and_names_the_next_run_alike(data):
    with job_of(data.draw, "manifest", "global_step") as job:
        if not job.recoverable:
            return
        root, truth = job.training.root, job.newest
        plan = api.plan(api.scan(root), OPTIONS)
        if is_refused_as_double(plan, truth):
            plan = api.plan(api.scan(root), replace(OPTIONS, run=prefix_of(truth)))
        api.apply(plan)
        if list(root.glob("rank_*/meta.json")):
            assert {resumed_file(root, rank) for rank in range(RANKS)} == truth.names
        again = job.training.resume(truth.position)
        assert len({prefix.replace(f"_rank_{rank}", "") for rank, prefix in enumerate(again.prefixes)}) == 1
        assert not api.plan(api.scan(root), OPTIONS).changes_anything


STEPS = [Step(epoch, step) for epoch in (1, 2) for step in (1, 2, 3)]


def saved(prefix: str, step: Step, trained: int | None, ranks: Sequence[int], mtime: int) -> list[SliceFile]:
    place = RankPath(("rank_", f"/{prefix}_rank_", f"-{step}.ckpt"))
    return [SliceFile(rank, step, place, prefix, 9, mtime, parameters(), global_step=trained) for rank in ranks]


@given(
    trained=st.lists(st.integers(1, 30), min_size=1, max_size=len(STEPS), unique=True),
    left=st.dictionaries(st.sampled_from(STEPS), st.none() | st.integers(1, 60)),
    ranks=st.sampled_from([[0], [2], [0, 1, 2, 3]]),
)
@settings(max_examples=examples(400))
def test_what_another_run_left_behind_under_the_same_names_changes_no_order(trained, left, ranks):
    """One rank has its slices, or all slices of it were written before."""
    own = [file for step, at in zip(STEPS, trained, strict=False) for file in saved("CKP", step, at, range(RANKS), 5)]
    beside = [file for step, at in left.items() for file in saved("other", step, at, ranks, 1)]
    plan = make_plan(tree([*own, *beside], pairs(RANKS)))
    assert plan.step == STEPS[trained.index(max(trained))]
    assert [rank.path for rank in plan.ranks] == [
        f"rank_{rank}/CKP_rank_{rank}-{plan.step}.ckpt" for rank in range(RANKS)
    ]
