"""What one rank must read before its verdict rests on more than structure."""

import pytest

from ms_recover.planning.choice import assess_step
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.plan.required_reads import required_reads_of_rank
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed


@pytest.mark.parametrize(
    ("sealed", "lost", "verdict", "read"),
    [
        (True, (), "keep", [0]),
        (False, (), "keep", []),
        (True, (0,), "copy", []),
        (False, (0,), "copy", [2]),
        (True, (0, 2), "unrecoverable", []),
    ],
)
def test_a_rank_reads_its_own_slice_that_a_manifest_describes_or_sources_without_one(sealed, lost, verdict, read):
    slices = [slice_file(rank) for rank in range(4) if rank not in lost]
    slices = [backed(file, "ab"[file.rank % 2]) for file in slices] if sealed else slices
    compared = compare_slices(gather_facts(tree(slices, PAIRS)))
    assessment = assess_step(compared, STEP, runs_of(compared.facts, STEP)[0])
    assert assessment.ranks[0].verdict == verdict
    assert [file.rank for file in required_reads_of_rank(compared, assessment, 0)] == read
