"""The parts of a tree of iterations, and where an iteration without metadata has its claims from."""

from collections import defaultdict
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.file_names import weights_name
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory, OrphanManifest, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.planning.tree.parts import agrees, required_parts, split_parts
from tests.support.inventories import group_file, slice_file
from tests.support.iterations import Job, make_common, make_metadata, write_job

OLD, NEW = Step.iteration(100), Step.iteration(200)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return api.scan(write_job(tmp_path_factory.mktemp("split") / "tree", Job(layers=1)))


def without_metadata(inventory, *steps, change=lambda file: [file]):
    """Return the same without the metadata of some iterations, whose files are changed."""
    iterations = [
        replace(one, metadata=replace(one.metadata, value=None)) if one.step in steps else one
        for one in inventory.iterations
    ]
    slices = [now for file in inventory.slices for now in (change(file) if file.step in steps else [file])]
    return replace(inventory, slices=tuple(slices), iterations=tuple(iterations))


def of_another_count(file):
    return [replace(file, place=replace(file.place, parts=(file.place.parts[0], "-0000099.safetensors")))]


def of_other_lists(file):
    return [replace(file, parameters=file.parameters[:1])]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda file: [file], [{OLD, NEW}, {OLD, NEW}]),
        (lambda _: [], [{OLD, NEW}, {OLD, NEW}]),
        (of_another_count, [{NEW}, {NEW}, {OLD}, {OLD}]),
        (of_other_lists, [{NEW}, {NEW}, {OLD}, {OLD}]),
    ],
    ids=["the same files", "no file", "another count", "other lists"],
)
def test_an_iteration_without_metadata_is_of_the_part_of_another_one_with_the_same_files(change, parts, saved):
    found = split_parts(without_metadata(saved, NEW, change=change))
    assert [set(part.part.steps) for part in found] == parts


def test_without_any_metadata_the_names_of_files_state_the_world(saved):
    found = split_parts(without_metadata(saved, OLD, NEW))
    assert [(part.part.steps, part.part.source) for part in found] == [((NEW, OLD), "the names of the files")] * 2
    assert {len(part.ranks) for part in found} == {len(saved.ranks)}


def test_a_file_that_metadata_does_not_name_changes_no_claim(saved):
    beyond = replace(saved.slices[0], rank=99)
    claims = [
        [part.part.expected for part in split_parts(replace(saved, slices=slices))]
        for slices in (saved.slices, (*saved.slices, beyond))
    ]
    assert claims[0] == claims[1]


# --- what metadata states ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        Job(layers=1),
        Job(layers=1, data_parallel=1, model_parallel=4, adapter=False),
        Job(layers=1, data_parallel=4, model_parallel=1, adapter=False, prefix=None),
        Job(layers=2, stages=2, adapter=False),
        Job(layers=1, data_parallel=4, optimizer_shards=2),
        Job(layers=1, data_parallel=4, optimizer_shards=2, adapter=False, optimizer=False),
        Job(layers=2, data_parallel=2, model_parallel=1, stages=2, remove_redundancy=True),
    ],
    ids=lambda job: f"{job.data_parallel} {job.model_parallel} {job.stages} {job.optimizer_shards}",
)
def test_the_files_of_a_part_lie_where_it_says_and_its_groups_hold_the_same_bytes(job, tmp_path):
    inventory = api.scan(write_job(tmp_path / "tree", job, [100]))
    parts = split_parts(inventory)
    assert [part.part.kind for part in parts] == ["model", "opt"][: 1 + job.optimizer]
    for part in parts:
        place = part.part.places[OLD]
        assert [place.of(file.rank) for file in part.slices] == [file.path for file in part.slices]
        assert all(part.part.expected[OLD][file.rank] == file.parameters for file in part.slices)
        same = defaultdict(list)
        for file in part.slices:
            same[(tmp_path / "tree" / file.path).read_bytes()].append(file.rank)
        groups = [file.info.restore_ranks for file in part.group_files]
        if job.remove_redundancy:
            assert all(ranks in map(tuple, same.values()) for ranks in groups if len(ranks) > 1)
        else:
            assert sorted(groups) == sorted(map(tuple, same.values()))


def test_strategy_files_that_the_operator_names_go_before_what_metadata_states(saved):
    given = StrategyFile(0, "/given/strategy.ckpt", Strategy((0,), 0, ()))
    found = StrategyFile(0, "strategy.ckpt", Strategy((0,), 0, ()))
    (part, _) = split_parts(replace(saved, strategy_files=(given, found)))
    assert part.strategy_files == (given,)
    (part, _) = split_parts(replace(saved, strategy_files=(found,)))
    assert {file.path for file in part.strategy_files} == {part.part.source.split()[3]}
    (part, _) = split_parts(replace(without_metadata(saved, OLD, NEW), strategy_files=(found,)))
    assert part.strategy_files == (found,)


