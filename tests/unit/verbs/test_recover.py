"""The verbs plan and apply: what a plan of this host follows, and what is refused before anything is done."""

import shutil

import pytest

from ms_recover import api
from ms_recover.errors import UnrecoverableError, UsageError
from ms_recover.testing.trees import make_tree
from ms_recover.verbs.recover import with_obstacles
from tests.support.inventories import pairs, slice_file, tree
from tests.support.plans import make_plan

WHOLE = make_plan(tree([slice_file(rank) for rank in range(4)], pairs(4)))


def test_links_may_lead_to_real_directories_alone(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    (tmp_path / "file").write_text("")
    real = str((tmp_path / "disk").resolve())
    followed = with_obstacles(WHOLE, [str(tmp_path / "link"), real])
    assert (followed.follow, followed.obstacles) == ((real,), ())
    for name in ("file", "nothing"):
        with pytest.raises(UsageError, match=f"{name} is no directory of this host"):
            with_obstacles(WHOLE, [real, str(tmp_path / name)])


@pytest.mark.parametrize("lost", [True, False])
def test_what_keeps_a_slice_from_being_written_is_in_the_plan(tmp_path, lost):
    root = make_tree(tmp_path / "tree")
    if lost:
        shutil.rmtree(root / "ckpt_dir1")
        (root / "ckpt_dir1").write_text("in the way")
    made = api.plan(api.scan(root))
    assert {(obstacle.rank, obstacle.kind) for obstacle in made.obstacles} == ({(1, "in the way")} if lost else set())


def test_what_survives_of_lost_slices_is_written_only_where_that_is_asked_for():
    lost = make_plan(tree([slice_file(0)], pairs(4)))
    assert not lost.recoverable
    with pytest.raises(UnrecoverableError):
        api.apply(lost)
