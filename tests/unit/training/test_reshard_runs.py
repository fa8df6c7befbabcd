"""With ``reshard=True`` a run is chosen, brought back and named as without it, on as many ranks or on others."""

import logging
import shutil
from contextlib import suppress

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.formats.manifest import read_manifest  # noqa: E402
from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import SliceManifests, SliceSaver, recover_train, resume, slice_saver  # noqa: E402
from ms_recover.training.run import forget_resumed  # noqa: E402
from ms_recover.training.this_process import current_job  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402
from tests.support.trainings import files  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_resumed():
    forget_resumed()


def network(value=0.0):
    with suppress(SystemError):  # of the first operator, where MindSpore was built for an older numpy
        ms.Tensor([1.0]) * 0.5
    return nn.Dense(2, 2, weight_init=ms.Tensor(np.full((2, 2), value, np.float32)), bias_init="zeros")


def train(root, monkeypatch, ranks, steps, value, cells=lambda made: [made]):
    """Have ranks that are replicas save steps, whose weights are `value` and the step; return the run.

    `cells` returns what is saved of a network.
    """
    jobs, made, networks = thread_jobs(ranks), [], []
    for rank in range(ranks):
        monkeypatch.setattr(slice_saver, "current_job", lambda rank=rank: jobs[rank] if ranks > 1 else current_job())
        networks.append(network())
        group = list(range(ranks)) if ranks > 1 else None
        made.append(SliceSaver(cells(networks[rank]), f"{root}/ckpt_dir{{rank}}", "net", group=group))

    def work(rank):
        with made[rank] as saver:
            for step in steps:
                networks[rank].weight.asnumpy()[...] = value + step
                saver.save(step)

    assert on_all(ranks, work) == [None] * ranks
    return made[0].run_id


@pytest.fixture(params=[1, 2], ids=["as many ranks", "cut anew"])
def runs(request, tmp_path, monkeypatch):
    """A tree with a run that was abandoned at step 3, and one begun from scratch that came to step 2."""
    first = train(tmp_path, monkeypatch, request.param, (1, 2, 3), 0)
    second = train(tmp_path, monkeypatch, request.param, (1, 2), 100)
    return tmp_path, first, second


def resumed(root, **options):
    """Return the step that one rank resumes from, and its weight."""
    found = network()
    step = resume([found], root, prefix="net", reshard=True, **options).step
    return step, float(found.weight.asnumpy()[0, 0])


def test_a_run_that_was_set_aside_is_resumed(runs):
    root, first, second = runs
    assert resumed(root, run=first) == (Step(1, 3), 3.0)
    assert resumed(root, run=second) == (Step(1, 2), 102.0)


def test_an_abandoned_run_that_came_further_is_named(runs, caplog):
    root, first, _ = runs
    assert resumed(root) == (Step(1, 2), 102.0)
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    (line,) = [text for text in said if "training resumes from step 1_2" in text]
    assert f"step 1_3 of run {first}" in line
    assert "set aside" in line
    assert f"run='{first}'" in line


def test_slices_in_the_place_of_those_that_are_brought_back_are_named_in_one_line(tmp_path, monkeypatch, caplog):
    """A trainer that saves by itself has written over the names of a run whose slices were set aside."""
    first = train(tmp_path / "first", monkeypatch, 1, (1, 2, 3), 0)
    second = train(tmp_path / "tree", monkeypatch, 1, (1, 2, 3), 100)
    for path in (tmp_path / "first/ckpt_dir0").glob("net-*"):
        name, end = path.name.split(".ckpt")
        shutil.copy(path, tmp_path / f"tree/ckpt_dir0/{name}.ckpt.superseded{end}")
    before = files(tmp_path / "tree")
    with pytest.raises(Exception, match="weight"):
        resume([nn.Dense(3, 2)], tmp_path / "tree", prefix="net", run=first)
    assert files(tmp_path / "tree") == before
    caplog.clear()
    found = network()
    assert resume([found], tmp_path / "tree", prefix="net", run=first).step == Step(1, 3)
    assert float(found.weight.asnumpy()[0, 0]) == 3.0
    said = [one.getMessage() for one in caplog.records if "renamed to" in one.getMessage()]
    assert len(said) == 2
    assert f"3 slice(s) up to step 1_3, in the place of slices of run {first}" in said[0]
    assert f"3 slice(s) up to step 1_3, of run {first}" in said[1]
    assert resumed(tmp_path / "tree", run=second) == (Step(1, 3), 103.0)


