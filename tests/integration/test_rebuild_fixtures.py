"""Every loss of up to three of eight ranks, on slices that MindSpore wrote, against a search over all contents."""

import itertools
import shutil

import pytest

from ms_recover import api
from ms_recover.formats.header import read_header
from ms_recover.model.options import PlanOptions

LAYOUTS = {"dp2_mp4": "2_77", "dp4_mp2_opt2": "1_77", "dp4_mp2_optfull": "1_77", "dp2_mp2_pp2": "1_77"}
SUBSETS = [lost for count in (1, 2, 3) for lost in itertools.combinations(range(8), count)]


def contents(path):
    """Return each parameter's bytes."""
    header, data = read_header(path), path.read_bytes()
    names = [parameter.name for parameter in header.parameters]
    pieces = [b"".join(data[piece.start : piece.end] for piece in ranges) for ranges in header.contents]
    return dict(zip(names, pieces, strict=True))


def nowhere(held, lost):
    """Return for each lost rank the parameters whose contents no survivor has."""
    return {
        rank: {
            name
            for name, data in held[rank].items()
            if all(held[other].get(name) != data for other in range(8) if other not in lost)
        }
        for rank in lost
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lists", [True, False], ids=["rank lists", "no rank lists"])
def test_what_survives_comes_back_and_the_rest_is_named(fixtures, tmp_path, layout, lists):
    name = f"test-{LAYOUTS[layout]}.ckpt"
    whole = tmp_path / "whole"
    for rank in range(8):
        (whole / f"ckpt_dir{rank}").mkdir(parents=True)
        for file in (name, "strategy.ckpt", *(["group_info.pb"] if lists else [])):
            shutil.copy2(fixtures / layout / f"ckpt_dir{rank}" / file, whole / f"ckpt_dir{rank}" / file)
    held = {rank: contents(whole / f"ckpt_dir{rank}" / name) for rank in range(8)}
    files = {rank: (whole / f"ckpt_dir{rank}" / name).read_bytes() for rank in range(8)}
    inventory = api.scan(whole)
    recovered = 0
    for number, lost in enumerate(SUBSETS):
        gone = nowhere(held, lost)
        tree = tmp_path / "tree"
        if number % 8 == 0:  # really gone, and recovered; declared lost otherwise, which is the same to a plan
            shutil.copytree(whole, tree)
            for rank in lost:
                shutil.rmtree(tree / f"ckpt_dir{rank}")
            plan = api.plan(api.scan(tree), PlanOptions(world_size=8))
        else:
            plan = api.plan(inventory, PlanOptions(lost=frozenset(lost)))
        for rank in lost:
            assert {region.parameter for region in plan.ranks[rank].missing} == gone[rank], (lost, rank)
            assert (plan.ranks[rank].verdict == "unrecoverable") == bool(gone[rank]), (lost, rank)
        assert plan.recoverable == (not any(gone.values()))
        if plan.recoverable and tree.exists():
            assert api.apply(plan, jobs=2).exit_code == 0
            assert {r: (tree / f"ckpt_dir{r}" / name).read_bytes() for r in range(8)} == files
            assert not api.plan(api.scan(tree), PlanOptions(world_size=8)).actions
            recovered += 1
        shutil.rmtree(tree, ignore_errors=True)
    assert recovered or layout == "dp4_mp2_optfull"
