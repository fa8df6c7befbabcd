"""Which file of an iteration a parameter goes to."""

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.rank_path import RankPath
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.planning.reshard.iteration import common_of, metadata_of, prefix_of, saved_parameters, split_parameters
from ms_recover.planning.reshard.source import Source
from ms_recover.planning.supply.whole import WholeParameter
from tests.support.histories import saved, value
from tests.unit.planning.reshard.test_transfers import layout, plan_of, source_of, target_of, whole

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


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["a", "global_step"], ["a"]),
        (["a", "moment1.a", "global_step"], ["a", "moment1.a", "global_step"]),
        (["a", "accu_grads.a", "epoch_num", "moment1.a"], ["a", "moment1.a"]),
    ],
)
def test_files_have_what_is_of_a_kind_and_the_step_beside_other_states_only(names, kept):
    wholes = {name: WholeParameter(name=name, dtype="Float32", shape=(2,), item_size=4, regions=()) for name in names}
    found = saved_parameters(list(wholes.values()), split_parameters(Source(slices=(), parameters=wholes)))
    assert [one.name for one in found] == kept


def of_iterations(*commons):
    """Return an inventory of the iterations 8, 16, ... with these documents, None for one that is lost."""
    return Inventory(
        root="/tree",
        iterations=tuple(
            Iteration(
                step=Step.iteration(number),
                directory=f"iteration_{number:08d}",
                metadata=Document("metadata.json"),
                common=Document("common.json", value=common),
            )
            for number, common in zip((8, 16, 24), commons, strict=False)
        ),
    )


def stated(step, **changes):
    members = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "theirs")
    made = CommonInfo(
        epoch_num=0, step_num=step, global_step=step, loss_scale=None, global_batch_size=4, members=members
    )
    return replace(made, **changes)


def test_an_iteration_states_its_progress_and_the_operator_goes_before_it():
    inventory = of_iterations(stated(8, loss_scale=0.5), stated(16, global_batch_size=2))
    found = common_of(inventory, Step.iteration(8), [], {"global_batch_size": 99}, [("consumed_samples", 64.0)])
    assert found == stated(8, loss_scale=0.5, consumed_samples=64, members=(*stated(8).members, "consumed_samples"))
    found = common_of(inventory, Step.iteration(16), [], {}, [("epoch_num", 3.0), ("loss_scale", 0.25)])
    assert found == stated(16, global_batch_size=2, epoch_num=3, loss_scale=0.25)
    assert [type(value) for value in (found.epoch_num, found.loss_scale)] == [int, float]


def test_a_lost_document_is_rebuilt_from_other_iterations():
    inventory = of_iterations(None, stated(16), stated(24))
    found = common_of(inventory, Step.iteration(8), [], {}, [])
    assert (found.step_num, found.global_step, found.global_batch_size) == (8, 8, 4)


def test_of_an_iteration_of_which_nothing_is_known_the_step_alone_is():
    given = [("epoch_num", 1), ("global_step", 8), ("global_batch_size", 4)]
    found = common_of(of_iterations(None), Step.iteration(8), [], {}, given)
    assert (found.step_num, found.global_step, found.loss_scale) == (8, 8, None)
    with pytest.raises(UsageError, match=r"states epoch_num or global_step or global_batch_size, without which"):
        common_of(of_iterations(None), Step.iteration(8), [], {}, [])
    with pytest.raises(UsageError, match=r"give --common global_step=NUMBER$"):
        common_of(of_iterations(None), Step.iteration(8), [], {}, [given[0], given[2]])


COMMON = CommonInfo(epoch_num=1, step_num=8, global_step=8, global_batch_size=4)


def iteration_of(*stages):
    """Plan an iteration of these layouts of a stage of four ranks each."""
    names = dict.fromkeys(one.parameter for layouts in stages for one in layouts)
    return plan_of(
        source_of(*(whole(name, (8, 4)) for name in names)), target_of(*stages), common=COMMON, form="mindformers"
    )


def test_metadata_state_where_each_part_of_each_stage_lies():
    """The first stage has states of the optimizer, the second one none."""
    plan = iteration_of([layout("a", 0, None), layout("m.a", 0, 1)], [layout("b", None, None)])
    metadata = plan.metadata
    assert sorted(metadata.parameters) == ["a", "b", "m.a"]
    for file in plan.files:
        for moved, part, _ in plan.parts_of(file):
            one = metadata.parameters[moved.name]
            assert one.region_of(one.layout.fragments[file.place]) == part.box
    assert {name for name in metadata.files if "opt" in name} == {
        f"test-opt-{rank:07d}-0000008.safetensors" for rank in range(4)
    }
    assert len({name for name in metadata.files if "model" in name}) == 8


def test_what_no_layout_names_is_stated_as_whole_on_each_rank():
    wholes = [whole("a"), whole("n", (2,), cut=False), whole("scalar", (), cut=False)]
    plan = plan_of(source_of(*wholes), target_of([layout("a", 0)]), common=COMMON, form="mindformers")
    assert sorted(plan.metadata.parameters) == ["a", "n"]
    assert plan.metadata.parameters["n"].layout.fragments == (0,) * 4


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([[Layout("a", (2, 2), ((0,), ()), split_shape=(3, 5))]], "--to cuts 'a' in a way that"),
        ([[Layout("a", (2, 2), ((0,), ()), split_shape=(4, 4))]], "--to cuts 'a' in a way that"),
        ([[layout("a", 0, None)], [layout("a", None, 0)]], "several pipeline stages have 'a' and cut it differently"),
    ],
)
def test_cuts_that_metadata_cannot_state_are_refused(stages, words):
    with pytest.raises(UsageError, match=words):
        iteration_of(*stages)


def test_metadata_that_would_state_other_regions_than_the_files_hold_are_refused():
    plan = iteration_of([layout("a", 0, None)])
    (transfer,) = plan.transfers
    assert metadata_of(plan, "test", "--to").parameters.keys() == {"a"}
    turned = replace(plan, transfers=(replace(transfer, cells=transfer.cells[::-1]),))
    with pytest.raises(UsageError, match="--to cuts 'a' over ranks in an order that"):
        metadata_of(turned, "test", "--to")
