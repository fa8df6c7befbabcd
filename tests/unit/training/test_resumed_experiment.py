"""Which experiment a program resumes, by the runs that all ranks see, and what is refused."""

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore.train import ModelCheckpoint  # noqa: E402

from ms_recover.planning.tree.lineage import RunRecord  # noqa: E402
from ms_recover.training.deciding.experiment import experiment_of, start_of  # noqa: E402
from ms_recover.training.deciding.resumed_experiment import take_experiment  # noqa: E402
from ms_recover.training.foreign_saves import given_experiments  # noqa: E402


def run(name, base=None, newest="1_8", aside=None, bases=()):
    return RunRecord(
        run_id=name,
        started=1000,
        newest=None if newest is None else Step.parse(newest),
        aside=None if aside is None else Step.parse(aside),
        base_prefix=base,
        bases=bases,
    )


A, B = run("a", "lr_0.01"), run("b", "lr_0.5", "2_3")
BOTH = run("c", "epoch", bases=("test",))
OLD, STOCK = run("d", bases=("lr_0.01",)), run("", bases=("CKP",))


def taken(runs, given=(), run=None):
    return take_experiment(runs, given, run, "root")


@pytest.mark.parametrize(
    ("runs", "given", "experiments"),
    [
        ([A, B], ("lr_0.01",), ("lr_0.01",)),
        ([A, B], ("lr_0.01", "lr_0.5"), ("lr_0.01", "lr_0.5")),
        ([BOTH, A], ("test",), ("epoch", "test")),
        ([OLD, B], ("lr_0.01",), ("lr_0.01",)),
        ([STOCK], ("CKP",), ("CKP",)),
        ([], ("lr_0.01",), ("lr_0.01",)),
    ],
)
def test_a_program_takes_its_own(runs, given, experiments):
    found = taken(runs, given)
    assert (found.experiments, found.own, found.others, found.loaded) == (experiments, given, (), ())


@pytest.mark.parametrize("runs", [[A], [BOTH], [OLD], [STOCK], [A, STOCK], []])
def test_one_experiment_needs_no_name(runs):
    """Those of which no manifest states the name are read as ever; a saver may go on under the name that was read."""
    found = taken(runs)
    stated = {name for one in runs if one.base_prefix for name in one.experiments}
    assert (found.experiments, found.own, found.others, set(found.loaded)) == ((), (), (), stated)


def test_several_are_refused_without_a_name():
    with pytest.raises(UsageError, match=r"'lr_0\.01' \(up to step 1_8\), 'lr_0\.5' \(up to step 2_3\); name the one"):
        taken([A, B, STOCK])


def test_only_others_are_named():
    found = taken([A, B, STOCK, run("e", "mine", None, "3_8")], ("mine",))
    assert found.others == (("CKP", Step(1, 8)), ("lr_0.01", Step(1, 8)), ("lr_0.5", Step(2, 3)))
    assert "'lr_0.5' (up to step 2_3), which stay as they are: run='CKP'" in found.why_none("root")


def test_a_name_of_a_run_or_of_an_experiment_takes_any():
    assert (taken([A, B], ("lr_0.5",), "a").run, taken([A, B], ("lr_0.5",), "a").own) == ("a", ("lr_0.5",))
    found = taken([A, B], ("lr_0.5",), "lr_0.01")
    assert (found.run, found.experiments, found.own, found.others) == (None, ("lr_0.01",), ("lr_0.5",), ())
    assert taken([A, B], (), "lr_0.01").own == ("lr_0.01",)


def test_the_experiments_of_a_program(tmp_path):
    assert given_experiments(None) == ()
    assert given_experiments("a_rank_3") == ("a",)
    assert given_experiments(["b", "a"]) == ("a", "b")
    (tmp_path / "CKP-1_1.ckpt").touch()
    stock = ModelCheckpoint("CKP", str(tmp_path))
    assert given_experiments(None, [stock]) == ("CKP",)
    assert given_experiments("a", [stock]) == ("a",)
    with pytest.raises(UsageError, match="prefix"):
        given_experiments(3)


def test_prefixes():
    assert experiment_of("CKP_rank_3") == "CKP"
    assert experiment_of("lora_rank_8_rank_3") == "lora_rank_8"
    assert experiment_of("resnet_50") == "resnet_50"
    assert (start_of("net", "net"), start_of("net_3", "net"), start_of("net_x", "net")) == (0, 3, None)
