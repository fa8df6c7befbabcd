"""Several experiments in one directory: real trainings, each of which goes on with its own slices alone."""

import json
import logging
from random import Random

import pytest

from ms_recover.errors import InputError, MissingInputError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint  # noqa: E402

from ms_recover.training import SliceCheckpoint, SliceSaver, recover_train, resume  # noqa: E402
from tests.support.examples import examples  # noqa: E402
from tests.support.small_training import CrashError, make_dataset, make_model  # noqa: E402
from tests.support.sweep import EPOCHS, RATES, Member, Trace, note_owners, slices_of_others  # noqa: E402

FIRST, SECOND = Member("lr_0.01"), Member("lr_0.5")


@pytest.fixture(autouse=True)
def _graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def alone():
    """Losses and final values of trainings that nothing disturbed."""
    return {prefix: Member(prefix).alone() for prefix in RATES}


def slices(root, pattern="*"):
    return sorted(path.name.removesuffix(MANIFEST_SUFFIX) for path in root.rglob(f"{pattern}{MANIFEST_SUFFIX}"))


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def behind(losses, step):
    return {number: loss for number, loss in losses.items() if number > step}


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def begins_beside(caplog, name):
    """Whether one line names the slices of another experiment, beside which training begins."""
    (said,) = [one for one in warnings(caplog) if name in one]
    return f"slices of {name!r}" in said and "training begins from the start" in said


@pytest.mark.timeout(300 + 60 * examples(2))
def test_five_experiments_in_one_folder_crash_and_resume_in_random_order(tmp_path, alone):
    """Each ends with the bits of its own undisturbed run, and touches no slice of another."""
    for number in range(examples(2)):
        sweep(tmp_path / str(number), Random(number), alone)


