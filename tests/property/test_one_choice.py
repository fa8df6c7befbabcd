"""Every verb takes the same step of a tree, and passes over the others for the same reasons.

Where a verb needs less than a plan, it may take a step that the plan passes over after judging it; that is the argument
with which it asks, and `NEEDS_LESS` names it. It passes over one that the plan takes for the reason `NEEDS_MORE` alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover import api, load_full
from ms_recover.errors import MissingInputError, MsRecoverError, UnrecoverableError, UsageError, VerificationError
from ms_recover.model.inventory import Inventory
from ms_recover.model.metrics import NO_STEP
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan, RejectedStep
from ms_recover.model.reshard import ReshardOptions
from ms_recover.model.steps import Step
from ms_recover.planning.choice import candidates_of
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.verbs.metrics import number_of
from tests.support.examples import examples
from tests.support.run_trees import random_options, random_tree, strike

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
WHOLE = ReshardOptions(full=True)
NEEDS_LESS = {
    "reshard": "every region of every parameter has a holder: why_not=why_incomplete of api.plan_reshard",
    "load_full": "every region of the named parameters has a holder: why_not=_why_lacking in loading/full.py",
    "complete": "the slice of one rank can be composed: judge_complete of planning/plan/explain.py",
}
NEEDS_MORE = "no layout states how it is cut, and it differs from rank to rank"
"""Why reshard and load_full pass over a step that a plan takes: each rank keeps its own value, and they need one."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The step that a verb takes, or at which replicas differ; and those that it passed over, each with the reason."""

    step: Step | None = None
    disputed: Step | None = None
    passed_over: tuple[RejectedStep, ...] | None = ()
    """None where the verb does not say it."""


class Order:
    """The steps of a tree from the newest to the oldest, with the reason for each that no verb may take."""

    def __init__(self, inventory: Inventory, options: PlanOptions) -> None:
        self.reasons: dict[Step, str | None] = {
            one.step: one.reason if isinstance(one, RejectedStep) else None
            for one in candidates_of(TreeFacts(inventory, options))
        }
        self.steps = list(self.reasons)

    def place(self, step: Step | None) -> int:
        return len(self.steps) if step is None else self.steps.index(step)

    def check(self, verb: str, found: Answer) -> int:
        """Check that an answer names every step that it passed over, and why; return the place of its step."""
        end = found.step if found.step is not None else found.disputed
        place = self.place(end)
        if end is not None:
            assert self.reasons[end] is None, (verb, found)
        if found.passed_over is not None:
            passed_over = (one for one in found.passed_over if not one.may_be_newer)  # plan alone warns of these
            given = {one.step: one.reason for one in passed_over if one.step != end}
            assert set(given) == set(self.steps[:place]), (verb, found)
            for step, reason in given.items():
                assert self.reasons[step] in (None, reason), (verb, step, reason)
        return place


def of_plan(plan: Plan, order: Order) -> Answer:
    shown = plan.considered if plan.disagreements else None
    disputed = shown if shown is not None and order.reasons[shown] is None else None
    return Answer(step=plan.step, disputed=disputed, passed_over=plan.rejected_steps)


def of_reshard(inventory: Inventory, options: PlanOptions) -> Answer:
    try:
        made = api.plan_reshard(inventory, "/nowhere", WHOLE, options)
    except UnrecoverableError:
        return Answer(passed_over=None)
    if made.disagreements:
        return Answer(disputed=made.step, passed_over=made.rejected_steps)
    if made.complete:
        return Answer(step=made.step, passed_over=made.rejected_steps)
    why = "; ".join(one.reason for one in made.missing)
    return Answer(passed_over=(*made.rejected_steps, RejectedStep(made.step, why)))


def of_load(root: Path, options: PlanOptions, names: str | None = None) -> Answer:
    others = replace(options, step=None)
    try:
        with load_full(root, names, options=others, step=options.step, verify=not options.quick) as found:
            lost = [*found.lost, *(one for regions in found.missing.values() for one in regions)]
            if lost:
                assert found.step is not None
                why = "; ".join(one.reason for one in lost)
                return Answer(passed_over=(*found.rejected_steps, RejectedStep(found.step, why)))
            return Answer(step=found.step, passed_over=found.rejected_steps)
    except UnrecoverableError:
        return Answer(passed_over=None)
    except UsageError:  # the newest step has no such parameter: a damaged file alone names it
        assert names is not None
        return of_load(root, options)
    except VerificationError as error:
        return Answer(disputed=_named(str(error), root, options), passed_over=None)


def of_complete(inventory: Inventory, options: PlanOptions, rank: int) -> Answer:
    try:
        if inventory.iterations:
            written = api.complete_iteration(inventory, rank, options)
        else:
            written = (api.complete(inventory, rank, options),)
    except UnrecoverableError:
        return Answer(passed_over=None)
    except VerificationError as error:
        return Answer(disputed=_named(str(error), Path(inventory.root), options), passed_over=None)
    for done in written:
        (Path(inventory.root) / done.target).unlink()
    (step,) = {
        step
        for step in inventory.steps
        for done in written
        if f"iteration_{step.step:08d}/" in done.target or f"-{step}.complete" in done.target
    }
    return Answer(step=step, passed_over=None)


