"""Two jobs in one folder without manifests, on the command line: one is taken, the other is a word away."""

import shutil
from contextlib import ExitStack

import pytest

from tests.support.page_trees import two_jobs


@pytest.fixture
def tree(tmp_path):
    """Both jobs are whole at both steps, but for the directory of rank 3."""
    root = tmp_path / "output"
    with ExitStack() as stack:
        two_jobs(root, stack)
    shutil.move(root / "rank_3", tmp_path / "lost")
    return root


@pytest.mark.parametrize(("job", "options"), [("llama", []), ("qwen", ["--run", "qwen"])])
def test_a_lost_directory_gets_the_slice_of_the_run_that_is_taken(job, options, tree, recover_ckpt):
    done = recover_ckpt("apply", tree, *options)
    assert done.code == 0, done.err
    written = sorted(path.name for path in (tree / "rank_3").glob("*.ckpt"))
    assert written == [f"{job}-1_200.ckpt"]
    assert (tree / "rank_3" / written[0]).read_bytes() == (tree.parent / "lost" / written[0]).read_bytes()
    assert ("--run qwen takes it" in done.out) == (not options)


def test_a_prefix_from_the_environment_is_taken(tree, recover_ckpt, monkeypatch):
    monkeypatch.setenv("RECOVER_CKPT_RUN", "qwen")
    done = recover_ckpt("plan", tree, "--json")
    assert {rank["path"].rpartition("/")[2] for rank in done.json["ranks"]} == {"qwen-1_200.ckpt"}
    assert done.json["warnings"] == []


@pytest.mark.parametrize("arguments", [("plan",), ("apply",), ("audit",), ("history",), ("metrics",)])
def test_a_prefix_that_is_not_there_is_refused_with_those_that_are(arguments, tree, recover_ckpt):
    done = recover_ckpt(*arguments, tree, "--run", "gamma")
    assert done.code == 2
    assert "there is no run 'gamma' here; there is llama (by the prefix of its slices); qwen (by" in done.err + done.out
