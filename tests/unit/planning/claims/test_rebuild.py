"""Lost documents, rebuilt byte for byte where the other iterations and the files state what was in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ms_recover.formats.common_info import COMMON_MEMBERS, encode_common, read_common
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.model.shard_metadata import NEVER_SAVED, CommonInfo, ShardMetadata
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.compare_documents import GLOBAL_STEP, ListedFile
from ms_recover.planning.claims.metadata import expected_files
from ms_recover.planning.claims.rebuild import (
    MEMBERS,
    REQUIRED,
    metadata_from_layouts,
    only_kinds,
    rebuild_common,
    rebuild_metadata,
)
from tests.support.iterations import Job, listed, make_common, make_metadata, strategies
from tests.support.mindformers import DATA, TREES, listed_files, metadata_text, parse

JOBS = {
    "dp2_mp4": Job(model_parallel=4),
    "dp4_mp2_opt2": Job(data_parallel=4, optimizer_shards=2),
    "dp2_mp2_pp2": Job(stages=2, batch=32),
}
OTHERS = [
    Job(),
    Job(dtype="bfloat16", prefix=None),
    Job(remove_redundancy=True),
    Job(remove_redundancy=True, stages=2, dtype="bfloat16"),
    Job(remove_redundancy=True, optimizer=False, data_parallel=4),
    Job(optimizer=False, stages=2),
    Job(data_parallel=8, optimizer_shards=4, model_parallel=1),
    Job(data_parallel=4, optimizer_shards=4, remove_redundancy=True, prefix="a-model-0000001-0000002"),
    Job(data_parallel=1, model_parallel=8, stages=4, layers=4),
]


def text(metadata: ShardMetadata | None) -> bytes:
    assert metadata
    return b"".join(encode_metadata(metadata))


@pytest.mark.parametrize("tree", TREES)
def test_generated_metadata_are_mindformers_own(tree: str) -> None:
    assert text(make_metadata(JOBS[tree])) == metadata_text(tree)
    generated = {name: set(file.parameters) for name, file in listed(make_metadata(JOBS[tree])).items()}
    assert generated == {name: set(file.parameters) for name, file in listed_files(tree).items()}
    assert encode_common(make_common(JOBS[tree], 100)) == (DATA / tree / "common.json").read_bytes()


@pytest.mark.parametrize("job", OTHERS, ids=str)
def test_metadata_of_any_layout_are_read_as_they_are_written(job: Job) -> None:
    made = make_metadata(job)
    found = parse(text(made))
    assert (found.parameters, found.stored, found.order) == (made.parameters, made.stored, made.order)
    assert text(found) == text(made)
    assert found.removed_redundancy is job.remove_redundancy
    assert found.world_size == job.world_size


@pytest.mark.parametrize("tree", TREES)
def test_metadata_are_rebuilt_byte_for_byte_from_another_iteration(tree: str) -> None:
    files = dict(list(listed_files(tree).items())[3:])
    files[next(iter(files))] = ListedFile(problem="cut")
    rebuilt = rebuild_metadata(parse(metadata_text(tree)), 200, files)
    assert rebuilt.problem == ""
    assert text(rebuilt.metadata) == metadata_text(tree)
    source = "the metadata.json of iteration 200, with which 12 of 16 files agree"
    assert rebuilt.sources == (
        ("state_dict_metadata", source),
        ("storage_data", source),
        ("file_name", source),
    )


@pytest.mark.parametrize("job", OTHERS, ids=str)
def test_metadata_are_rebuilt_for_files_of_another_prefix(job: Job) -> None:
    files = listed(make_metadata(replace(job, prefix="resumed")))
    rebuilt = rebuild_metadata(parse(text(make_metadata(job))), 200, files)
    assert rebuilt.problem == ""
    assert text(rebuilt.metadata) == text(make_metadata(replace(job, prefix="resumed")))
    assert dict(rebuilt.sources)["file_name"] == "the names of the files"


@pytest.mark.parametrize(
    "job", [Job(), Job(stages=2, dtype="bfloat16"), Job(data_parallel=4, optimizer_shards=2)], ids=str
)
def test_metadata_of_a_save_without_the_optimizer_are_rebuilt(job: Job) -> None:
    without = make_metadata(replace(job, optimizer=False))
    rebuilt = rebuild_metadata(make_metadata(job), 200, listed(without), kinds=frozenset({"model"}))
    assert text(rebuilt.metadata) == text(without)


def test_metadata_are_not_rebuilt_against_the_files() -> None:
    other, files = make_metadata(Job()), listed(make_metadata(Job()))
    first = next(iter(files))
    cases = {
        "members that are not known: version": (replace(other, unknown=("version",)), files),
        "no file of the iteration is there": (other, {"notes.txt": ListedFile()}),
        "different prefixes": (other, {**files, "x-model-0000000-0000004.safetensors": ListedFile()}),
        "no sound file": (other, {name: ListedFile(problem="cut") for name in files}),
        "the files are not as in iteration 300": (make_metadata(Job(layers=3)), files),
        "it does not have": (other, {**files, first: replace(files[first], parameters=files[first].parameters[1:])}),
        "its name counts 4 files": (make_metadata(Job(data_parallel=4)), files),
        "is Float32 [8, 8] in it, and BFloat16 [8, 8]": (make_metadata(Job(dtype="bfloat16")), files),
    }
    for reason, (metadata, present) in cases.items():
        rebuilt = rebuild_metadata(metadata, 300, present)
        assert rebuilt.metadata is None
        assert reason in rebuilt.problem


SHARDED = Job(data_parallel=4, optimizer_shards=2)


@pytest.mark.parametrize("job", [Job(), Job(model_parallel=4), SHARDED, Job(stages=2, optimizer=False)], ids=str)
def test_metadata_are_made_of_the_layouts_of_strategy_files(job: Job) -> None:
    made = make_metadata(job)
    files = listed(made)
    files[next(iter(files))] = ListedFile(problem="cut")
    found = metadata_from_layouts(strategies(job), "strategy.ckpt", files)
    assert found.problem == ""
    assert text(found.metadata) == text(made)
    agreeing = f"strategy.ckpt, with which {len(files) - 1} of {len(files)} files agree"
    assert dict(found.sources)["state_dict_metadata"] == f"layouts: {agreeing}; types and shapes: the files"


@pytest.mark.parametrize("job", [Job(), SHARDED, Job(stages=2, dtype="bfloat16")], ids=str)
def test_metadata_from_layouts_state_what_the_files_list(job: Job) -> None:
    """Types, shapes and bytes; the counter of steps is in each optimizer file, and in no metadata."""
    files = listed(make_metadata(job))
    found = metadata_from_layouts(strategies(job), "strategy.ckpt", files)
    assert found.metadata
    expected = expected_files(found.metadata)
    assert expected.keys() == files.keys()
    for name, file in files.items():
        assert set(expected[name].parameters) == {*file.parameters} - {GLOBAL_STEP}


def test_an_empty_parameter_and_one_without_dimensions_have_the_bytes_of_their_files() -> None:
    empty, single = Parameter("empty", "Float32", (0, 4), 0), Parameter("single", "Float16", (), 2)
    layouts = (Layout("empty", (2,), ((0,), ())), Layout("single", (2,), ()))
    files = {f"p-model-{rank:07}-{2:07}.safetensors": ListedFile(parameters=(empty, single)) for rank in range(2)}
    found = metadata_from_layouts({0: Strategy((0,), 1, layouts)}, "strategy.ckpt", files)
    assert found.metadata
    for file in expected_files(found.metadata).values():
        assert set(file.parameters) == {empty, single}


def test_parameters_that_are_never_saved_are_left_out_of_metadata_from_layouts() -> None:
    made = make_metadata(Job(stages=2))
    found = metadata_from_layouts(strategies(Job(stages=2)), "strategy.ckpt", listed(made))
    read = parse(text(found.metadata))
    kept = {name: one for name, one in made.parameters.items() if not name.startswith(NEVER_SAVED)}
    assert read.parameters == kept
    assert list(read.parameters) == list(kept)
    assert read.stored == {name: made.stored[name] for name in kept}


@pytest.mark.parametrize(("map_of_second", "groups"), [((0,), [(0, 2), (1, 3)]), ((), None)], ids=["alike", "whole"])
def test_a_parameter_of_two_stages_is_stored_in_the_files_of_both(
    map_of_second: tuple[int, ...], groups: list[tuple[int, ...]] | None
) -> None:
    known = {
        first: Strategy((stage,), 1, (Layout("tied", (2,), (dimension,)),))
        for stage, (first, dimension) in enumerate(((0, (0,)), (2, map_of_second)))
    }
    held = ListedFile(parameters=(Parameter("tied", "Float32", (4,), 16),))
    files = {f"p-model-{rank:07}-{4:07}.safetensors": held for rank in range(4)}
    found = metadata_from_layouts(known, "strategy.ckpt", files)
    if groups is None:
        assert found.metadata is None
        assert found.problem == "several pipeline stages have 'tied' and cut it differently"
        return
    assert found.metadata is not None
    assert found.metadata.parameters["tied"].global_shape == (8,)
    assert [[(one.storage_rank, one.rank_group) for one in shard] for shard in found.metadata.stored["tied"]] == [
        [(rank, group) for rank in group] for group in groups
    ]


def test_metadata_are_not_made_of_layouts_that_leave_something_open() -> None:
    job = Job(stages=2)
    files, known = listed(make_metadata(job)), strategies(job)
    models = [name for name in files if "-model-" in name]
    states = [name for name in files if "-opt-" in name]
    short = {stage: replace(one, layouts=one.layouts[:-1]) for stage, one in known.items()}
    cases: dict[str, tuple[dict[int, Strategy], dict[str, ListedFile]]] = {
        "not one strategy for each": ({0: known[0], 8: known[4]}, files),
        "there is no sound file": (known, {}),
        "do not count the 8 ranks": (known, listed(make_metadata(Job()))),
        "has no layout of": (short, files),
        "opt files of ranks 4 to 7 are all missing": (known, {n: files[n] for n in files if n not in states[4:]}),
        "do not list the same": (known, {**files, models[0]: replace(files[models[0]], parameters=())}),
    }
    for reason, (stages, present) in cases.items():
        found = metadata_from_layouts(stages, "strategy.ckpt", present)
        assert found.metadata is None
        assert reason in found.problem


@pytest.mark.parametrize("tree", TREES)
def test_common_info_is_rebuilt_byte_for_byte(tree: str) -> None:
    known = read_common(DATA / tree / "common.json")
    rebuilt = rebuild_common(200, {100: known}, global_step=200)
    assert rebuilt.common
    assert encode_common(rebuilt.common) == encode_common(make_common(JOBS[tree], 200))
    assert (rebuilt.unknown, rebuilt.problem) == ((), "")
    assert rebuilt.assumed == ("epoch_num", "loss_scale")
    assert dict(rebuilt.sources) == {
        "epoch_num": "iteration 100",
        "step_num": "the name of the directory",
        "global_step": "the opt files",
        "loss_scale": "iteration 100",
        "global_batch_size": "iteration 100",
        "consumed_samples": "null, as in iteration 100",
        "ckpt_status": "null, as in iteration 100",
    }


def common(iteration: int, epoch: int, **more: float | None) -> CommonInfo:
    members: dict[str, float | None] = {"global_step": iteration, "global_batch_size": 16, "loss_scale": 1.0, **more}
    return CommonInfo(epoch_num=epoch, step_num=iteration, members=COMMON_MEMBERS, **members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "iteration", "epoch"),
    [
        ({100: 1, 300: 1}, 200, 1),  # at least 300 steps
        ({100: 1, 300: 3}, 200, 2),  # 100 to 149 steps
        ({100: 1, 300: 3}, 1, 1),
        ({100: 1, 250: 3}, 0, None),
        ({1: 1, 300: 3}, 200, 2),  # 100 to 149 steps
        ({100: 100}, 200, 200),  # one step an epoch
        ({50: 1, 149: 3}, 100, 2),  # 50 to 74 steps
        ({100: 1, 300: 2}, 200, None),  # 150 to 299 steps
        ({100: 2, 50: 7}, 200, None),  # contradict each other
        ({100: 2, 50: 7}, 8, None),
    ],
)
def test_the_epoch_follows_from_the_steps_per_epoch(others: dict[int, int], iteration: int, epoch: int | None) -> None:
    rebuilt = rebuild_common(iteration, {at: common(at, one) for at, one in others.items()})
    assert (rebuilt.common and rebuilt.common.epoch_num) == epoch
    assert "epoch_num" not in rebuilt.assumed
    assert ("epoch_num" in rebuilt.problem) == (epoch is None)


def test_iterations_at_the_ends_of_epochs_are_continued() -> None:
    rebuilt = rebuild_common(200, {50: common(50, 1), 100: common(100, 2), 150: common(150, 3)})
    assert rebuilt.common
    assert rebuilt.common.epoch_num == 4
    assert "epoch_num" in rebuilt.assumed
    assert dict(rebuilt.sources)["epoch_num"] == "50 steps per epoch, as in iterations 50, 100, 150"
    assert rebuild_common(220, {50: common(50, 1), 100: common(100, 2)}).common is None


def test_unproven_members_are_said_to_be() -> None:
    others = {100: common(100, 1, consumed_samples=1600, ckpt_status=0, loss_scale=2.0), 150: common(150, 1)}
    others[150] = replace(others[150], consumed_samples=2400, loss_scale=1.0)
    rebuilt = rebuild_common(200, others)
    assert rebuilt.common
    assert rebuilt.common.consumed_samples == 3200
    assert rebuilt.common.ckpt_status is None
    assert rebuilt.common.loss_scale == 1.0
    assert rebuilt.assumed == ("epoch_num", "loss_scale")
    assert rebuilt.unknown == ("ckpt_status",)
    assert dict(rebuilt.sources)["global_step"] == "the iteration, as in iterations 100, 150"


def test_common_info_is_not_made_up() -> None:
    rebuilt = rebuild_common(200, {}, global_step=200)
    assert rebuilt.common is None
    assert rebuilt.unknown == ("epoch_num", "loss_scale", "global_batch_size", "ckpt_status")
    assert "epoch_num and global_batch_size" in rebuilt.problem
    moved = rebuild_common(200, {100: replace(common(100, 1), step_num=90)})
    assert moved.common is None
    nothing = rebuild_common(200, {100: replace(common(100, 1), epoch_num=None)})
    assert "epoch_num" in nothing.unknown
    sizes = rebuild_common(200, {100: common(100, 1), 300: common(300, 1, global_batch_size=32)})
    assert "global_batch_size" in sizes.problem
    ahead = rebuild_common(200, {100: common(100, 1, global_step=50)})
    assert "global_step" in ahead.problem
    assert rebuild_common(200, {100: replace(common(100, 1), members=MEMBERS)}).common is not None


@pytest.mark.parametrize("lacking", ["", *REQUIRED])
def test_common_info_is_made_of_the_members_that_are_required_and_of_no_less(lacking: str) -> None:
    members = tuple(name for name in REQUIRED if name != lacking)
    rebuilt = rebuild_common(200, {100: replace(common(100, 1), members=members)})
    assert (rebuilt.common is None) == bool(lacking)


def test_samples_are_counted_where_every_other_iteration_counts_them_by_its_batches() -> None:
    def samples(*counts: int | None) -> object:
        others = {100 * at: common(100 * at, 1, consumed_samples=count) for at, count in enumerate(counts, 1)}
        rebuilt = rebuild_common(50, others, global_step=50)
        assert rebuilt.common
        return rebuilt.common.consumed_samples, dict(rebuilt.sources).get("consumed_samples")

    by_size = "the iteration and global_batch_size, as in iteration"
    assert samples(1600) == (800, f"{by_size} 100")
    assert samples(1600, 3200) == (800, f"{by_size}s 100, 200")
    assert samples(1600, None) == (800, f"{by_size} 100")
    assert samples(1600, 3100) == (None, None)
    assert samples(None, None) == (None, "null, as in iterations 100, 200")


def test_metadata_of_one_kind_of_files_list_its_parameters_in_their_order() -> None:
    metadata = make_metadata(Job(remove_redundancy=True))
    assert metadata.order
    model = only_kinds(metadata, frozenset({"model"}))
    states = only_kinds(metadata, frozenset({"opt"}))
    assert model.parameters.keys().isdisjoint(states.parameters)
    assert {**model.parameters, **states.parameters} == metadata.parameters
    for part in (model, states):
        assert part.order == tuple(shard for shard in metadata.order if shard[0] in part.parameters)
        assert part.stored.keys() == part.parameters.keys()
    assert only_kinds(metadata, frozenset({"model", "opt"})) is metadata


@pytest.mark.parametrize(
    ("scales", "iteration", "scale", "source"),
    [
        ({100: 2.0, 300: 2.0}, 200, 2.0, "iterations 100, 300"),
        ({100: 2.0, 300: 4.0}, 200, 2.0, "iteration 100"),
        ({100: 2.0, 300: 4.0}, 400, 4.0, "iteration 300"),
        ({100: 2.0, 300: 4.0}, 50, 2.0, "iteration 100"),
        ({100: 2.0, 300: None}, 400, 2.0, "iteration 100"),
        ({100: None, 300: None}, 200, None, "null, as in iterations 100, 300"),
    ],
)
def test_the_loss_scale_is_that_of_the_iteration_before(
    scales: dict[int, float | None], iteration: int, scale: float | None, source: str
) -> None:
    others = {at: common(at, 1, loss_scale=known) for at, known in scales.items()}
    rebuilt = rebuild_common(iteration, others, global_step=iteration)
    assert dict(rebuilt.sources)["loss_scale"] == source
    assert ("loss_scale" in rebuilt.assumed) == (scale is not None)
    assert "global_batch_size" not in rebuilt.assumed
    if rebuilt.common:
        assert rebuilt.common.loss_scale == scale


@pytest.mark.parametrize(("wrong", "more"), [(1, ""), (2, " (1 more)")])
def test_the_first_contradiction_of_a_file_is_named_and_how_many_there_are(wrong: int, more: str) -> None:
    files = listed(make_metadata(Job()))
    extra = Parameter("extra", "Float32", (4,), 16)
    names = sorted(files)[:wrong]
    changed = {name: replace(files[name], parameters=(*files[name].parameters, extra)) for name in names}
    problem = rebuild_metadata(make_metadata(Job()), 300, {**files, **changed}).problem
    assert problem.startswith(f"the files are not as in iteration 300: {names[0]}: it has 'extra'")
    assert problem.endswith(f"does not list in it{more}")


@pytest.mark.parametrize(
    ("count", "named"), [(1, "iteration 100"), (4, "iterations 100, 200, 300, 400"), (5, "400 ...")]
)
def test_four_iterations_are_named(count: int, named: str) -> None:
    others = {100 * number: common(100 * number, 1) for number in range(1, count + 1)}
    source = dict(rebuild_common(50, others).sources)["global_step"]
    assert source.endswith(f" {named}")
