"""An evaluation ran in the directories of a training, and wrote its rank lists and strategy files over most of them."""

import shutil

import pytest

from ms_recover.execution.rank_lists import write_group_info
from tests.support.page_trees import FIXTURES

OTHER = FIXTURES / "dp4_mp2_optfull" / "ckpt_dir1" / "strategy.ckpt"
ACCEPT = "--group 0,4 --group 1,5 --group 2,6 --group 3,7"
LISTS = {"each alone": lambda rank: [rank], "all the same": lambda rank: list(range(8))}


def overwritten(root, lists, kept, lost):
    """Return a tree of data 2 x model 4 in which the files of all ranks but one are those of an evaluation."""
    shutil.copytree(FIXTURES / "dp2_mp4", root)
    for rank in range(8):
        folder = root / f"ckpt_dir{rank}"
        (folder / "group_info.pb").unlink()
        write_group_info(folder / "group_info.pb", LISTS[lists](rank))
        if rank != kept:
            (folder / "strategy.ckpt").unlink()
            shutil.copyfile(OTHER, folder / "strategy.ckpt")
    shutil.rmtree(root / f"ckpt_dir{lost}")
    return root


@pytest.mark.parametrize(
    ("lists", "kept", "lost"), [("each alone", 0, 5), ("all the same", 0, 5), ("each alone", 7, 1)]
)
def test_the_hint_says_what_equal_survivors_suggest_and_what_to_give(tmp_path, recover_ckpt, lists, kept, lost):
    root = overwritten(tmp_path / "tree", lists, kept, lost)
    done = recover_ckpt("plan", root)
    assert done.out.splitlines()[1].startswith("UNRECOVERABLE")
    [hint] = [line for line in done.out.splitlines() if line.startswith("HINT: ranks")]
    assert "hold equal bytes at steps 2_77, 1_77" in hint
    assert "contradict each other: an evaluation or another job may have overwritten some; put those of before" in hint
    assert "--group-info and --strategy" in hint
    assert hint.endswith(
        f"if rank {lost} holds what rank {(lost + 4) % 8} holds, move them out of the tree and say: {ACCEPT}"
    )
    for path in [*root.glob("*/group_info.pb"), *root.glob("*/strategy.ckpt")]:
        path.unlink()
    assert recover_ckpt("apply", root, *ACCEPT.split()).code == 0
    [name] = {path.name for path in root.glob(f"ckpt_dir{lost}/*-2_77.ckpt")}
    peer = root / f"ckpt_dir{(lost + 4) % 8}" / name
    assert (root / f"ckpt_dir{lost}" / name).read_bytes() == peer.read_bytes()