def renumbered(metadata, numbers):
    """Return metadata whose files have other numbers than those of their ranks."""

    def moved(shard):
        name = weights_name(shard.file_name)
        return replace(shard, file_name=name._replace(file_index=numbers[name.file_index]).name)

    stored = {name: tuple(tuple(map(moved, items)) for items in chunks) for name, chunks in metadata.stored.items()}
    return replace(metadata, stored=stored)


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (1, 0, 2, 3), (1, 2, 3, 0)])
def test_the_place_of_a_file_has_the_number_that_metadata_gives_it(numbers):
    job = Job(layers=1, adapter=False)
    document = Document("metadata.json", FileState(9, 5), renumbered(make_metadata(job), numbers))
    common = Document("common.json", FileState(9, 5), make_common(job, 100))
    iteration = Iteration(step=OLD, directory="iteration_00000100", metadata=document, common=common)
    for part in split_parts(Inventory("/tree", iterations=(iteration,))):
        names = [part.part.places[OLD].of(rank) for rank in range(4)]
        assert names == [
            f"iteration_00000100/llama_tiny-{part.part.kind}-{number:07d}-0000004.safetensors" for number in numbers
        ]


@pytest.mark.parametrize("stated", [True, False], ids=["by metadata", "by the names of files"])
def test_the_place_of_a_file_that_is_gone_is_known(stated, saved):
    left = [file for file in saved.slices if file.step != NEW or (not stated and file.rank == 0)]
    whole = replace(saved, slices=tuple(left))
    parts = split_parts(whole if stated else without_metadata(whole, OLD, NEW))
    places = {(part.part.kind, step): part.part.places[step] for part in parts for step in part.part.steps}
    assert all(places[file.kind, file.step].of(file.rank) == file.path for file in saved.slices)


def test_where_nothing_is_left_of_an_iteration_nothing_says_where_its_files_lay(saved):
    bare = without_metadata(saved, OLD, NEW, change=lambda file: [file] if file.step == OLD else [])
    assert [set(part.part.places) - {OLD} for part in split_parts(bare)] == [set()] * len(split_parts(bare))


def test_lists_that_the_operator_names_stay_and_those_in_the_tree_do_not_count(saved):
    lists = (group_file(0, [0, 1], outside=True), group_file(2, [2, 3]))
    for whole in (saved, without_metadata(saved, OLD, NEW)):
        (part, _) = split_parts(replace(whole, group_files=lists))
        assert [file for file in part.group_files if file.rank is not None] == [lists[0]]


def test_manifests_without_files_are_of_the_part_of_their_kind_and_iteration(saved):
    place = saved.slices[0].place
    orphans = [
        OrphanManifest(rank=0, step=step, place=place, prefix="", kind=kind)
        for step in (OLD, NEW, Step.iteration(7))
        for kind in ("model", "opt")
    ]
    model, opt = split_parts(replace(saved, orphans=tuple(orphans)))
    assert model.orphans == (orphans[0], orphans[2])
    assert opt.orphans == (orphans[1], orphans[3])


LISTED = ParameterList((Parameter("w", "Float32", (4,), 16), Parameter("b", "Float32", (1,), 4)))


def one_file(rank, parameters, **changes):
    return replace(slice_file(rank), parameters=parameters, **changes)


@pytest.mark.parametrize(
    ("files", "agreed"),
    [
        ([], True),
        ([one_file(0, tuple(LISTED))], True),
        ([one_file(0, tuple(LISTED)[::-1])], True),
        ([one_file(0, tuple(LISTED)[:1])], False),
        ([one_file(0, (*LISTED, LISTED[0]))], False),
        ([one_file(7, tuple(LISTED))], False),
        ([one_file(0, tuple(LISTED)), one_file(1, ())], True),
        ([one_file(0, tuple(LISTED)), one_file(1, ()), one_file(2, ())], False),
        ([one_file(0, tuple(LISTED)), one_file(1, ()), one_file(2, (), problem="cut")], True),
        ([one_file(0, tuple(LISTED)), one_file(1, ()), one_file(2, (), encryption="AES-GCM")], True),
        ([one_file(1, ()), one_file(0, tuple(LISTED), problem="cut")], False),
    ],
)
def test_metadata_counts_where_at_least_half_of_the_files_that_can_be_read_agree(files, agreed):
    assert agrees(dict.fromkeys(range(3), LISTED), files) == agreed


EXTRA = Parameter("global_step", "Int32", (), 4)


