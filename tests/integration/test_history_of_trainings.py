"""A bit that flips in one of three data-parallel ranks during a real training is named from manifests alone."""

import os

import pytest

from ms_recover.model.steps import Step
from ms_recover.verbs.history import history
from tests.support.msrun import run_ranks

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES: a launch"),
]
pytest.importorskip("mindspore")

FLIPPED, RANK = 13, 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The tree of a training of 20 steps."""
    folder = tmp_path_factory.mktemp("flipped")
    code, text = run_ranks("flipped_training.py", 3, folder, folder / "tree", FLIPPED, RANK, GLOG_v="3")
    assert code == 0, text
    return folder / "tree"


def test_the_flip_is_named_by_step_parameter_and_rank(trained):
    for path in trained.rglob("*.ckpt"):
        path.unlink()  # manifests alone
    found = history(trained)
    assert len(found.steps) == 20
    one = found.disagreements[0]
    assert (one.first, one.parameter, one.outvoted) == (Step(1, FLIPPED), "0.weight", (RANK,))
    assert one.recorded  # training noticed it as well
    assert (one.agreed_until, found.clean) == (Step(1, FLIPPED - 1), Step(1, FLIPPED - 1))
