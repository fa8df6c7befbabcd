"""The arguments of `recover_train` and `resume`."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from ms_recover.errors import UsageError
from ms_recover.loading.path_arguments import source_texts

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.train import Model  # noqa: E402

from ms_recover.training import found_slice, recover_train, resume  # noqa: E402
from ms_recover.training.resume_options import ResumeOptions  # noqa: E402


class AskedError(Exception):
    pass


@pytest.fixture
def asked(monkeypatch):
    def look(job, search, sources=None):
        scanning, judging = search.scanning, search.judging
        raise AskedError(search.root, scanning.pattern, scanning.group_info, scanning.strategy, judging.tolerate)

    monkeypatch.setattr(found_slice, "Look", look)


def model():
    network = nn.Dense(3, 2)
    return Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))


def dataset():
    return ds.NumpySlicesDataset([1.0, 2.0])


@pytest.mark.parametrize("call", ["recover_train", "resume"])
def test_strategy_files_and_rank_lists_elsewhere_are_used(asked, monkeypatch, tmp_path, call):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"group_info": ["~/g/{rank}.pb"], "strategy": "s_rank_{rank}.ckpt", "tolerate": "step"}
    with pytest.raises(AskedError) as found:
        if call == "resume":
            resume(nn.Dense(3, 2), "~/tree", **options)
        else:
            recover_train(model(), dataset(), "~/tree", 1, **options)
    expected = (f"{tmp_path}/tree", None, (f"{tmp_path}/g/{{rank}}.pb",), ("s_rank_{rank}.ckpt",), ("step",))
    assert found.value.args == expected


def test_what_is_a_path_by_its_type_is_never_taken_for_a_host(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    given = (one for one in (Path("node2"), "node2", "~/tree", "node2:29610"))
    assert source_texts("sources", given) == (f"{tmp_path}/node2", "node2", "/home/me/tree", "node2:29610")
    assert source_texts("sources", Path("node2")) == (f"{tmp_path}/node2",)
    with pytest.raises(UsageError, match="sources=5: it must be a source or a list of sources"):
        source_texts("sources", 5)


@pytest.mark.parametrize("call", [recover_train, resume])
def test_keywords_have_the_defaults_of_the_value_that_they_become(call):
    found_out = ("from_environment", "experiments")
    stated = {one.name: one for one in fields(ResumeOptions) if one.name not in ("root", *found_out)}
    keywords = inspect.signature(call).parameters
    assert {name: keywords[name].default for name in stated} == {name: one.default for name, one in stated.items()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epochs": 0}, "epochs=0: it must be at least 1"),
        ({"epochs": "2"}, "epochs='2': it must be a whole number"),
        ({"epochs": 2.0}, "a whole number"),
        ({"fresh": "maybe"}, "fresh='maybe': it must be 'refuse' or 'start'"),
        ({"fresh": True}, "must be 'refuse' or 'start'"),
        ({"rank_local": "own"}, "rank_local='own': it must be 'peer', 'initial' or 'refuse'"),
        ({"model": nn.ReLU()}, "a ReLU is no mindspore.train.Model"),
        ({"dataset": [1, 2]}, "it must be a mindspore.dataset.Dataset"),
        ({"root": None}, "root=None: it must be a path"),
        ({"root": ""}, "it is not a path"),
        ({"callbacks": "save"}, "must be a mindspore.train.Callback"),
        ({"callbacks": [nn.ReLU()]}, "must be a mindspore.train.Callback"),
        ({"callbacks": nn.ReLU}, "must be a mindspore.train.Callback"),
        ({"sink_mode": "no"}, "sink_mode='no': it must be True, False or None"),
        ({"sink_size": 0}, "sink_size=0: it must be -1"),
        ({"sink_size": None}, "a whole number"),
        ({"pattern": 3}, "pattern=3: it must be a text"),
        ({"group_info": 3}, "group_info=3: it must be a path or a list of paths"),
        ({"strategy": [3]}, "strategy=3: it must be a path"),
        ({"newest": "yes"}, "newest='yes': it must be True or False"),
        ({"run": 3}, "run=3: it must be a text"),
        ({"allow_dataset_change": 1}, "allow_dataset_change=1: it must be True or False"),
        ({"tolerate": [3]}, "tolerate=3: it must be a text"),
        ({"valid_dataset": "v"}, "valid_dataset='v': it must be a mindspore.dataset.Dataset"),
        ({"valid_dataset": ds.NumpySlicesDataset([1.0])}, "the model has no metrics"),
        ({"valid_frequency": 0}, "valid_frequency=0: it must be at least 1"),
        ({"valid_frequency": "1"}, "valid_frequency"),
        ({"valid_sink_mode": 1}, "valid_sink_mode=1: it must be True, False or None"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(asked, tmp_path, arguments, said):
    given = {"model": model(), "dataset": dataset(), "root": tmp_path, "epochs": 1, **arguments}
    with pytest.raises(UsageError, match=said):
        recover_train(**given)
