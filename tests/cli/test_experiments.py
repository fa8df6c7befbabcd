"""Two experiments of a sweep in one folder: the one that every command takes, and `--run` by a prefix."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import pytest

from ms_recover import load_full
from ms_recover.errors import UsageError
from ms_recover.model.options import PlanOptions
from tests.support.page_trees import sweep

WARNING = "the slices are of several experiments, and 'lr_0.01' was started last: passed over are those of 'lr_0.5'"
CASES = [((), "lr_0.01", "1_100"), (("--run", "lr_0.01"), "lr_0.01", "1_100"), (("--run", "lr_0.5"), "lr_0.5", "1_200")]


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "checkpoint"
    with ExitStack() as stack:
        sweep(root, stack)
    return root


@pytest.mark.parametrize(("words", "prefix", "step"), CASES)
def test_every_command_takes_the_same_experiment(tree, recover_ckpt, words, prefix, step, tmp_path):
    number = {"epoch": 1, "step": int(step[2:])}
    planned = recover_ckpt("plan", tree, "--json", *words).json
    assert planned["step"] == number
    assert {rank["path"].rpartition("/")[2] for rank in planned["ranks"]} == {f"{prefix}-{step}.ckpt"}
    assert [WARNING in text for text in planned["warnings"]] == [True] * (not words)
    others = [one for one in planned["rejected_steps"] if one.get("another_experiment")]
    assert others == ([] if prefix == "lr_0.5" else planned["rejected_steps"])
    assert recover_ckpt("plan", tree, "--explain", "0", "--json", *words).json["step"] == number
    audited = recover_ckpt("audit", tree, "--survive", "rank", "--json", *words)
    assert (audited.json["step"], WARNING in audited.err) == (number, not words)
    completed = recover_ckpt("complete", tree, "0", "-o", tmp_path / "full.ckpt", "--dry-run", *words)
    assert (WARNING in completed.err) == (not words)
    history = recover_ckpt("history", tree, "--json", *words).json
    assert history["steps"][-1]["step"] == number["step"]
    assert [WARNING in note for note in history["notes"]] == [True] * (not words)
    figures = recover_ckpt("metrics", tree, *words)
    assert f"ms_recover_newest_step {step[2:]}.0" in figures.out
    assert (WARNING in figures.err) == (not words)
    made = recover_ckpt("reshard", tree, "-o", tmp_path / "out", "--full", *words)
    assert f"DONE: step {step} is cut anew" in made.out
    assert (WARNING in made.out) == (not words)


def test_a_scan_names_the_experiments_in_one_line(tree, recover_ckpt):
    said = "experiments, which --run takes by their names: 'lr_0.01' up to step 1_100, 'lr_0.5' up to step 1_200"
    assert said in recover_ckpt("scan", tree).out.splitlines()
    for path in tree.rglob("lr_0.5*"):
        path.unlink()
    assert "experiments" not in recover_ckpt("scan", tree).out


@pytest.mark.parametrize(("words", "prefix", "step"), CASES)
def test_a_lost_directory_gets_the_slice_of_the_experiment(tree, recover_ckpt, words, prefix, step):
    shutil.rmtree(tree / "ckpt_dir1")
    done = recover_ckpt("apply", tree, *words)
    assert done.code == 0, done.err
    assert [path.name for path in (tree / "ckpt_dir1").glob("lr*.ckpt")] == [f"{prefix}-{step}.ckpt"]


@pytest.mark.parametrize(("words", "prefix", "step"), CASES)
def test_complete_takes_the_experiment_and_names_the_other(tree, recover_ckpt, caplog, words, prefix, step):
    done = recover_ckpt("complete", tree, "0", *words)
    assert done.code == 0, done.err
    assert f"{prefix}-{step}.complete.ckpt" in done.out
    assert (WARNING in caplog.text) == (not words)


def test_a_report_names_the_other_experiment(tree, recover_ckpt, tmp_path):
    page = tmp_path / "report.html"
    assert recover_ckpt("report", tree, "-o", page).code == 0
    assert "are of several experiments" in page.read_text()


def test_an_experiment_from_the_environment_is_taken(tree, recover_ckpt, monkeypatch):
    monkeypatch.setenv("RECOVER_CKPT_RUN", "lr_0.5")
    assert recover_ckpt("plan", tree, "--json").json["step"] == {"epoch": 1, "step": 200}


def test_load_full_refuses_to_choose_and_names_what_to_pass(tree):
    with pytest.raises(UsageError) as refused:
        load_full(tree)
    assert str(refused.value).endswith(
        "has slices of several experiments, 'lr_0.01', 'lr_0.5': name one, with options=PlanOptions(run='lr_0.01')"
    )
    with pytest.raises(UsageError, match="has step 1_100 of several experiments"):
        load_full(tree, step="1_100")
    for prefix, step in (("lr_0.01", "1_100"), ("lr_0.5", "1_200")):
        with load_full(tree, options=PlanOptions(run=prefix)) as found:
            assert str(found.step) == step
    with load_full(tree, step="1_200") as found:
        assert str(found.step) == "1_200"
