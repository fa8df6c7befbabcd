"""Several experiments in one folder: every verb takes one of them, the same one, and never mixes two."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover import api, load_full
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.planning.choice import candidates_of
from ms_recover.planning.tree.candidates import Candidate, find_candidates
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.verbs.metrics import number_of
from tests.property.test_one_choice import WHOLE, Order, of_complete, of_load, of_plan, of_reshard
from tests.support.examples import examples
from tests.support.experiment_trees import ExperimentTree, Start, random_experiments

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@settings(max_examples=examples(30))
@given(st.integers(0, (1 << 32) - 1))
def test_where_manifests_state_experiments_each_is_gone_on_with_by_itself(seed: int) -> None:
    tree = random_experiments(Random(seed), stated=True)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = tree.write(Path(folder) / "checkpoint")
        inventory = api.scan(root)
        event(f"{len(tree.experiments)} experiments")
        _check_taken(tree, root, inventory, PlanOptions(), tree.last())
        for experiment in tree.experiments:
            last = tree.last(experiment)
            _check_taken(tree, root, inventory, PlanOptions(run=experiment), last)
            _check_candidates(tree, inventory, PlanOptions(experiments=(experiment,)), last)
        others = find_candidates(TreeFacts(inventory, PlanOptions(experiments=("another",))))
        assert not any(isinstance(one, Candidate) for one in others)
        several = PlanOptions(experiments=tuple(tree.experiments))
        _check_candidates(tree, inventory, several, tree.last())


@settings(max_examples=examples(40))
@given(st.integers(0, (1 << 32) - 1))
def test_with_manifests_of_before_and_without_any_the_verbs_agree_and_mix_no_runs(seed: int) -> None:
    source = Random(seed)
    tree = random_experiments(source, stated=False)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = tree.write(Path(folder) / "checkpoint")
        inventory = api.scan(root)
        chosen = source.choice((None, None, *tree.experiments))
        options = PlanOptions(run=chosen, quick=source.random() < 0.5)
        try:
            plan = api.plan(inventory, options)
        except MsRecoverError as error:
            event(type(error).__name__)
            return
        order = Order(inventory, options)
        places = {"plan": order.check("plan", of_plan(plan, order))}
        places["reshard"] = order.check("reshard", of_reshard(inventory, options))
        places["complete"] = order.check("complete", of_complete(inventory, options, source.randrange(tree.ranks)))
        if (why := _why_refused(root, options)) is None:
            places["load_full"] = order.check("load_full", of_load(root, options))
        else:
            assert chosen is None, why
        assert all(place <= places["plan"] for place in places.values()), places
        assert api.explain(inventory, 0, options)[0] == plan
        assert api.audit(inventory, options).step == plan.step
        starts = _starts_of(tree, plan)
        event(f"{len(starts)} starts taken")
        assert len({one.experiment for one in starts}) <= 1, starts
        if chosen is not None and any(one.manifests == "new" for one in tree.starts if one.experiment == chosen):
            assert all(one.experiment == chosen or _leads_to(one, tree, chosen) for one in starts), (starts, chosen)


def _leads_to(start: Start, tree: ExperimentTree, experiment: str) -> bool:
    return any(start in [one for one, _ in other.line] for other in tree.starts if other.experiment == experiment)


def _starts_of(tree: ExperimentTree, plan: Plan) -> list[Start]:
    """Return the starts whose slices a plan keeps or copies."""
    paths = {one.path for one in plan.ranks if one.verdict == "keep"}
    paths |= {replica.path for action in plan.actions for replica in action.replicas}
    prefixes = {os.path.basename(path or "").rpartition("-")[0] for path in paths}
    return [one for one in tree.starts if one.prefix in prefixes]


def _check_taken(tree: ExperimentTree, root: Path, inventory: Inventory, options: PlanOptions, start: Start) -> None:
    """Check that every verb takes the newest step of a start that some replica of each slice is left of."""
    line = _check_candidates(tree, inventory, options, start)
    plan = api.plan(inventory, options)
    assert (plan.step, plan.run_id) == (start.newest, start.run_id)
    assert _starts_of(tree, plan) == [start]
    others = sorted(set(tree.experiments) - {one.experiment for one, _ in start.line})
    warned = [text for text in plan.warnings if "of several experiments" in text]
    assert len(warned) == (1 if others and options.run is None else 0), (plan.warnings, others)
    assert all(repr(other) in text for text in warned for other in others)
    assert not [text for text in plan.warnings if "its slices are of the experiment" in text]
    assert api.audit(inventory, options).step == plan.step
    assert api.describe(inventory, options).plan == plan
    assert api.plan_reshard(inventory, "/nowhere", WHOLE, options).step == plan.step
    assert of_complete(inventory, options, 0).step == plan.step
    assert api.measure(inventory, options).recoverable_step == number_of(inventory, start.newest, start.run_id)
    past = api.history(inventory, options)
    assert {one.step for one in past.steps} <= {Step(1, number) for number in line}
    assert {one.run_id for one in past.steps} <= {one.run_id for one, _ in start.line}
    why = _why_refused(root, options)
    assert (why is None) == (not others or options.run is not None), why
    assert why is None or all(repr(other) in why for other in (*others, start.experiment)), why
    if why is not None:
        return
    with load_full(root, options=options) as loaded:
        assert loaded.step == start.newest
        for name, values in _alone(tree, start).items():
            assert loaded[name].tobytes() == values, name


def _why_refused(root: Path, options: PlanOptions) -> str | None:
    """Return why load_full refuses to choose an experiment; None where it chooses, or refuses for another reason."""
    try:
        load_full(root, options=options).close()
    except UsageError as error:
        return str(error)
    except MsRecoverError:
        pass
    return None


def _alone(tree: ExperimentTree, start: Start) -> dict[str, bytes]:
    """Return the parameters of the newest step of a start, from a folder that has nothing else."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = replace(tree, starts=(start,), lost=frozenset(), bare=frozenset()).write(Path(folder) / "checkpoint")
        with load_full(root, options=PlanOptions(run=start.run_id)) as found:
            assert found.step == start.newest
            return {name: found[name].tobytes() for name in found}


def _check_candidates(tree: ExperimentTree, inventory: Inventory, options: PlanOptions, start: Start) -> list[int]:
    """Check that the candidates are the steps of a start and those that it goes on from; return their numbers."""
    facts = TreeFacts(inventory, options)
    found = [one for one in candidates_of(facts) if isinstance(one, Candidate)]
    line = [number for run, until in start.line for number in run.steps if number <= until]
    assert {one.step for one in found} == {Step(1, number) for number in line}
    runs = {run.run_id for one in found for run in one.runs}
    assert runs <= {one.run_id for one, _ in start.line}
    return line
