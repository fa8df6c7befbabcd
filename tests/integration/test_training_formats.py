"""Slices in the format safetensors: saved, killed, resumed, and mixed with the other format."""

import logging
import shutil

import pytest

from ms_recover import api
from ms_recover.errors import VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.steps import Step
from tests.support.sample import flip, losses, make_pairs, manifests, save_and_kill, script, slices

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import obtained, recover_train  # noqa: E402
from tests.integration.test_training_resume import (  # noqa: E402
    EPOCHS,
    STEPS,
    Losses,
    checkpoint,
    make_dataset,
    make_model,
)


def train(root, form, stop_at=None):
    seen = Losses(stop_at)
    make_model().train(EPOCHS, make_dataset(), callbacks=[seen, checkpoint(root, 3, format=form)])
    return seen.seen


def resume(root, form="safetensors", epochs=EPOCHS, **options):
    seen = Losses()
    resumed = recover_train(
        make_model(), make_dataset(), root, epochs, [seen, checkpoint(root, 3, format=form, **options)]
    )
    return (resumed.step.epoch - 1) * STEPS + resumed.step.step, seen.seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted, with slices in the usual format."""
    root = tmp_path_factory.mktemp("whole")
    return root, train(root, "ckpt")


def behind(seen, step):
    return {key: loss for key, loss in seen.items() if key[2] > step}


def values(path):
    form = path.suffix[1:]
    return {name: value.asnumpy().tobytes() for name, value in ms.load_checkpoint(str(path), format=form).items()}


@pytest.mark.parametrize(("first", "then"), [("safetensors",) * 2, ("safetensors", "ckpt"), ("ckpt", "safetensors")])
@pytest.mark.parametrize("async_save", [False, True])
def test_goes_on_to_the_last_bit_in_either_format(whole, tmp_path, first, then, async_save):
    """The second resume finds slices of both formats, and takes the newest step."""
    root, seen = whole
    train(tmp_path, first, stop_at=16)
    assert resume(tmp_path, then, async_save=async_save) == (16, behind(seen, 16))
    last = f"{EPOCHS}_{STEPS}"
    assert values(tmp_path / "ckpt_dir0" / f"test_1-{last}.{then}") == values(root / "ckpt_dir0" / f"test-{last}.ckpt")
    for name in (f"test_1-{last}.{then}", f"test_1-4_6.{then}"):
        (tmp_path / "ckpt_dir0" / name).unlink()
        (tmp_path / "ckpt_dir0" / (name + MANIFEST_SUFFIX)).unlink()
    assert resume(tmp_path, first) == (27, behind(seen, 27))
    assert {check.status for check in api.verify(api.scan(tmp_path)).checks} == {"sound"}


def test_a_slice_whose_contents_changed_is_not_resumed_from(whole, tmp_path, caplog):
    _, seen = whole
    train(tmp_path, "safetensors")
    flip(tmp_path / "ckpt_dir0" / "test-4_8.safetensors")
    assert resume(tmp_path) == (30, behind(seen, 30))
    assert "test-4_8.safetensors: its contents are not those of its manifest" in caplog.text
    assert (tmp_path / "ckpt_dir0" / "test-4_8.safetensors.superseded").exists()


def test_what_the_network_holds_is_proven_before_the_first_step(tmp_path, monkeypatch, caplog):
    train(tmp_path, "safetensors", stop_at=9)
    caplog.set_level(logging.INFO)
    load = obtained.load_slice

    def altered(own, kept):
        parameters = load(own, kept)
        parameters["0.weight"].asnumpy()[0, 0] += 1
        return parameters

    with monkeypatch.context() as patch:
        patch.setattr(obtained, "load_slice", altered)
        with pytest.raises(VerificationError, match=r"rank 0, step 2_1, .*safetensors: .* parameter 0.weight differs"):
            resume(tmp_path)
    assert resume(tmp_path)[0] == 9
    assert "parameters of the network have the digests of the manifest" in caplog.text


def test_a_killed_rank_is_recovered_and_goes_on_to_the_last_bit(tmp_path):
    """Two ranks that hold the same, each in a process of its own; the reference has slices in the usual format."""
    pairs, whole, lost = make_pairs(tmp_path), tmp_path / "whole", tmp_path / "lost"
    options = ("--epochs", "20", "--format", "safetensors")
    code, text = script("save", pairs, whole, "--epochs", "20", ranks=2, mp=1)
    assert code == 0, text
    code, text = save_and_kill(pairs, lost, 1, 12, *options, ranks=2, mp=1)
    assert code == 137, text
    shutil.rmtree(lost / "ckpt_dir1")
    assert not slices(lost, 0)
    assert slices(lost, 0, "safetensors").keys() >= manifests(lost, 0, "safetensors").keys() > set()
    code, text = script("recover", pairs, lost, *options, ranks=2, mp=1)
    assert code == 0, text
    step = Step(*map(int, text.split("resumed from step ")[1].split(",")[0].split("_")))
    assert step >= Step(2, 2)
    for rank in range(2):
        assert losses(lost, rank) == {key: loss for key, loss in losses(whole, rank).items() if key > step}
        assert values(lost / f"ckpt_dir{rank}" / "test_1-20_8.safetensors") == values(
            whole / f"ckpt_dir{rank}" / "test-20_8.ckpt"
        )
    assert "copied from rank 0" in (lost / "ckpt_dir1" / "train.log1").read_text()
