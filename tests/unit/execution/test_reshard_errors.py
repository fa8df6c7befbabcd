"""Faults behind the last file of a reshard, and the code that says so."""

import shutil

import numpy as np

from ms_recover import api, resharding
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.reshard import ReshardOptions
from tests.support.cuts import cut_layout
from tests.support.reshard import COUNTER, Job, make_job_tree, write_strategies


def test_a_directory_that_cannot_be_made_durable_is_an_error_also_where_the_output_is_compared(tmp_path):
    job = Job(2, [{"weight": cut_layout("weight", (2,), (0,))}])
    arrays = {"weight": np.arange(64, dtype=np.float32), COUNTER: np.int8(8)}
    root, output = make_job_tree(tmp_path / "source", job, arrays), tmp_path / "output"
    wanted = ReshardOptions(strategy=str(write_strategies(tmp_path / "target", job)))
    plan = resharding.plan_reshard(api.scan(root), output, wanted)
    first = (output / plan.files[0].target).parent

    def lose_the_first(count):
        if first.exists() and any(first.glob(f"*{MANIFEST_SUFFIX}")):
            shutil.rmtree(first)

    outcome = resharding.reshard(plan, compare=True, progress=lose_the_first)
    assert (outcome.exit_code, len(outcome.errors)) == (1, 1)
    assert str(first) in outcome.errors[0]
