"""The step that every command takes of a tree with several runs."""

from random import Random

import pytest

from ms_recover import load_full
from ms_recover.model.steps import Step
from tests.support.run_trees import HOUR, RunTree, SavedRun

A = SavedRun(name="A", started=HOUR, steps=(100, 300))
B = SavedRun(name="B", started=2 * HOUR, steps=(200,), resumed_from=(A, 100))
WHY = "its slices are of run A, started 1970-01-01 01:00:00 UTC, and were given up when run B, started 1970-01-01 02:"
ADVICE = "--run A chooses it, or recover_train(run='A'), or MS_RECOVER_RUN=A in the environment"


@pytest.fixture(params=["iterations", "slices"])
def tree(request, tmp_path):
    made = RunTree(iterations=request.param == "iterations", model_parallel=2, adapter=False, runs=(A, B))
    return made, made.write(tmp_path, Random(0))


def test_a_run_that_went_on_from_an_earlier_step_of_another_is_the_one_that_every_command_takes(tree, recover_ckpt):
    made, root = tree
    step = str(made.step(200))
    planned = recover_ckpt("plan", root)
    assert f"at step {step}" in planned.out
    assert f"WARNING: step {made.step(300)} is passed over: {WHY}00:00 UTC, went on from step {made.step(100)}; " in (
        planned.out
    )
    assert ADVICE in planned.out
    assert recover_ckpt("audit", root, "--json").json["step"] == recover_ckpt("plan", root, "--json").json["step"]
    assert str(made.step(300)) not in [one["step"] for one in recover_ckpt("history", root, "--json").json["steps"]]


@pytest.mark.parametrize(("words", "number"), [((), 200), (("--run", "B"), 200), (("--run", "A"), 300)])
def test_reshard_full_takes_the_step_of_the_run(tree, recover_ckpt, tmp_path, words, number):
    made, root = tree
    done = recover_ckpt("reshard", root, "-o", tmp_path / "out", "--full", *words)
    assert done.code == 0, done.err
    assert f"DONE: step {made.step(number)} is cut anew" in done.out
    assert (ADVICE in done.out) == (number == 200)


@pytest.mark.parametrize(("words", "number"), [((), 200), (("--run", "B"), 200), (("--run", "A"), 300)])
def test_complete_takes_the_step_of_the_run(tree, recover_ckpt, words, number):
    made, root = tree
    done = recover_ckpt("complete", root, "0", *words)
    assert done.code == 0, done.err
    form = f"iteration_{number:08d}/" if made.iterations else f"-{Step(1, number)}.complete.ckpt"
    assert all(form in line for line in done.out.splitlines())


def test_load_full_takes_the_step_of_the_run_and_names_the_one_that_was_given_up(tree):
    made, root = tree
    with load_full(root) as found:
        assert found.step == made.step(200)
        assert [one.step for one in found.rejected_steps] == [made.step(300)]
        assert ADVICE in found.rejected_steps[0].reason


def test_a_run_that_was_given_up_is_chosen_by_its_name(tree, recover_ckpt):
    made, root = tree
    assert f"at step {made.step(300)}" in recover_ckpt("plan", root, "--run", "A").out
    assert f"at step {made.step(300)}" in recover_ckpt("plan", root, env={"RECOVER_CKPT_RUN": "A"}).out
