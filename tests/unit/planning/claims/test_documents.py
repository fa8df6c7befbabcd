"""The claims of metadata.json in planning's terms, and against the files, over trees that MindFormers wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ms_recover.model.shard_metadata import NEVER_SAVED, CommonInfo
from ms_recover.model.slices import Parameter
from ms_recover.planning.claims.compare_documents import (
    GLOBAL_STEP,
    ListedFile,
    compare_common,
    compare_files,
    compare_tracker,
    find_unlisted,
)
from ms_recover.planning.claims.layouts import cells_of, region_of
from ms_recover.planning.claims.metadata import expected_files, find_document_stages
from tests.support.iterations import Job, make_metadata, rank_regions
from tests.support.mindformers import TREES, listed_files, metadata_text, parse, truth

REDUNDANT = {"dp2_mp4": False, "dp4_mp2_opt2": False, "dp2_mp2_pp2": False}


@pytest.mark.parametrize("tree", TREES)
def test_each_rank_holds_the_region_that_its_file_has(tree: str) -> None:
    metadata, known = parse(metadata_text(tree)), truth(tree)
    checked = 0
    for stage in find_document_stages(metadata):
        for layout in stage.strategy.layouts:
            one = metadata.parameters[layout.parameter]
            for rank, cell in zip(stage.ranks, cells_of(layout, stage.ranks), strict=True):
                region = region_of(layout, cell, one.local_shape)
                assert region == rank_regions(one, rank)
                if layout.parameter.startswith(NEVER_SAVED):
                    continue
                offset = ",".join(str(start) for start, _ in region)
                shard = f"{layout.parameter}@{offset}:{','.join(map(str, one.local_shape))}"
                assert rank in known["shards"][shard]["ranks_in_memory"]
                assert any(shard in file["shards"] and file["rank"] == rank for file in known["files"].values())
                checked += 1
    expected = sum(len(file["shards"]) for file in known["files"].values()) - 8  # without the global_step of each rank
    assert checked == expected


@pytest.mark.parametrize("tree", TREES)
def test_files_are_expected_to_have_exactly_the_parameters_that_they_have(tree: str) -> None:
    metadata, files = parse(metadata_text(tree)), listed_files(tree)
    unlisted = find_unlisted(metadata, files)
    assert unlisted == {"model": (), "opt": (GLOBAL_STEP,)}
    expected = expected_files(metadata)
    assert expected.keys() == files.keys()
    for name, one in expected.items():
        assert {*one.parameters, *unlisted[one.name.kind]} == set(files[name].parameters)
        assert one.rank == truth(tree)["files"][name]["rank"]
    assert compare_files(metadata, files) == ()


def test_files_of_one_stage_share_their_parameter_lists() -> None:
    expected = expected_files(parse(metadata_text("dp2_mp2_pp2")))
    assert len({id(one.parameters) for one in expected.values()}) == 4


def test_every_contradiction_with_a_file_is_found() -> None:
    metadata = parse(metadata_text("dp2_mp2_pp2"))
    files = dict(listed_files("dp2_mp2_pp2"))
    names = sorted(files)
    gone, torn, less, more, other, without, foreign = (
        names[0],
        names[1],
        names[2],
        names[3],
        names[4],
        names[12],
        names[13],
    )
    del files[gone]
    files[torn] = ListedFile(problem="it is cut")
    files[less] = replace(files[less], parameters=files[less].parameters[1:])
    files[more] = replace(files[more], parameters=(*files[more].parameters, Parameter("x", "Float32", (1,), 4)))
    first, *rest = files[other].parameters
    files[other] = replace(files[other], parameters=(replace(first, dtype="BFloat16"), *rest))
    step = [one for one in files[without].parameters if one.name != "global_step"]
    files[without] = replace(files[without], parameters=tuple(step))
    files["llama_tiny-model-0000003-0000016.safetensors"] = files.pop(foreign)
    files["other-model-0000003-0000008.safetensors"] = ListedFile()
    files["notes.txt"] = ListedFile()
    found = {(finding.kind, finding.file) for finding in compare_files(metadata, files)}
    assert found == {
        ("file missing", gone),
        ("file missing", foreign),
        ("file damaged", torn),
        ("parameter missing", less),
        ("parameter not named", more),
        ("parameter differs", other),
        ("parameter missing", without),
        ("other count", "llama_tiny-model-0000003-0000016.safetensors"),
        ("file not named", "other-model-0000003-0000008.safetensors"),
    }


@pytest.mark.parametrize(("count", "words"), [(4, "'a', 'b', 'c', 'd'"), (5, "'a', 'b', 'c', 'd' and 1 more")])
def test_a_few_parameters_are_named_and_the_others_counted(count: int, words: str) -> None:
    metadata = parse(metadata_text("dp2_mp2_pp2"))
    files = dict(listed_files("dp2_mp2_pp2"))
    name = min(files)
    more = tuple(Parameter(letter, "Float32", (1,), 4) for letter in "abcde"[:count])
    files[name] = replace(files[name], parameters=(*files[name].parameters, *more))
    (found,) = compare_files(metadata, files)
    assert (found.file, found.rank) == (name, 0)
    assert found.words == f"it has {words}, which metadata.json does not list in it"


def test_global_step_is_expected_where_no_opt_file_is_left() -> None:
    metadata = parse(metadata_text("dp2_mp4"))
    models = {name: file for name, file in listed_files("dp2_mp4").items() if "-model-" in name}
    assert find_unlisted(metadata, models)["opt"] == (GLOBAL_STEP,)


def test_progress_of_another_iteration_is_found() -> None:
    assert compare_common(CommonInfo(step_num=100), 100) == compare_common(CommonInfo(), 100) == ()
    assert compare_common(CommonInfo(global_step=100), 100, 100) == compare_common(CommonInfo(), 100, 100) == ()
    (finding,) = compare_common(CommonInfo(step_num=100, global_step=90), 100, 100)
    assert finding.words == "its global_step is 90, and that of the opt files is 100"
    (finding,) = compare_common(CommonInfo(step_num=90), 100)
    assert finding.kind == "other iteration"
    assert finding.words == "its step_num is 90, and its directory is of iteration 100"


@pytest.mark.parametrize(
    ("tracked", "complete", "words"),
    [
        (200, {100: True, 200: True}, ""),
        (None, {}, ""),
        (None, {100: False}, ""),
        (None, {100: True}, "it names no iteration, and the newest complete one is 100"),
        (300, {100: True}, "it names iteration 300, which is not there; the newest complete one is 100"),
        (300, {100: False}, "it names iteration 300, which is not there"),
        (
            200,
            {100: True, 200: False},
            "it names iteration 200, which is not complete; the newest complete one is 100",
        ),
        (200, {200: False}, "it names iteration 200, which is not complete"),
        (100, {100: True, 200: True}, "it names iteration 100, and iteration 200 is complete"),
        (100, {100: True, 200: False}, ""),
    ],
)
def test_the_tracker_is_compared_with_the_iterations(
    tracked: int | None, complete: dict[int, bool], words: str
) -> None:
    assert compare_tracker(tracked, complete) == words


def listing(*names: str, problem: str = "") -> ListedFile:
    return ListedFile(parameters=tuple(Parameter(name, "Int32", (1,), 4) for name in names), problem=problem)


@pytest.mark.parametrize(
    ("files", "unlisted"),
    [
        ([listing("x"), listing("x"), listing("x")], ["x"]),
        ([listing("x"), listing("x"), listing()], ["x"]),
        ([listing("x"), listing()], []),
        ([listing("x"), listing("y")], []),
        ([listing("y", "x"), listing("x", "y")], ["x", "y"]),
        ([listing(), listing("x", problem="cut"), listing("x", problem="cut")], []),
        ([listing("x"), listing(problem="cut"), listing(problem="cut")], ["x"]),
    ],
)
def test_what_most_sound_files_have_beyond_metadata_is_theirs(files: list[ListedFile], unlisted: list[str]) -> None:
    """Each file is one of its kind; the others are missing. Parameters that metadata lists are none of these."""
    metadata = parse(metadata_text("dp2_mp4"))
    for kind in ("model", "opt"):
        names = sorted(name for name, file in expected_files(metadata).items() if file.name.kind == kind)
        listed = next(iter(expected_files(metadata)[names[0]].parameters))
        present = {
            name: replace(file, parameters=(*file.parameters, listed)) for name, file in zip(names, files, strict=False)
        }
        found = find_unlisted(metadata, present)
        assert [parameter.name for parameter in found[kind]] == unlisted
        assert found["opt" if kind == "model" else "model"] == (() if kind == "opt" else (GLOBAL_STEP,))


@pytest.mark.parametrize(
    ("job", "counts"),
    [(Job(), True), (Job(remove_redundancy=True), False), (Job(optimizer=False), False)],
    ids=["whole", "without redundancy", "without the optimizer"],
)
def test_without_a_sound_optimizer_file_a_save_with_redundancy_has_the_counter_of_steps(job: Job, counts: bool) -> None:
    metadata = make_metadata(job)
    for files in ({}, {name: ListedFile(problem="cut") for name in metadata.files}):
        assert find_unlisted(metadata, files) == {"model": (), "opt": (GLOBAL_STEP,) if counts else ()}
