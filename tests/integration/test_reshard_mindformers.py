"""MindFormers' own loader reads what a reshard writes in its format, and cuts the same trees to the same contents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.model.axes import Axes
from ms_recover.model.reshard import ReshardOptions
from tests.support.mindformers_loader import copy_tree, digests, tensors

pytest.importorskip("mindspore", minversion="2.10")  # what MindFormers 2.0 asks for
pytestmark = [pytest.mark.packaging, pytest.mark.mindspore, pytest.mark.timeout(300)]

TREES = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")
SOURCES = TREES if "MS_RECOVER_EXAMPLES" in os.environ else TREES[2:]
ITERATION = "iteration_00000200"


def reshard(root, output, **wanted):
    wanted = ReshardOptions(form="mindformers", common=(("global_batch_size", 16),), **wanted)
    plan = api.plan_reshard(api.scan(root), output, wanted)
    outcome = api.reshard(plan, verify=False, compare=True)
    assert (outcome.exit_code, outcome.errors) == (0, ())
    return plan


def written(output: Path, ranks: int) -> dict[str, dict[str, str]]:
    """Return the digest of each parameter in the files of each rank, without the scalars."""
    found: dict[str, dict[str, str]] = {}
    iteration = max(output.glob("iteration_*"))
    for rank in range(ranks):
        for path in iteration.glob(f"*-{rank:07d}-{ranks:07d}.safetensors"):
            found.setdefault(str(rank), {}).update(digests(path))
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_it_reads_what_it_would_have_cut_itself(mindformers, tmp_path, source):
    """Each tree, cut as each other one was: our files, what it reads of them, and what it cuts are one."""
    root = copy_tree(source, tmp_path / "source", mindformers.version)
    for target in TREES:
        other = copy_tree(target, tmp_path / target, mindformers.version) / ITERATION / "metadata.json"
        theirs = tensors(mindformers.resume_new(root, 8, other))
        output = tmp_path / f"{target}_of_{source}"
        reshard(root, output, strategy=str(other))
        answer = mindformers.resume_new(output, 8)
        assert answer["path"] == str(output / ITERATION)
        assert answer["common"]["global_step"] == 200
        assert written(output, 8) == theirs, target
        assert tensors(answer) == theirs, target


def test_it_reads_one_whole_checkpoint_and_cuts_it_to_the_tree_that_it_was(mindformers, tmp_path):
    root = copy_tree("dp2_mp2_pp2", tmp_path / "source", mindformers.version)
    reshard(root, tmp_path / "whole", full=True)
    document = root / ITERATION / "metadata.json"
    assert tensors(mindformers.resume_new(tmp_path / "whole", 1)) == written(tmp_path / "whole", 1)
    assert tensors(mindformers.resume_new(tmp_path / "whole", 8, document)) == written(root, 8)


@pytest.mark.parametrize(
    ("name", "axes", "iteration"),
    [
        ("dp4_mp2_opt2", "tp=2,dp=2", 77),
        ("dp4_mp2_optfull", "tp=1,dp=4", 77),
        ("dp2_mp2_pp2", "tp=2,dp=1,pp=2", 77),
        ("mindformers_legacy", "tp=4,dp=2", 200),
    ],
)
def test_it_reads_a_tree_of_another_format(mindformers, fixtures, tmp_path, name, axes, iteration):
    output = tmp_path / "output"
    plan = reshard(fixtures / name, output, axes=Axes.parse(axes), optimizer_shards=-1 if "opt" in name else 0)
    answer = mindformers.resume_new(output, plan.ranks)
    assert answer["common"]["step_num"] == iteration
    assert tensors(answer) == written(output, plan.ranks)
    assert len(answer["tensors"]["0"]) > 10