def sweep(root, random, alone):
    """Train all experiments to their ends, one start of one of them at a time."""
    owners, left, crashes = {}, dict.fromkeys(RATES, 0), dict.fromkeys(RATES, 0)
    while left:
        prefix = random.choice(sorted(left))
        before = slices_of_others(root, prefix, owners)
        last = len(alone[prefix][0])
        crash = random.randint(left[prefix] + 1, last) if crashes[prefix] < 3 and random.random() < 0.7 else None
        seen, final = Member(prefix).go_on(root, crash)
        note_owners(root, prefix, owners)
        assert slices_of_others(root, prefix, owners) == before, (root, prefix)
        assert seen == {number: alone[prefix][0][number] for number in seen}, (root, prefix)
        assert min(seen, default=1) == left[prefix] + 1, (root, prefix)
        if final is None:
            crashes[prefix] += 1
            left[prefix] = max(left[prefix], (crash - 1) // 3 * 3)
        else:
            assert max(seen) == last
            assert final == alone[prefix][1], (root, prefix)
            del left[prefix]
    assert set(owners.values()) == set(RATES)
    manifests = [read_manifest(path) for path in root.glob(f"ckpt_dir0/*{MANIFEST_SUFFIX}")]
    for prefix in RATES:
        own = [one for one in manifests if one.training.base_prefix == prefix]
        assert len(own) == 2, prefix
        assert max(one.step for one in own) == Step(EPOCHS, 8)


def test_the_first_experiment_goes_on_with_its_own_slices(tmp_path, alone, caplog):
    assert FIRST.go_on(tmp_path, 8)[1] is None
    before = contents(tmp_path)
    SECOND.go_on(tmp_path, 11)
    assert before.items() <= contents(tmp_path).items()
    caplog.clear()
    seen, final = FIRST.go_on(tmp_path)
    assert (seen, final) == (behind(alone["lr_0.01"][0], 6), alone["lr_0.01"][1])
    assert not any("lr_0.5" in one or "renamed" in one for one in warnings(caplog))
    seen, final = SECOND.go_on(tmp_path)
    assert (seen, final) == (behind(alone["lr_0.5"][0], 9), alone["lr_0.5"][1])


def test_a_new_member_of_a_sweep_begins_anew_or_is_refused(tmp_path, alone, caplog):
    FIRST.go_on(tmp_path, 8)
    before = contents(tmp_path)
    with pytest.raises(
        MissingInputError, match=r"is of 'lr_0\.5'.* slices of 'lr_0\.01' \(up to step 1_6\).*run='lr_0\.01'"
    ):
        SECOND.go_on(tmp_path, fresh="refuse")
    assert contents(tmp_path) == before
    caplog.clear()
    assert SECOND.go_on(tmp_path)[0] == alone["lr_0.5"][0]
    assert begins_beside(caplog, "lr_0.01")
    assert before.items() <= contents(tmp_path).items()


def test_another_experiment_is_gone_on_with_where_it_is_named(tmp_path, alone):
    """By its prefix; its slices stay as they are, and the next start goes on with the own ones."""
    FIRST.go_on(tmp_path, 8)
    before = contents(tmp_path)
    seen, _ = SECOND.go_on(tmp_path, 11, run="lr_0.01")
    assert min(seen) == 7
    assert before.items() <= contents(tmp_path).items()
    (manifest,) = [read_manifest(path) for path in tmp_path.rglob(f"lr_0.5-2_1.ckpt{MANIFEST_SUFFIX}")]
    assert (manifest.training.base_prefix, manifest.training.resumed_from.step) == ("lr_0.5", Step(1, 6))
    assert min(SECOND.go_on(tmp_path)[0]) == 10
    assert before.items() <= contents(tmp_path).items()


def test_several_experiments_and_none_given_is_refused_with_what_to_pass(tmp_path, alone):
    FIRST.go_on(tmp_path, 8)
    SECOND.go_on(tmp_path, 8)
    before = contents(tmp_path)
    model = FIRST.model()
    said = r"several experiments: 'lr_0\.01' \(up to step 1_6\), 'lr_0\.5' .*prefix='lr_0\.01' does, or run='lr_0\.01'"
    with pytest.raises(UsageError, match=said):
        recover_train(model, make_dataset(), tmp_path, EPOCHS, [Trace()], fresh="start")
    with pytest.raises(UsageError, match=said):
        resume(model.train_network, tmp_path, fresh="start")
    assert contents(tmp_path) == before
    for named in ({"prefix": "lr_0.01"}, {"run": "lr_0.01"}):
        trace = Trace(9)
        with pytest.raises(CrashError):
            recover_train(FIRST.model(), make_dataset(), tmp_path, EPOCHS, [trace], **named)
        assert trace.seen == {number: alone["lr_0.01"][0][number] for number in (7, 8, 9)}


def test_a_loop_does_not_save_under_its_own_name_what_it_took_from_another(tmp_path, caplog):
    FIRST.go_on(tmp_path, 8)
    before = contents(tmp_path)
    network = SECOND.model().train_network
    caplog.clear()
    assert resume(network, tmp_path, prefix="lr_0.5", fresh="start").step is None
    assert begins_beside(caplog, "lr_0.01")
    assert resume(network, tmp_path).step == Step(1, 6)
    saver = SliceSaver(network, f"{tmp_path}/ckpt_dir{{rank}}", "lr_0.5")
    words = r"of the experiment 'lr_0\.01' in .* was loaded.*prefix='lr_0\.5'.*run='lr_0\.01'"
    with pytest.raises(UsageError, match=words):
        saver.save(7)
    assert contents(tmp_path) == before
    elsewhere = SliceSaver(network, f"{tmp_path.parent}/fine_tuning_{tmp_path.name}/ckpt_dir{{rank}}", "tuned")
    elsewhere.save(7)
    elsewhere.release()
    assert resume(network, tmp_path, run="lr_0.01").step == Step(1, 6)
    saver.save(7)
    saver.release()
    assert before.items() <= contents(tmp_path).items()


def test_a_finished_training_under_a_name_that_looks_like_a_rerun_stays(tmp_path):
    """`resnet_50` is no fiftieth start of `resnet`."""

    def train(prefix, crash=None):
        saver = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", prefix, 2, keep=2)
        callbacks = [Trace(crash), saver]
        try:
            make_model().train(1, make_dataset(), callbacks=callbacks)
        except CrashError:
            recover_train(make_model(), make_dataset(), tmp_path, 1, [Trace(), saver])

    train("resnet_50")
    before = contents(tmp_path)
    train("resnet", crash=5)
    assert before.items() <= contents(tmp_path).items()
    assert slices(tmp_path, "resnet-*") + slices(tmp_path, "resnet_1-*") == ["resnet_1-1_6.ckpt", "resnet_1-1_8.ckpt"]


def test_a_rerun_beside_a_finished_training_removes_nothing_of_it(tmp_path, caplog):
    for _ in range(2):
        caplog.clear()
        saver = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 2, keep=2)
        make_model().train(2, make_dataset(), callbacks=[saver])
    assert slices(tmp_path) == [
        "test-2_6.ckpt.superseded",
        "test-2_8.ckpt.superseded",
        "test_1-2_6.ckpt",
        "test_1-2_8.ckpt",
    ]
    said = [one for one in warnings(caplog) if "renamed" in one]
    assert len(said) == 1
    assert "2 slice(s) up to step 2_8, of other runs of 'test'" in said[0]


def test_five_crashes_leave_no_more_than_is_to_be_kept(tmp_path):
    for crash in (4, 7, 10, 13, 16):
        Member("lr_0").go_on(tmp_path, crash)
    assert slices(tmp_path) == ["lr_0_3-2_4.ckpt", "lr_0_4-2_7.ckpt"]


