"""Which lists and layouts are lost with which ranks."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.evidence import find_evidence
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import slice_file, tree


def _file(rank, devices, folder=None):
    strategy = Strategy((0,), 1, (Layout("a", (devices,), ((),)),))
    return StrategyFile(rank, f"ckpt_dir{rank if folder is None else folder}/strategy.ckpt", strategy)


@pytest.mark.parametrize(
    ("other", "lost_with", "kept"),
    [
        (_file(2, 4), {0, 1, 2}, []),
        (_file(2, 2), {0, 1}, []),
        (_file(2, 4, folder=99), {0, 1}, [0]),
    ],
    ids=["of the same size", "of another size", "in no rank's directory"],
)
def test_layouts_are_lost_with_the_directories_of_the_files_that_state_them(other, lost_with, kept):
    inventory = replace(
        tree([slice_file(rank) for rank in range(4)], {}), strategy_files=(_file(0, 4), _file(1, 4), other)
    )
    found = find_evidence(gather_facts(inventory))
    assert found.by_stage == {0: lost_with}
    assert sorted(found.kept_stages) == kept
