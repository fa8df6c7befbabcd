"""The two commands of MindSpore's page on recovery by redundancy, as they stand there:

    bash run_parallel_save_ckpt.sh DATASET_PATH
    bash run_parallel_recover_ckpt.sh DATASET_PATH

The first trains 4 epochs, the second 2 more. The variables that the scripts document choose fewer ranks and the place.
"""

import os
import shutil
import sys

import pytest

from ms_recover.model.steps import Step
from tests.support.sample import LIMIT, SAMPLE, losses, manifests, run, slices

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(900)]
pytest.importorskip("mindspore")
more = pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES: minutes")

STEPS = 6
LAST = f"4_{STEPS}"


def command(words, output, ranks=2, mp=1):
    limit = LIMIT * max(1, ranks // 2)  # on two cores, one rank starts after the other
    variables = {"RANK_SIZE": str(ranks), "MP": str(mp), "TRAIN_TIMEOUT": str(limit - 30)}
    code, text = run(words.split(), SAMPLE, limit, OUTPUT_DIR=str(output), **variables)
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.txt"
    words = [sys.executable, SAMPLE / "make_dataset.py", path, "--lines", 32 * STEPS, "--words", 100]
    code, text = run(words, path.parent)
    assert code == 0, text
    return path


@pytest.fixture(scope="module")
def saved(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("saved") / "run"
    command(f"bash run_parallel_save_ckpt.sh {dataset}", output)
    return output


def value(loss):
    return float.fromhex(loss)


def mean(losses, epoch):
    return sum(value(loss) for step, loss in losses.items() if step.epoch == epoch) / STEPS


def test_the_second_command_trains_two_epochs_more_also_when_a_rank_has_lost_everything(saved, dataset, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(saved, output)
    before = losses(output, 0)
    assert sorted(before) == [Step(epoch, step) for epoch in range(1, 5) for step in range(1, STEPS + 1)]
    shutil.rmtree(output / "ckpt_dir1")
    text = command(f"bash run_parallel_recover_ckpt.sh {dataset}", output)
    assert f"resumed from step {LAST}, trained up to epoch 6" in text
    after = losses(output, 0)
    assert sorted(after) == [Step(epoch, step) for epoch in (5, 6) for step in range(1, STEPS + 1)]
    assert losses(output, 1) == after
    assert f"test_1-6_{STEPS}.ckpt" in slices(output, 1)
    assert manifests(output, 1)[f"test-{LAST}.ckpt"].provenance.sources[0].rank == 0
    first, last = value(before[Step(1, 1)]), value(before[Step(4, STEPS)])
    assert last < first - 0.3  # it has learned
    assert abs(value(after[Step(5, 1)]) - last) < (first - last) / 4  # and has forgotten nothing
    assert mean(after, 6) < mean(before, 4)


@more
@pytest.mark.timeout(3600)
def test_the_commands_on_all_ranks_that_they_have_by_default(dataset, tmp_path):
    whole, output = tmp_path / "whole", tmp_path / "run"
    command(f"bash run_parallel_save_ckpt.sh {dataset} --epochs 6", whole, 8, 4)
    command(f"bash run_parallel_save_ckpt.sh {dataset}", output, 8, 4)
    shutil.rmtree(output / "ckpt_dir5")
    command(f"bash run_parallel_recover_ckpt.sh {dataset}", output, 8, 4)
    for rank in range(8):
        expected = {step: loss for step, loss in losses(whole, rank).items() if step > Step(4, STEPS)}
        assert losses(output, rank) == expected


@more
def test_a_slice_that_is_named_is_resumed_from(saved, dataset, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(saved, output)
    shutil.rmtree(output / "ckpt_dir1")
    chosen = output / "ckpt_dir0" / f"test-2_{STEPS}.ckpt"
    text = command(f"bash run_parallel_recover_ckpt.sh {dataset} --ckpt_file {chosen}", output)
    assert f"resumed from step 2_{STEPS}, trained up to epoch 4" in text
    for rank in (0, 1):
        expected = {step: loss for step, loss in losses(saved, 0).items() if step > Step(2, STEPS)}
        assert losses(output, rank) == expected
    assert f"up to step {LAST}, newer than step" in (output / "ckpt_dir0" / "train.log0").read_text()
