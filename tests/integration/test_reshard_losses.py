"""Trees that MindSpore and MindFormers wrote, with ranks lost: what is left gives what the whole tree gave."""

from __future__ import annotations

import shutil
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions
from tests.support.examples import examples
from tests.support.iteration_trees import unpack
from tests.support.reshard import contents_of

TREES = ("dp2_mp4", "dp4_mp2_opt2", "dp4_mp2_optfull", "dp2_mp2_pp2", "mindformers_legacy")
NEW = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")
LOSSES = examples(3)
"""Of one rank and of two, for each tree."""
FULL = ReshardOptions(full=True, form="safetensors")


@pytest.mark.parametrize(("name", "new"), [(name, False) for name in TREES] + [(name, True) for name in NEW])
def test_every_loss_is_made_good_or_named(name: str, new: bool, fixtures: Path, tmp_path: Path) -> None:
    """A part of a parameter is lost when no other slice has the same contents: those of these trees all differ."""
    root = unpack(name, tmp_path / "tree") if new else tmp_path / "tree"
    if not new:
        shutil.copytree(fixtures / name, root)
    plan = api.plan_reshard(api.scan(root), tmp_path / "whole", FULL)
    assert plan.complete
    assert api.reshard(plan, verify=False).exit_code == 0
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    files: dict[int, list[Path]] = defaultdict(list)
    holders: dict[tuple[str, bytes], set[int]] = defaultdict(set)
    for one in api.scan(root).slices:
        if one.step == plan.step:
            files[one.rank].append(root / one.path)
            for parameter, (_, data) in contents_of(root / one.path).items():
                holders[parameter, data].add(one.rank)
    losses = [{rank} for rank in files] + [set(pair) for pair in combinations(files, 2)]
    step = max(1, len(losses) // LOSSES)
    for number, lost in enumerate(losses[::step]):
        aside = [(path, path.with_name(path.name + ".aside")) for rank in lost for path in files[rank]]
        for path, other in aside:
            path.rename(other)
        options = PlanOptions(step=plan.step, quick=True)
        left = api.plan_reshard(api.scan(root), tmp_path / f"left{number}", FULL, options)
        gone = {parameter for (parameter, _), ranks in holders.items() if ranks <= lost}
        assert {one.parameter for one in left.missing} == gone, lost
        if not gone:
            assert api.reshard(left, verify=False).exit_code == 0
            assert (tmp_path / f"left{number}" / "model.safetensors").read_bytes() == whole, lost
        for path, other in aside:
            other.rename(path)