def test_what_was_saved_behind_the_step_that_was_gone_on_from_goes_when_training_has_come_as_far(tmp_path, caplog):
    """In one line. A run that nothing was begun from stays beside it."""
    Member("lr_0").go_on(tmp_path, 14)
    assert slices(tmp_path) == ["lr_0-2_1.ckpt", "lr_0-2_4.ckpt"]
    Member("lr_0").go_on(tmp_path, 11, step="2_1")
    assert slices(tmp_path) == ["lr_0-2_1.ckpt", "lr_0-2_4.ckpt.superseded"]
    caplog.clear()
    Member("lr_0").go_on(tmp_path, 14)
    assert slices(tmp_path) == ["lr_0-2_1.ckpt", "lr_0_1-2_4.ckpt"]
    said = [one for one in warnings(caplog) if "removed" in one]
    assert len(said) == 1
    assert "1 slice(s) of 'lr_0' that runs before this one saved behind the step from which" in said[0]
    Member("lr_0").go_on(tmp_path, 13, step="2_1")
    Member("lr_0").go_on(tmp_path)
    assert slices(tmp_path) == ["lr_0_1-2_4.ckpt.superseded", "lr_0_3-2_7.ckpt", "lr_0_3-2_8.ckpt"]


def test_given_up_slices_that_go_at_several_saves_are_one_warning_with_their_number(tmp_path, caplog):
    Member("lr_0", keep=4).go_on(tmp_path, 14)
    caplog.clear()
    Member("lr_0").go_on(tmp_path, step="1_3")
    said = [one for one in warnings(caplog) if "removed" in one]
    assert len(said) == 1
    assert "3 slice(s) of 'lr_0' that runs before this one saved behind the step from which" in said[0]
    assert "up to step 2_4" in said[0]
    assert slices(tmp_path) == ["lr_0_1-2_7.ckpt", "lr_0_1-2_8.ckpt"]


def test_slices_of_stock_callbacks_under_another_name_are_named(tmp_path, caplog):
    saver = ModelCheckpoint("CKP", f"{tmp_path}/ckpt_dir0", CheckpointConfig(save_checkpoint_steps=4))
    make_model().train(1, make_dataset(), callbacks=[saver])
    own = [SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 4)]
    with pytest.raises(MissingInputError, match=r"is of 'test'.*slices of 'CKP' \(up to step 1_8\).*run='CKP'"):
        recover_train(make_model(), make_dataset(), tmp_path, 2, own)
    assert recover_train(make_model(), make_dataset(), tmp_path, 2, own, run="CKP").step == Step(1, 8)


def test_a_training_that_begins_beside_slices_of_stock_callbacks_names_them_in_one_warning(tmp_path, caplog):
    saver = ModelCheckpoint("CKP", f"{tmp_path}/ckpt_dir0", CheckpointConfig(save_checkpoint_steps=4))
    make_model().train(1, make_dataset(), callbacks=[saver])
    before = contents(tmp_path)
    own = [SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 4)]
    assert recover_train(make_model(), make_dataset(), tmp_path, 2, own, fresh="start").step is None
    assert begins_beside(caplog, "CKP")
    assert before.items() <= contents(tmp_path).items()


def test_two_trainings_of_one_script_under_one_prefix_are_refused_with_the_way_out(tmp_path):
    """First the head, then everything: the first one must not go on with the slices of the second."""

    def train(everything, prefix):
        body, head = nn.Dense(3, 4), nn.Dense(4, 2)
        network = nn.SequentialCell(body, head)
        if not everything:
            body.weight.requires_grad = body.bias.requires_grad = False
        trained = network.trainable_params()
        model = Model(network, nn.MSELoss(), (nn.Adam if everything else nn.Momentum)(trained, 0.01, 0.9))
        saver = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", prefix, 4)
        return recover_train(model, make_dataset(), tmp_path, 1, [saver], fresh="start").step

    assert train(False, "net") is None
    with pytest.raises(InputError, match="a script with several trainings gives each a prefix of its own"):
        train(True, "net")
    assert train(False, "head") is train(True, "all") is None
    assert train(False, "head") == train(True, "all") == Step(1, 8)


def test_manifests_and_states_name_the_experiment(tmp_path):
    FIRST.go_on(tmp_path, 7)
    FIRST.go_on(tmp_path, 10)
    found = [read_manifest(path).training for path in sorted(tmp_path.rglob(f"*{MANIFEST_SUFFIX}"))]
    assert {(one.base_prefix, one.start_number) for one in found} == {("lr_0.01", 0), ("lr_0.01", 1)}
    (path,) = tmp_path.rglob("lr_0.01_1-2_1.ckpt.state")
    assert json.dumps("lr_0.01_1").encode() in path.read_bytes()
