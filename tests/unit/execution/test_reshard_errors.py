"""A reshard is durable when it says so, and an error behind its last file is in its code."""

import os
import shutil

import numpy as np

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.reshard import ReshardOptions
from tests.support.cuts import cut_layout
from tests.support.faults import Faults
from tests.support.reshard import COUNTER, Job, make_job_tree, write_strategies


def plan_again(folder, output, pattern=None):
    """Plan to write the slices of two ranks once more."""
    job = Job(2, [{"weight": cut_layout("weight", (2,), (0,))}])
    arrays = {"weight": np.arange(64, dtype=np.float32), COUNTER: np.int8(8)}
    root = make_job_tree(folder / "source", job, arrays)
    wanted = ReshardOptions(strategy=str(write_strategies(folder / "target", job)), pattern=pattern)
    return api.plan_reshard(api.scan(root), output, wanted)


def test_a_directory_that_cannot_be_made_durable_is_an_error_also_where_the_output_is_compared(tmp_path):
    plan = plan_again(tmp_path, tmp_path / "output")
    first = (tmp_path / "output" / plan.files[0].target).parent

    def lose_the_first(count):
        if first.exists() and any(first.glob(f"*{MANIFEST_SUFFIX}")):
            shutil.rmtree(first)

    outcome = api.reshard(plan, compare=True, progress=lose_the_first)
    assert (outcome.exit_code, len(outcome.errors)) == (1, 1)
    assert str(first) in outcome.errors[0]


def test_every_new_directory_is_durable(tmp_path):
    plan = plan_again(tmp_path, tmp_path / "new" / "output", "slices/rank_{rank}-{epoch}_{step}")
    with Faults(str(tmp_path.parent), 0, "never", ("mkdir", "fsync")).installed() as faults:
        assert api.reshard(plan).exit_code == 0
    new = f"{tmp_path.name}/new"
    made = [new, f"{new}/output", f"{new}/output/slices", f"{new}/output/strategy"]
    assert sorted({call.split()[1] for call in faults.trace if call.startswith("mkdir")}) == made
    for folder in made:
        assert f"fsync {os.path.dirname(folder)}" in faults.trace[faults.trace.index(f"mkdir {folder}") :]
