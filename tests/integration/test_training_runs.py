"""Which run is resumed, from which dataset, and who may save to a directory: real trainings of one rank."""

import logging
import os
import subprocess
import sys
import threading

import pytest

from ms_recover import api
from ms_recover.errors import InputError, MissingInputError, StorageError, UsageError
from ms_recover.execution import directory_lock
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import SliceCheckpoint, recover_train  # noqa: E402
from tests.support.small_training import (  # noqa: E402
    STEPS,
    CrashError,
    Losses,
    behind,
    make_dataset,
    make_model,
)

EPOCHS = 4
HOW = [{"async_save": False, "format": "ckpt"}, {"async_save": True, "format": "safetensors"}]
HOLD = """
import sys
from ms_recover.execution.directory_lock import lock_directory
lock_directory(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=before)


def both_modes(test):
    """Run a test in PyNative mode as well; the others are run there with MS_RECOVER_EXAMPLES."""
    test.both_modes = True
    return test


@pytest.fixture(autouse=True)
def _short(mode, request):
    if mode == "PYNATIVE_MODE" and not (
        hasattr(request.function, "both_modes") or os.environ.get("MS_RECOVER_EXAMPLES")
    ):
        pytest.skip("in PyNative mode only with MS_RECOVER_EXAMPLES")


@pytest.fixture(params=HOW, ids=["sync-ckpt", "async-safetensors"])
def how(request):
    return request.param


@pytest.fixture(scope="module")
def undisturbed(mode):
    """Losses of trainings that were never interrupted, by learning rate."""
    losses = {rate: Losses() for rate in (0.01, 0.02)}
    for rate, seen in losses.items():
        make_model(rate).train(EPOCHS, make_dataset(), callbacks=[seen])
    return {rate: seen.seen for rate, seen in losses.items()}


def checkpoint(root, save_steps, keep=20, prefix="test", **options):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", prefix, save_steps, keep, **options)


def start(root, crash=None, rate=0.01, save_steps=2, callbacks=(), **options):
    """Train from the first epoch, up to a crash; return the id of the run."""
    saver = checkpoint(root, save_steps, **options)
    train = [*callbacks, saver, Losses(crash)]
    if crash is None:
        make_model(rate).train(EPOCHS, make_dataset(), callbacks=train)
    else:
        with pytest.raises(CrashError):
            make_model(rate).train(EPOCHS, make_dataset(), callbacks=train)
    return saver.run_id


def go_on(root, crash=None, save_steps=2, callbacks=(), epochs=EPOCHS, rate=0.01, dataset=None, **options):
    """Resume; return the resumption and the losses behind it."""
    how = {name: options.pop(name) for name in ("async_save", "format", "keep", "keep_runs") if name in options}
    losses, saver = Losses(crash), checkpoint(root, save_steps, **how)
    model, data = make_model(rate), make_dataset() if dataset is None else dataset
    if crash is not None:
        with pytest.raises(CrashError):
            recover_train(model, data, root, epochs, [*callbacks, saver, losses], **options)
        return None, losses.seen
    return recover_train(model, data, root, epochs, [*callbacks, saver, losses], **options), losses.seen


def names(root, pattern="*"):
    """Return the names of slices, in place or set aside."""
    found = (
        path.name.removesuffix(MANIFEST_SUFFIX) for path in (root / "ckpt_dir0").glob(f"{pattern}{MANIFEST_SUFFIX}")
    )
    return sorted(found)


def record(root, name):
    return read_manifest(root / "ckpt_dir0" / f"{name}{MANIFEST_SUFFIX}").training


CHANGES = {
    "batch halved": ({"batch": 2}, "has 16 steps, and had 8 .*has 2 samples, and had 4"),
    "twice as long": ({"rows": 8 * STEPS}, "has 16 steps, and had 8"),
    "half as long": ({"rows": 2 * STEPS}, "has 4 steps, and had 8"),
    "half as long, batch halved": ({"rows": 2 * STEPS, "batch": 2}, "a batch of this dataset has 2 samples, and had 4"),
}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, mode):
    root = tmp_path_factory.mktemp("interrupted")
    start(root, crash=11, save_steps=3)
    return root


@both_modes
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_dataset_is_refused_with_both_numbers_and_nothing_is_changed(interrupted, change):
    dataset, said = CHANGES[change]
    before = sorted(os.listdir(interrupted / "ckpt_dir0"))
    losses = Losses()
    with pytest.raises(InputError, match=rf"rank 0, step 2_1, .*{said}.*allow_dataset_change=True"):
        recover_train(make_model(), make_dataset(**dataset), interrupted, EPOCHS, [losses])
    assert losses.seen == {}
    assert sorted(os.listdir(interrupted / "ckpt_dir0")) == before


def test_a_change_that_is_allowed_goes_on_from_the_position_it_states(tmp_path, caplog, capfd):
    """Half the batch: twice as many steps are passed over. Later starts go on from there."""
    start(tmp_path, crash=11, save_steps=3)
    resumed, seen = go_on(tmp_path, crash=21, dataset=make_dataset(batch=2), allow_dataset_change=True)
    assert "training goes on in epoch 2 behind its first 2 of 16 steps" in caplog.text
    assert (
        "samples not proven: the dataset is another one, as allow_dataset_change=True allows" in capfd.readouterr().err
    )
    assert min(seen) == (2, 3)
    caplog.clear()
    resumed, seen = go_on(tmp_path, dataset=make_dataset(batch=2))
    assert str(resumed.step) == "2_4"
    assert min(seen) == (2, 5)
    assert "had" not in caplog.text


def test_larger_batches_go_on_from_the_new_count_although_its_numbers_are_smaller(tmp_path):
    start(tmp_path, crash=14, save_steps=2)
    go_on(tmp_path, crash=8, save_steps=1, dataset=make_dataset(batch=8), allow_dataset_change=True)
    assert names(tmp_path)[-1] == "test_1-2_4.ckpt"
    resumed, seen = go_on(tmp_path, dataset=make_dataset(batch=8))
    assert (str(resumed.step), os.path.basename(resumed.path)) == ("2_4", "test_1-2_4.ckpt")
    assert min(seen) == (3, 1)


@both_modes
def test_the_run_that_was_started_last_is_resumed_and_the_abandoned_one_can_be_chosen(
    undisturbed, tmp_path, caplog, how
):
    abandoned = start(tmp_path, crash=21, rate=0.01, **how)
    with caplog.at_level(logging.WARNING):
        started = start(tmp_path, crash=11, rate=0.02, **how)
    said = [one.getMessage() for one in caplog.records if "renamed to" in one.getMessage()]
    assert len(said) == 1
    assert "10 slice(s) up to step 3_4, of other runs of 'test' and newer than the first step, with which" in said[0]
    ending = how["format"]
    assert names(tmp_path, "test-*")[-1] == f"test-3_4.{ending}.superseded"
    caplog.clear()

    found = api.plan(api.scan(tmp_path))
    assert (found.step, found.run_id) == (Step(2, 2), started)
    assert f"step 3_4 of run {abandoned}" in found.warnings[0]
    resumed, seen = go_on(tmp_path, crash=13, **how)
    assert seen == {place: loss for place, loss in behind(undisturbed[0.02], 2, 2).items() if place <= (2, 5)}
    assert f"training resumes from step 2_2 of run {started}" in caplog.text
    assert f"recover_train(run={abandoned!r}) brings it back" in caplog.text

    resumed, seen = go_on(tmp_path, run=abandoned, **how)
    assert str(resumed.step) == "3_4"
    assert seen == behind(undisturbed[0.01], 3, 4)
    assert api.plan(api.scan(tmp_path)).step == Step(4, 8)
    last = record(tmp_path, f"test_3-4_8.{ending}")
    assert (last.resumed_from.run_id, last.resumed_from.step) == (abandoned, Step(3, 4))


def test_a_start_that_saved_nothing_is_no_reason_to_take_up_the_abandoned_run(tmp_path, undisturbed):
    abandoned = start(tmp_path, crash=21)
    start(tmp_path, crash=1, rate=0.02)
    with pytest.raises(MissingInputError, match=rf"of run {abandoned}, .* up to step 3_4, were set aside"):
        go_on(tmp_path)
    with pytest.raises(UsageError, match=rf"no run 'other' here; there is {abandoned} \(.*up to 3_4\)"):
        go_on(tmp_path, run="other")
    resumed, seen = go_on(tmp_path, run=abandoned)
    assert (str(resumed.step), seen) == ("3_4", behind(undisturbed[0.01], 3, 4))


def test_a_choice_stays_made_although_the_chosen_run_crashes_before_it_saves(tmp_path, monkeypatch):
    """By an argument, or by a variable that stays set: then training goes on from what it has saved since."""
    abandoned = start(tmp_path, crash=21)
    start(tmp_path, crash=11, rate=0.02)
    go_on(tmp_path, crash=21, run=abandoned)
    assert min(go_on(tmp_path, crash=21)[1]) == (3, 5)
    start(tmp_path, crash=11, rate=0.02)
    monkeypatch.setenv("MS_RECOVER_RUN", abandoned)
    assert min(go_on(tmp_path, crash=29)[1]) == (3, 5)
    assert str(go_on(tmp_path)[0].step) == "4_4"


def test_two_trainings_of_one_process_are_two_runs(tmp_path, undisturbed):
    saver = checkpoint(tmp_path, 4)
    make_model(0.01).train(2, make_dataset(), callbacks=[saver])
    first = saver.run_id
    with pytest.raises(CrashError):
        make_model(0.02).train(2, make_dataset(), callbacks=[saver, Losses(5)])
    assert saver.run_id != first
    assert record(tmp_path, "test_1-1_4.ckpt").started > record(tmp_path, "test-2_8.ckpt.superseded").started
    resumed, seen = go_on(tmp_path)
    assert (str(resumed.step), seen) == ("1_4", behind(undisturbed[0.02], 1, 4))


def test_slices_are_counted_over_all_starts(tmp_path, undisturbed):
    start(tmp_path, crash=9, keep=2)
    go_on(tmp_path, crash=17, keep=2)
    resumed, seen = go_on(tmp_path, keep=2)
    assert (str(resumed.step), seen) == ("2_8", behind(undisturbed[0.01], 2, 8))
    assert names(tmp_path) == ["test_2-4_6.ckpt", "test_2-4_8.ckpt"]


def test_of_more_runs_slices_are_kept_where_it_is_asked(tmp_path):
    start(tmp_path, crash=9, keep=2)
    go_on(tmp_path, crash=17, keep=2)
    go_on(tmp_path, keep=2, keep_runs=2)
    assert names(tmp_path) == ["test_1-2_6.ckpt", "test_1-2_8.ckpt", "test_2-4_6.ckpt", "test_2-4_8.ckpt"]


@pytest.mark.parametrize(
    "other", [{}, {"prefix": "epoch"}, {"format": "safetensors"}], ids=["alike", "prefix", "format"]
)
def test_two_savers_in_one_directory(tmp_path, undisturbed, how, other):
    """Every step the last two, every epoch all of them; the resumed run has both again."""
    often = {"keep": 2, "save_steps": 1, **how}

    def seldom():
        return checkpoint(tmp_path, None, 20, **{**how, **other})

    start(tmp_path, crash=19, callbacks=[seldom()], **often)
    resumed, seen = go_on(tmp_path, callbacks=[seldom()], **often)
    assert (str(resumed.step), seen) == ("3_3", behind(undisturbed[0.01], 3, 3))
    steps = [name.rpartition(".")[0].partition("-")[2] for name in names(tmp_path)]
    assert sorted(set(steps)) == ["1_8", "2_8", "3_8", "4_7", "4_8"]
    assert len(steps) == (6 if "prefix" in other else 5)
    checks = api.verify(api.scan(tmp_path)).checks
    assert {check.status for check in checks} == {"sound"}
    assert len({manifest.run_id for manifest in map(read_manifest, (tmp_path / "ckpt_dir0").glob("*.json"))}) == 2
    assert api.plan(api.scan(tmp_path)).step == Step(4, 8)


@pytest.fixture
def other_training(tmp_path, monkeypatch):
    """Another process that saves to the directory."""
    monkeypatch.setattr(directory_lock, "GRACE_SECONDS", 0)
    start(tmp_path, crash=11)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "ckpt_dir0")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_job_is_refused_at_its_start_and_harms_nobody(tmp_path, other_training):
    folder = tmp_path / "ckpt_dir0"
    before = {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)}
    said = rf"another training saves to .*ckpt_dir0 \(process {other_training.pid}\): stop it first"
    losses = Losses()
    with pytest.raises(StorageError, match=said):
        recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, [checkpoint(tmp_path, 2), losses])
    with pytest.raises(StorageError, match=said):
        make_model().train(EPOCHS, make_dataset(), callbacks=[checkpoint(tmp_path, 2), losses])
    assert losses.seen == {}
    assert {name: (folder / name).stat().st_mtime_ns for name in os.listdir(folder)} == before
    other_training.kill()
    other_training.wait()
    assert str(go_on(tmp_path)[0].step) == "2_2"


def test_what_a_job_did_while_it_was_waited_for_is_seen(tmp_path, other_training, monkeypatch):
    monkeypatch.setattr(directory_lock, "GRACE_SECONDS", 20)
    newest = sorted(path for path in (tmp_path / "ckpt_dir0").iterdir() if "-2_2." in path.name)
    assert newest

    def end():
        for path in newest:
            path.unlink()
        other_training.kill()

    ending = threading.Timer(0.5, end)
    ending.start()
    try:
        assert str(go_on(tmp_path)[0].step) == "1_8"
    finally:
        ending.join()


def test_a_resume_by_hand_keeps_what_it_goes_on_from(tmp_path, undisturbed):
    start(tmp_path, crash=17, save_steps=8)
    model = make_model()
    network = model.train_network
    if ms.get_context("mode") == ms.GRAPH_MODE:
        network.set_train(True)
    ms.load_param_into_net(network, ms.load_checkpoint(str(tmp_path / "ckpt_dir0" / "test-2_8.ckpt")))
    losses = Losses(4)
    with pytest.raises(CrashError):
        model.train(EPOCHS, make_dataset(), callbacks=[checkpoint(tmp_path, 3), losses], initial_epoch=2)
    assert names(tmp_path) == ["test-1_8.ckpt", "test-2_8.ckpt", "test_1-3_3.ckpt"]
    (tmp_path / "ckpt_dir0" / "test_1-3_3.ckpt").unlink()
    resumed, seen = go_on(tmp_path)
    assert (str(resumed.step), seen) == ("2_8", behind(undisturbed[0.01], 2, 8))


def test_a_choice_that_a_plan_makes_is_that_of_training(tmp_path):
    abandoned = start(tmp_path, crash=21)
    folder = tmp_path / "ckpt_dir0"
    start(tmp_path, crash=11, rate=0.02)
    for path in folder.glob("*.superseded*"):
        path.rename(folder / path.name.replace(".superseded", ""))
    inventory = api.scan(tmp_path)
    assert api.plan(inventory).step == Step(2, 2)
    assert f"--run {abandoned} chooses it" in api.plan(inventory).warnings[0]
    assert api.plan(inventory, PlanOptions(run=abandoned)).step == Step(3, 4)
    assert str(go_on(tmp_path, crash=12)[0]) == "None"
    assert api.plan(api.scan(tmp_path)).step == Step(2, 4)