def _named(text: str, root: Path, options: PlanOptions) -> Step:
    """Return the step that an error names, the last one of those that it tried."""
    steps = [step for step in api.scan(root).steps if f"step {step}:" in text]
    order = Order(api.scan(root), options)
    return max(steps, key=order.place)


@settings(max_examples=examples(60))
@given(st.integers(0, (1 << 32) - 1))
def test_every_verb_takes_the_same_step_and_passes_over_the_others_for_the_same_reasons(seed: int) -> None:
    event(check(seed))


def check(seed: int) -> str:
    """Check the tree of a seed; return what became of it."""
    source = Random(seed)
    tree = random_tree(source)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = tree.write(Path(folder), source)
        if tree.manifests == "all":
            _check_truth(api.plan(api.scan(root), PlanOptions(quick=True)), tree.outside())
        strike(tree, root, source)
        options = random_options(tree, source)
        try:
            inventory = api.scan(root)
        except MissingInputError:
            return "no slice"
        if not inventory.steps:
            return "no slice"
        try:
            plan = api.plan(inventory, options)
        except MsRecoverError as error:  # nothing of the chosen run, or of the ranks that are not lost, is left
            _check_all_refuse(type(error), inventory, options)
            return type(error).__name__
        order = Order(inventory, options)
        order.check("plan", of_plan(plan, order))
        _check_same_judge(plan, inventory, options)
        everyone = replace(options, ranks=None)  # an option of plan alone, as quick is none of complete
        plans = {quick: api.plan(inventory, replace(everyone, quick=quick)) for quick in (options.quick, False)}
        ask = {
            "reshard": lambda: of_reshard(inventory, options),
            "load_full": lambda: of_load(root, options),
            "load_full of one": lambda: of_load(root, options, _some_name(inventory, source)),
            "complete": lambda: of_complete(inventory, options, source.randrange(tree.ranks)),
        }
        for verb, call in ask.items():
            found, needs_more = call(), plans[options.quick and verb != "complete"]
            place, most = order.check(verb, found), order.check("plan", of_plan(needs_more, order))
            if any(one.step == needs_more.step and NEEDS_MORE in one.reason for one in found.passed_over or ()):
                continue
            assert place <= most, (verb, found, needs_more.step)
            if found.step is None and needs_more.recoverable:  # it read a step that a plan passed over without
                assert found.disputed is not None, (verb, found)
                assert place < most, (verb, found)
        return "taken" if plan.recoverable else "disputed" if plan.disagreements else "none"


def _check_truth(plan: Plan, outside: Sequence[Step]) -> None:
    """Check that of a whole tree the newest step of the present run is taken, and newer ones are of others alone."""
    assert all(one.another_run and one.step in outside for one in plan.rejected_steps), (plan.rejected_steps, outside)
    assert plan.recoverable
    assert plan.step not in outside


def _check_same_judge(plan: Plan, inventory: Inventory, options: PlanOptions) -> None:
    """Check the verbs that need as much as a plan."""
    again, explanation = api.explain(inventory, 0, options)
    assert again == plan
    assert explanation.step == plan.considered
    assert api.audit(inventory, options).step == plan.step
    report = api.describe(inventory, options)
    assert report.plan == plan
    assert report.audit is None or report.audit.step == plan.step
    assert [one.step for one in report.steps if one.step == plan.step and not one.recoverable] == []
    others = {one.step for one in plan.rejected_steps if one.another_run and not one.may_be_newer}
    past = api.history(inventory, options)
    assert others.isdisjoint(one.step for one in past.steps)
    newest = api.plan(inventory, replace(options, step=None, quick=True))
    number = number_of(inventory, newest.step, newest.run_id) if newest.step is not None else NO_STEP
    assert api.measure(inventory, options).recoverable_step == number


def _check_all_refuse(kind: type[MsRecoverError], inventory: Inventory, options: PlanOptions) -> None:
    root = inventory.root
    calls: dict[str, Callable[[], object]] = {
        "explain": lambda: api.explain(inventory, 0, options),
        "audit": lambda: api.audit(inventory, options),
        "history": lambda: api.history(inventory, options),
        "reshard": lambda: api.plan_reshard(inventory, "/nowhere", WHOLE, options),
        "load_full": lambda: load_full(root, options=replace(options, step=None), step=options.step, verify=True),
        "complete": lambda: of_complete(inventory, options, 0),
    }
    for verb, call in calls.items():
        if verb == "history" and kind is MissingInputError:
            continue  # manifests without slices have a history
        try:
            found = call()
        except MsRecoverError as error:
            assert type(error) is kind or options.step not in (None, *inventory.steps), (verb, error)  # noqa: PT017
        else:
            raise AssertionError(f"{verb} takes {found} where there is no plan")


def _some_name(inventory: Inventory, source: Random) -> str | None:
    names = {one.name for file in inventory.slices if file.problem is None for one in file.parameters}
    return source.choice(sorted(names)) if names else None
