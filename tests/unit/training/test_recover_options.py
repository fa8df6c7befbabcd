"""The options of `recover_train` that say where evidence lies."""

import pytest

pytest.importorskip("mindspore")

from ms_recover.training import recover, resuming

pytestmark = pytest.mark.mindspore


class AskedError(Exception):
    pass


def test_strategy_files_and_rank_lists_elsewhere_are_used(monkeypatch, tmp_path):
    def scan_tree(top, rank, scanning):
        raise AskedError(scanning.pattern, scanning.group_info, scanning.strategy)

    monkeypatch.setattr(resuming, "scan_tree", scan_tree)
    with pytest.raises(AskedError) as asked:
        recover.recover_train(
            None, None, tmp_path, 1, group_info=["g/{rank}.pb"], strategy=["output/strategy/s_rank_{rank}.ckpt"]
        )
    assert asked.value.args == (None, ("g/{rank}.pb",), ("output/strategy/s_rank_{rank}.ckpt",))
