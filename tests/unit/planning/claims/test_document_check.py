"""Documents of iterations beside their files: what is wrong, and what a plan writes again."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ms_recover import api
from ms_recover.model.iterations import Document
from ms_recover.model.steps import Step
from ms_recover.planning.plan.documents import check_documents, listed_files, metadata_problem, plan_documents
from tests.support.iterations import Job, write_job

OLD, NEW = Step.iteration(100), Step.iteration(200)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tree of two iterations, the tracker naming the newer one, all files of the older written before."""
    root = write_job(tmp_path_factory.mktemp("documents") / "tree", Job(layers=1))
    found = api.scan(root)
    return replace(found, slices=tuple(replace(file, mtime_ns=file.step.step) for file in found.slices))


def with_iteration(inventory, step, **changes):
    """Return the inventory with documents of one iteration replaced."""
    iterations = (replace(one, **changes) if one.step == step else one for one in inventory.iterations)
    return replace(inventory, iterations=tuple(iterations))


def gone(document):
    return Document(path=document.path)


def iteration_of(inventory, step):
    return next(one for one in inventory.iterations if one.step == step)


def with_files(inventory, change, step=NEW):
    """Return the inventory with slices of a step changed; those for which there is None are gone."""
    files = (change(file) if file.step == step else file for file in inventory.slices)
    return replace(inventory, slices=tuple(file for file in files if file is not None))


def problem(inventory, step=NEW):
    return metadata_problem(iteration_of(inventory, step), listed_files(inventory.slices, step))


def checked(inventory, step=None, wrong=()):
    checks = [SimpleNamespace(step=one, status="damaged") for one in wrong]
    return [(note.path, note.reason) for note in check_documents(inventory, step, [SimpleNamespace(checks=checks)])]


def planned(inventory, step=NEW, *, chosen=False):
    writes, warnings = plan_documents(inventory, step, chosen=chosen)
    return [write.target.rpartition("/")[2] for write in writes], warnings


def test_nothing_is_wrong_with_a_tree_as_training_left_it(whole):
    assert checked(whole) == []
    assert planned(whole) == ([], [])


def test_each_document_that_is_missing_is_named_and_of_one_step_only_its_own(whole):
    both = iteration_of(whole, NEW)
    torn = with_iteration(whole, NEW, metadata=gone(both.metadata), common=replace(both.common, problem="cut"))
    assert [path.rpartition("/")[2] for path, _ in checked(torn)] == ["metadata.json", "common.json"]
    assert len(checked(torn, NEW)) == 2
    assert checked(torn, OLD) == []


def test_the_tracker_is_judged_with_the_whole_tree_and_by_what_was_verified(whole):
    assert checked(whole, wrong=[NEW])[0][1].startswith("it names iteration 200, which is not complete")
    assert checked(whole, NEW, wrong=[NEW]) == []
    assert checked(whole, wrong=[OLD]) == []
    torn = replace(whole, tracker=replace(whole.tracker, value=None, problem="no number"))
    assert checked(torn) == [(whole.tracker.path, "no number")]


def test_a_single_file_needs_no_metadata_and_several_do(whole):
    without = with_iteration(whole, NEW, metadata=gone(iteration_of(whole, NEW).metadata))
    assert problem(without).startswith("is missing: MindFormers cannot load several ranks")
    assert problem(with_files(without, lambda file: None)) is None
    (first, *_) = listed_files(whole.slices, NEW)
    (name,) = {first.replace("-0000004", "-0000001")}
    only = {name: listed_files(whole.slices, NEW)[first]}
    assert metadata_problem(iteration_of(without, NEW), only) is None