@pytest.mark.parametrize(
    ("ranks", "parameter", "known"),
    [
        (range(8), EXTRA, True),
        (range(5), EXTRA, True),
        (range(4), EXTRA, False),
        (range(8), replace(EXTRA, shape=(1, 1)), True),
        (range(8), replace(EXTRA, shape=(2,), nbytes=8), None),
    ],
)
def test_a_scalar_that_most_files_have_and_metadata_never_names_is_expected_of_all(ranks, parameter, known, tmp_path):
    whole = api.scan(write_job(tmp_path / "tree", Job(layers=1, data_parallel=4, adapter=False), [100]))
    slices = [
        replace(file, parameters=ParameterList((*bare, parameter) if file.rank in ranks else bare))
        for file in whole.slices
        for bare in [tuple(one for one in file.parameters if one.name != EXTRA.name)]
    ]
    (part, *_) = split_parts(replace(whole, slices=tuple(slices)))
    if known is None:  # the files have another parameter that is no scalar: metadata is not that of the files
        assert part.part.expected == {}
        return
    expected = [parameter.name in part.part.expected[OLD][rank].index for rank in range(8)]
    assert expected == [known] * 8
    laid_out = [layout for file in part.strategy_files for layout in file.strategy.layouts]
    assert [layout.device_matrix for layout in laid_out if layout.parameter == parameter.name] == [(8,)] * known


# --- the parts that an iteration must have ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    """Return a tree whose newer iteration has model files alone, as far as its metadata is written."""
    root = tmp_path_factory.mktemp("partly") / "tree"
    write_job(root, Job(layers=1), [100])
    write_job(root, Job(layers=1, optimizer=False, remove_redundancy=True), [200])
    whole = api.scan(root)
    times = {"metadata": 5, "common": 6}
    iterations = [
        replace(
            one,
            **{
                name: replace(getattr(one, name), state=replace(getattr(one, name).state, mtime_ns=at))
                for name, at in times.items()
            },
        )
        for one in whole.iterations
    ]
    tracker = replace(whole.tracker, state=replace(whole.tracker.state, mtime_ns=7))
    slices = [replace(file, mtime_ns=4) for file in whole.slices]
    return replace(whole, iterations=tuple(iterations), tracker=tracker, slices=tuple(slices))


def changed(inventory, *, removed=True, tracker=(), common=(), metadata=(), latest=4):
    """Return the same with other documents of the newer iteration."""
    stated = {} if removed else {"value": make_metadata(Job(layers=1, optimizer=False))}
    iterations = [
        replace(
            one,
            common=with_time(one.common, dict(common)),
            metadata=with_time(one.metadata, stated | dict(metadata)),
        )
        if one.step == NEW
        else one
        for one in inventory.iterations
    ]
    slices = [
        replace(file, mtime_ns=latest) if file.step == NEW and not file.rank else file for file in inventory.slices
    ]
    written = None if tracker is None else with_time(inventory.tracker, dict(tracker))
    return replace(inventory, iterations=tuple(iterations), slices=tuple(slices), tracker=written)


def with_time(document, changes):
    at = changes.pop("at", None)
    document = replace(document, **changes)
    return document if at is None else replace(document, state=replace(document.state, mtime_ns=at))


ALONE, BOTH = ("model",), ("model", "opt")


@pytest.mark.parametrize(
    ("changes", "required"),
    [
        ({}, ALONE),
        ({"removed": False, "tracker": None}, ALONE),
        ({"tracker": None}, BOTH),
        ({"tracker": {"value": None}}, BOTH),
        ({"tracker": {"state": None}}, BOTH),
        ({"tracker": {"value": 199}}, BOTH),
        ({"tracker": {"value": 300}}, ALONE),
        ({"common": {"value": None}}, BOTH),
        ({"tracker": {"at": 6}}, ALONE),
        ({"tracker": {"at": 5}}, BOTH),
        ({"metadata": {"at": 8}}, BOTH),
        ({"common": {"at": 8}}, BOTH),
        ({"latest": 7}, ALONE),
        ({"latest": 8}, BOTH),
        ({"common": {"state": None}}, ALONE),
        ({"metadata": {"value": None}}, BOTH),
    ],
)
def test_an_iteration_must_have_the_parts_that_its_metadata_names_where_the_save_went_on(changes, required, partly):
    """Where redundancy was removed, metadata is written before the optimizer is saved."""
    found = required_parts(changed(partly, **changes))
    assert found == {OLD: BOTH, NEW: required}


def test_a_part_that_is_not_required_has_no_inventory(partly):
    assert [(part.part.kind, part.part.steps) for part in split_parts(changed(partly))] == [
        ("model", (NEW,)),
        ("model", (OLD,)),
        ("opt", (OLD,)),
    ]
    lacking = split_parts(changed(partly, tracker=None))
    assert [part.part.kind for part in lacking for step in part.part.steps if step == NEW] == ["model", "opt"]
