"""A recovered rank gets the strategy file of its stage back."""

import json
import shutil

import pytest

from ms_recover import api
from ms_recover.errors import FormatError
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.formats.strategy import read_strategy


@pytest.mark.parametrize(("layout", "lost", "source"), [("dp2_mp4", 5, 0), ("dp2_mp2_pp2", 6, 4)])
def test_the_file_of_a_rank_of_its_stage_comes_back(fixture_tree, layout, lost, source):
    tree = fixture_tree(layout)
    before = (tree / f"ckpt_dir{lost}" / "strategy.ckpt").read_bytes()
    shutil.rmtree(tree / f"ckpt_dir{lost}")
    plan = api.plan(api.scan(tree))
    (write,) = plan.strategy_files
    assert (write.rank, write.source_rank, write.target) == (lost, source, f"ckpt_dir{lost}/strategy.ckpt")
    assert plan_from_json(json.dumps(plan_to_json(plan)), "plan") == plan
    outcome = api.apply(plan)
    assert (outcome.exit_code, outcome.strategy_files) == (0, (write.target,))
    path = tree / write.target
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == (tree / write.source).read_bytes()
    assert read_strategy(path).layouts == _layouts(before, tree)
    assert not api.plan(api.scan(tree)).strategy_files
    assert api.apply(plan).strategy_files == ()  # it is there


def _layouts(data, tree):
    path = tree.parent / "before.ckpt"
    path.write_bytes(data)
    return read_strategy(path).layouts


def test_a_rank_that_has_one_keeps_it(fixture_tree):
    tree = fixture_tree("dp2_mp4")
    (tree / "ckpt_dir5" / "test-2_77.ckpt").unlink()
    assert not api.plan(api.scan(tree)).strategy_files


def test_what_changes_after_the_plan_is_not_taken(fixture_tree):
    tree = fixture_tree("dp2_mp4")
    shutil.rmtree(tree / "ckpt_dir5")
    plan = api.plan(api.scan(tree))
    (tree / "ckpt_dir0" / "strategy.ckpt").chmod(0o600)
    (tree / "ckpt_dir0" / "strategy.ckpt").write_bytes(b"\x08\x01")
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert "changed after the plan was made" in outcome.errors[0]
    assert not (tree / "ckpt_dir5" / "strategy.ckpt").exists()
    (tree / "ckpt_dir5" / "strategy.ckpt").write_bytes(b"mine")
    shutil.copy(tree / "ckpt_dir1" / "strategy.ckpt", tree / "ckpt_dir0" / "strategy.ckpt")
    assert "nothing was replaced" in api.apply(plan).errors[0]
    assert (tree / "ckpt_dir5" / "strategy.ckpt").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"target": "ckpt_dir5/strategy.ckpt"', '"target": "ckpt_dir6/strategy.ckpt"'),
        ('"target": "ckpt_dir5/strategy.ckpt"', '"target": "ckpt_dir5/group_info.pb"'),
        ('"source": "ckpt_dir0/strategy.ckpt"', '"source": "../strategy.ckpt"'),
    ],
)
def test_a_plan_from_a_file_may_name_no_other_places(fixture_tree, old, new):
    tree = fixture_tree("dp2_mp4")
    shutil.rmtree(tree / "ckpt_dir5")
    text = json.dumps(plan_to_json(api.plan(api.scan(tree))))
    assert old in text
    with pytest.raises(FormatError):
        api.apply(plan_from_json(text.replace(old, new), "plan"))
