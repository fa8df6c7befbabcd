"""The parts of a tree of iterations, and where an iteration without metadata has its claims from."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.model.steps import Step
from ms_recover.planning.tree.parts import split_parts
from tests.support.iterations import Job, write_job

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