def test_files_that_metadata_do_not_name_are_counted(whole):
    one = replace(whole, slices=tuple(file for file in whole.slices if file.kind == "model" and file.rank < 1))
    files = {"llama_tiny-model-0000000-0000008.safetensors": listed_files(one.slices, NEW).popitem()[1]}
    again = iteration_of(whole, NEW)
    assert metadata_problem(again, files).endswith("it is of another save")
    more = {**files, "llama_tiny-model-0000001-0000008.safetensors": files.popitem()[1]}
    assert metadata_problem(again, more).endswith("; and 1 more files")


@pytest.mark.parametrize(("odd", "wrong"), [(1, False), (2, False), (3, True), (4, True)])
def test_metadata_are_wrong_where_more_than_half_of_the_files_of_a_kind_contradict_them(odd, wrong, whole):
    def change(file):
        struck = file.kind == "model" and file.rank < odd
        return replace(file, parameters=file.parameters[1:]) if struck else file

    found = problem(with_files(whole, change))
    assert (found is not None) == wrong
    assert not wrong or found.startswith(f"{odd} of 4 files contradict it: ")


def test_damaged_files_neither_contradict_metadata_nor_speak_for_them(whole):
    def change(file):
        if file.kind == "model" and file.rank < 2:
            return replace(file, parameters=file.parameters[1:])
        return replace(file, problem="cut") if file.kind == "model" and file.rank == 2 else file

    assert problem(with_files(whole, change)).startswith("2 of 3 files contradict it")


def test_metadata_are_written_again_from_the_nearest_iteration_and_not_from_themselves(whole):
    without = with_iteration(whole, NEW, metadata=gone(iteration_of(whole, NEW).metadata))
    (write, *_), warnings = plan_documents(without, NEW, chosen=False)
    assert (write.value, warnings) == (iteration_of(whole, NEW).metadata.value, [])
    nowhere = with_iteration(without, OLD, metadata=gone(iteration_of(whole, OLD).metadata))
    assert planned(nowhere) == (
        [],
        [f"{write.target}: {problem(nowhere)}; it cannot be written again: no other iteration has one"],
    )


def test_progress_is_written_again_from_another_iteration_and_said_where_there_is_none(whole):
    without = with_iteration(whole, NEW, common=gone(iteration_of(whole, NEW).common))
    assert planned(without) == (["common.json"], [])
    nowhere = with_iteration(without, OLD, common=gone(iteration_of(whole, OLD).common))
    written, (warning,) = planned(nowhere)
    assert written == []
    assert "common.json: is missing: MindFormers does not resume" in warning
    assert "cannot be written again" in warning


def test_the_tracker_follows_the_planned_step_unless_it_names_a_run_that_was_written_later(whole):
    tracker = ["latest_checkpointed_iteration.txt"]
    assert planned(whole, OLD) == (tracker, [])
    older = replace(whole, tracker=replace(whole.tracker, value=100))
    assert planned(older) == (tracker, [])
    again = replace(older, slices=tuple(replace(file, mtime_ns=-file.step.step) for file in older.slices))
    written, (warning,) = planned(again)
    assert written == []
    assert "names iteration 100, whose files were all written after those of iteration 200" in warning
    assert planned(again, chosen=True) == (tracker, [])
    together = replace(older, slices=tuple(replace(file, mtime_ns=5) for file in older.slices))
    assert planned(together) == (tracker, [])
    assert planned(with_files(again, lambda file: None, OLD)) == (tracker, [])


@pytest.mark.parametrize(
    ("tracker", "reason"),
    [({"value": 100}, "names iteration 100"), ({"value": None}, "is missing"), ({"value": None, "problem": "x"}, "x")],
)
def test_a_tracker_is_written_with_what_was_wrong_with_it(tracker, reason, whole):
    inventory = replace(whole, tracker=replace(whole.tracker, **tracker))
    (write,), _ = plan_documents(inventory, NEW, chosen=False)
    assert (write.reason, write.value, write.sources) == (reason, 200, ("the iteration from this plan",))
    assert plan_documents(replace(whole, tracker=None), NEW, chosen=False) == ((), [])