def test_where_it_cannot_be_resumed_every_slice_has_its_name_of_before(runs):
    root, first, _ = runs
    before = files(root)
    with pytest.raises(Exception, match="weight"):
        resume([nn.Dense(3, 2)], root, prefix="net", reshard=True, run=first)
    assert files(root) == before


@pytest.mark.parametrize("others", [1, 2], ids=["nobody knows which is meant", "most ranks have the run"])
def test_the_folder_of_another_training_is_refused_or_named(tmp_path, monkeypatch, caplog, others):
    """The folders of the last ranks of three are those of a training that came further."""
    ours = train(tmp_path / "tree", monkeypatch, 3, (1, 2), 0)
    theirs = train(tmp_path / "other", monkeypatch, 3, (1, 2, 3), 100)
    for rank in range(3 - others, 3):
        shutil.rmtree(tmp_path / f"tree/ckpt_dir{rank}")
        shutil.copytree(tmp_path / f"other/ckpt_dir{rank}", tmp_path / f"tree/ckpt_dir{rank}")
    if others == 2:
        assert resumed(tmp_path / "tree") == (Step(1, 3), 103.0)
        assert f"the folder of rank(s) 0 is of another training: it has slices of run {ours}" in caplog.text
        return
    before = files(tmp_path / "tree")
    with pytest.raises(UsageError, match=r"the folder of rank\(s\) 0, 1 is of another training") as refused:
        resumed(tmp_path / "tree")
    for text in (f"run='{ours}'", f"run='{theirs}'", "up to step 1_2", "up to step 1_3"):
        assert text in str(refused.value)
    assert files(tmp_path / "tree") == before
    assert resumed(tmp_path / "tree", run=ours) == (Step(1, 2), 2.0)


def test_a_trainer_that_saves_by_itself_goes_on_in_a_tree_of_its_own(tmp_path, monkeypatch):
    """MindSpore's ModelCheckpoint with SliceManifests beside it, on one rank from slices of two."""
    train(tmp_path, monkeypatch, 2, (1, 2), 0)
    found = network()
    assert resume([found], tmp_path, prefix="net", reshard=True).resharded_from == 2
    data = ms.dataset.GeneratorDataset([(np.ones(2, np.float32), np.ones(2, np.float32))] * 4, ["x", "y"]).batch(2)
    saver = ModelCheckpoint("net", str(tmp_path / "ckpt_dir0"), CheckpointConfig(2, keep_checkpoint_max=4))
    model = Model(found, nn.MSELoss(), nn.Momentum(found.trainable_params(), 0.1, 0.9))
    model.train(1, data, callbacks=[saver, SliceManifests()], dataset_sink_mode=False)
    for folder, ranks, before in ((tmp_path, 1, 2), (tmp_path / "resharded_from/2_ranks_1_2", 2, None)):
        manifests = [read_manifest(path) for path in folder.glob("ckpt_dir*/*.manifest.json")]
        assert {(one.world_size, one.training.resharded_from) for one in manifests} == {(ranks, before)}


def test_samples_of_slices_that_were_cut_anew_are_named_and_their_reasons_are_warnings(
    tmp_path, monkeypatch, caplog, capsys
):
    def model(found):
        return Model(found, nn.MSELoss(), nn.Momentum(found.trainable_params(), 0.1, 0.9))

    train(tmp_path, monkeypatch, 2, (1, 2), 0, lambda made: model(made).train_network)
    ones = np.ones(2, np.float32)
    data = ms.dataset.GeneratorDataset([(ones, ones)] * 8, ["x", "y"], shuffle=False).batch(2)
    data = data.map(ms.dataset.transforms.RandomApply([ms.dataset.transforms.TypeCast(ms.float32)]), ["x"])
    found = recover_train(model(network()), data, tmp_path, 1, prefix="net", reshard=True, sink_mode=False)
    assert (found.step, found.resharded_from) == (Step(1, 2), 2)
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from ")]
    assert "samples not proven: slices were cut anew, so that no rank has the batch that was trained before" in line
    (reason,) = [one for one in caplog.records if "random operations on samples (RandomApply)" in one.getMessage()]
    assert reason.levelname == "WARNING"
