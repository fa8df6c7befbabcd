"""Documents of MindFormers that a plan writes again, and why one cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ms_recover.file_names import weights_name
from ms_recover.model.inventory import Inventory, RankPath, SliceFile, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.steps import Step
from ms_recover.planning.plan.documents import check_documents, metadata_problem, plan_documents
from ms_recover.planning.plan.documents import listed_files as files_of_step
from tests.support.iterations import Job, listed, make_common, make_metadata, strategies

JOB = Job(optimizer=False)
METADATA = make_metadata(JOB)
FILES = listed(METADATA)


def iteration(
    number: int, metadata: ShardMetadata | None = METADATA, common: CommonInfo | None = None, problem: str | None = None
) -> Iteration:
    folder = f"iteration_{number:08}"
    return Iteration(
        step=Step.iteration(number),
        directory=folder,
        metadata=Document(path=f"{folder}/metadata.json", value=metadata, problem=problem),
        common=Document(path=f"{folder}/common.json", value=common or make_common(JOB, number)),
    )


def slices(number: int, mtime: int = 1) -> list[SliceFile]:
    found = []
    for name, file in FILES.items():
        read = weights_name(name)
        assert read is not None
        place = RankPath((f"iteration_{number:08}/{name}",))
        found.append(
            SliceFile(
                read.file_index,
                Step.iteration(number),
                place,
                "llama_tiny",
                100,
                mtime,
                file.parameters,
                None,
                kind=read.kind,
            )
        )
    return found


def tree(*iterations: Iteration, mtimes: dict[int, int] | None = None, **more: object) -> Inventory:
    files = [one for it in iterations for one in slices(it.step.step, (mtimes or {}).get(it.step.step, 1))]
    return replace(Inventory("/tree", slices=tuple(files), iterations=tuple(iterations)), **more)  # type: ignore[arg-type]


def planned(inventory: Inventory, number: int = 100, *, chosen: bool = False) -> tuple[list[str], list[str]]:
    writes, warnings = plan_documents(inventory, Step.iteration(number), chosen=chosen)
    return [write.target for write in writes], warnings


def strategy_files(job: Job = JOB) -> tuple[StrategyFile, ...]:
    return tuple(
        StrategyFile(first, f"strategy_{first}.ckpt", strategy, "d") for first, strategy in strategies(job).items()
    )


def test_documents_that_agree_with_the_files_are_not_written() -> None:
    assert planned(tree(iteration(100), iteration(200))) == ([], [])
    assert check_documents(tree(iteration(100)), None, ()) == ()


def test_metadata_that_are_missing_are_those_of_another_iteration() -> None:
    (write,), warnings = plan_documents(tree(iteration(100, None), iteration(200)), Step.iteration(100), chosen=False)
    assert (write.target, warnings) == ("iteration_00000100/metadata.json", [])
    assert write.reason == "is missing: MindFormers cannot load several ranks without it"
    assert isinstance(write.value, ShardMetadata)
    assert write.value.parameters == METADATA.parameters


def test_metadata_that_no_other_iteration_has_are_those_of_strategy_files() -> None:
    lost = tree(iteration(100, None))
    targets, warnings = planned(lost)
    assert targets == []
    assert [text.partition("; ")[2] for text in warnings] == ["it cannot be written again: no other iteration has one"]
    assert planned(replace(lost, strategy_files=strategy_files())) == (["iteration_00000100/metadata.json"], [])


def test_strategy_files_of_one_stage_that_differ_make_no_metadata() -> None:
    (first,) = strategy_files()
    odd = replace(first, rank=1, strategy=replace(first.strategy, layouts=first.strategy.layouts[1:]))
    targets, (warning,) = planned(tree(iteration(100, None), strategy_files=(first, odd)))
    assert targets == []
    assert warning.endswith("no other iteration has one")


def test_why_neither_an_iteration_nor_strategy_files_make_metadata() -> None:
    other = replace(make_metadata(replace(JOB, data_parallel=4)))
    lost = tree(
        iteration(100, None), iteration(200, other), strategy_files=strategy_files(Job(stages=2, optimizer=False))
    )
    targets, (warning,) = planned(lost)
    assert targets == []
    assert "; the names of the files do not count" in warning


@pytest.mark.parametrize("problem", [None, "is not JSON"])
def test_metadata_that_cannot_be_read_are_a_problem(problem: str | None) -> None:
    one = iteration(100, None if problem else METADATA, problem=problem)
    assert metadata_problem(one, files_of_step(slices(100), one.step)) == problem


def test_metadata_of_one_file_or_none_are_not_needed() -> None:
    one = iteration(100, None)
    assert metadata_problem(one, {}) is None
    alone = {"llama_tiny-model-0000000-0000001.safetensors": next(iter(FILES.values()))}
    assert metadata_problem(one, alone) is None
    assert metadata_problem(one, FILES) is not None


@pytest.mark.parametrize(("wrong", "of_metadata"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_where_more_than_half_of_the_files_contradict_them_the_metadata_are_wrong(
    wrong: int, of_metadata: bool
) -> None:
    """There are four files."""
    files = {
        name: replace(file, parameters=file.parameters[1:]) if number < wrong else file
        for number, (name, file) in enumerate(FILES.items())
    }
    problem = metadata_problem(iteration(100), files)
    assert (problem is not None) == of_metadata
    assert problem is None or problem.startswith(f"{wrong} of 4 files contradict it: ")


def test_a_file_that_metadata_do_not_name_is_a_problem_of_theirs() -> None:
    first, *_ = FILES
    more = {**FILES, "other-model-0000000-0000004.safetensors": FILES[first]}
    problem = metadata_problem(iteration(100), more)
    assert problem is not None
    assert problem.startswith("other-model-0000000-0000004.safetensors: ")
    assert "more files" not in problem
    many = {**more, "other-model-0000001-0000004.safetensors": FILES[first]}
    assert (metadata_problem(iteration(100), many) or "").endswith("; and 1 more files")


@pytest.mark.parametrize(
    ("tracked", "mtimes", "chosen", "written", "warned"),
    [
        (200, {}, False, False, False),
        (None, {}, False, True, False),
        (100, {100: 2, 200: 1}, False, False, True),
        (100, {100: 2, 200: 1}, True, True, False),
        (100, {100: 2, 200: 2}, False, True, False),
        (100, {100: 1, 200: 2}, False, True, False),
        (300, {300: 2}, False, True, False),
        (50, {}, False, True, False),
    ],
    ids=["right", "missing", "later", "later, but chosen", "at once", "earlier", "of a higher number", "without files"],
)
def test_the_tracker_names_the_planned_iteration_unless_that_of_a_later_run(
    tracked: int | None, mtimes: dict[int, int], chosen: bool, written: bool, warned: bool
) -> None:
    inventory = tree(iteration(100), iteration(200), mtimes=mtimes, tracker=Document(path="latest", value=tracked))
    targets, warnings = planned(inventory, 200, chosen=chosen)
    assert (targets, len(warnings)) == (["latest"] if written else [], int(warned))


def test_findings_are_those_of_one_step_or_of_all_and_the_tracker() -> None:
    inventory = tree(
        iteration(100, None), iteration(200), iteration(300, None), tracker=Document(path="latest", problem="is empty")
    )
    every = [note.path for note in check_documents(inventory, None, ())]
    assert every == ["iteration_00000100/metadata.json", "iteration_00000300/metadata.json", "latest"]
    assert [note.path for note in check_documents(inventory, Step.iteration(300), ())] == every[1:2]
