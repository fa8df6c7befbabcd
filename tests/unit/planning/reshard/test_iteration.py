"""Which file of an iteration a parameter goes to."""

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.rank_path import RankPath
from ms_recover.model.steps import Step
from ms_recover.planning.reshard.iteration import common_of, prefix_of, split_parameters
from ms_recover.planning.reshard.source import Source
from ms_recover.planning.supply.whole import WholeParameter
from tests.support.histories import saved, value

PLACE = RankPath(("rank_", "/x.ckpt"))


def kinds(*names, part=None):
    made = {
        name: WholeParameter(name=name, dtype="Float32", shape=(2,), item_size=4, regions=(), kind=part)
        for name in names
    }
    return split_parameters(Source(slices=(), parameters=made))


def test_states_have_a_beginning_that_nothing_else_has():
    found = kinds("fc.weight", "fc.bias", "moment1.fc.weight", "optimizer.v.fc.weight", "global_step", "rate")
    assert {name for name, kind in found.items() if kind == "opt"} == {
        "moment1.fc.weight",
        "optimizer.v.fc.weight",
        "global_step",
    }


def test_parameters_of_modules_with_like_names_are_the_network_s():
    found = kinds("bias", "head.weight", "encoder.bias", "encoder.head.weight", "encoder.layer.weight")
    assert set(found.values()) == {"model"}


def test_what_has_no_place_and_what_the_tree_states():
    found = kinds("fc.weight", "accu_grads.fc.weight", "loss_scale", "epoch_num")
    assert found == {"fc.weight": "model", "accu_grads.fc.weight": None, "loss_scale": None, "epoch_num": None}
    assert kinds("moment1.x", "x", part="model") == {"moment1.x": "model", "x": "model"}


@pytest.mark.parametrize(
    ("prefix", "part", "expected"),
    [
        ("CKP_rank_3", None, "CKP"),
        ("lora_rank_8_rank_3_1", None, "lora_rank_8"),
        ("test", None, "test"),
        ("", "opt", None),
        ("job_rank_3", "model", "job_rank_3"),
    ],
)
def test_the_prefix_names_no_rank(prefix, part, expected):
    assert prefix_of(SliceFile(3, Step(1, 2), PLACE, prefix, 0, 0, kind=part)) == expected


def common(step, values, *given, files=()):
    return common_of(Inventory(root="/tree"), step, files, values, given)


def test_the_progress_is_what_slices_hold_and_the_operator_says():
    found = common(Step(3, 5), {"global_step": 105, "loss_scale": 2.0}, ("global_batch_size", 8))
    assert (found.epoch_num, found.step_num, found.global_step, found.loss_scale) == (3, 105, 105, 2.0)
    found = common(Step(1, 5), {"epoch_num": 2}, ("global_batch_size", 8), ("consumed_samples", 40))
    assert (found.epoch_num, found.step_num, found.global_step, found.consumed_samples) == (2, 5, 5, 40)
    assert found.members[-1] == "consumed_samples"


def test_what_nothing_states_is_asked_for():
    with pytest.raises(UsageError, match=r"step_num or .*--common step_num=NUMBER --common global_batch_size=NUMBER"):
        common(Step(2, 5), {})


def test_manifests_state_how_many_steps_were_trained_unless_they_contradict_each_other():
    one, other = (saved(rank, Step(2, 5), value) for rank in (0, 1))
    given = (("global_batch_size", 8), ("global_step", 13))
    assert common(Step(2, 5), {}, *given, files=[one, other]).step_num == 5
    other = replace(other, manifest=replace(other.manifest, cumulative_step=13))
    with pytest.raises(UsageError, match="nothing in step 2_5 states step_num, without which"):
        common(Step(2, 5), {}, *given, files=[one, other])
