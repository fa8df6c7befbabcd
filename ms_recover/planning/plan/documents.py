"""The documents of MindFormers against the files beside them: what is wrong with each, and how it is written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ms_recover.file_names import weights_name
from ms_recover.model.actions import FileState
from ms_recover.model.inventory import Inventory, Note, SliceFile, StrategyFile
from ms_recover.model.iterations import Iteration
from ms_recover.model.plan import DocumentWrite
from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata
from ms_recover.model.steps import Step
from ms_recover.model.verification import Verification
from ms_recover.planning.claims.compare_documents import ListedFile, compare_common, compare_files, compare_tracker
from ms_recover.planning.claims.rebuild import metadata_from_layouts, rebuild_common, rebuild_metadata
from ms_recover.planning.tree.parts import required_parts

_ABOUT_FILES = ("file missing", "file damaged")


def check_documents(inventory: Inventory, step: Step | None, parts: Iterable[Verification]) -> tuple[Note, ...]:
    """Return what is wrong with the documents of a tree, or of one step, and with the tracker; nothing elsewhere."""
    notes: list[Note] = []
    wrong = {check.step for part in parts for check in part.checks if check.status != "sound"}
    for iteration in inventory.iterations:
        if step in (None, iteration.step):
            files = listed_files(inventory.slices, iteration.step)
            for path, problem in (
                (iteration.metadata.path, metadata_problem(iteration, files)),
                (iteration.common.path, common_problem(iteration)),
            ):
                notes += [Note(path, problem)] if problem else []
    tracker = inventory.tracker
    if tracker is not None and step is None:
        complete = {iteration.step.step: iteration.step not in wrong for iteration in inventory.iterations}
        problem = tracker.problem or compare_tracker(tracker.value, complete)
        notes += [Note(tracker.path, problem)] if problem else []
    return tuple(notes)


def listed_files(slices: Iterable[SliceFile], step: Step) -> dict[str, ListedFile]:
    """Return the files of an iteration by their names."""
    return {
        file.path.rpartition("/")[2]: ListedFile(parameters=file.parameters, size=file.size, problem=file.problem or "")
        for file in slices
        if file.step == step and file.kind is not None
    }


def metadata_problem(iteration: Iteration, files: Mapping[str, ListedFile]) -> str | None:
    """Return what is wrong with the metadata of an iteration; None when most files agree with it.

    A single file needs none. Where less than half of the files contradict it, these are wrong, and not the metadata.
    """
    document = iteration.metadata
    if document.problem is not None:
        return document.problem
    if document.value is None:
        names = (weights_name(name) for name in files)
        alone = max((name.file_count for name in names if name is not None), default=0) == 1
        return None if alone or not files else "is missing: MindFormers cannot load several ranks without it"
    findings = [finding for finding in compare_files(document.value, files) if finding.kind not in _ABOUT_FILES]
    unnamed = [finding for finding in findings if finding.kind in ("file not named", "other count")]
    if unnamed:
        more = f"; and {len(unnamed) - 1} more files" if len(unnamed) > 1 else ""
        return f"{unnamed[0].file}: {unnamed[0].words}{more}"
    odd = Counter(_kind(finding.file) for finding in {finding.file: finding for finding in findings}.values())
    sound = Counter(_kind(name) for name, file in files.items() if not file.problem)
    for kind, count in odd.items():
        if 2 * count > sound[kind]:
            first = next(finding for finding in findings if _kind(finding.file) == kind)
            return f"{count} of {sound[kind]} files contradict it: {first.file}: {first.words}"
    return None


def _kind(name: str) -> str:
    read = weights_name(name)
    return read.kind if read is not None else ""


def common_problem(iteration: Iteration) -> str | None:
    """Return what is wrong with the progress document of an iteration."""
    document = iteration.common
    if document.problem is not None:
        return document.problem
    if document.value is None:
        return "is missing: MindFormers does not resume training without it"
    findings = compare_common(document.value, iteration.step.step, iteration.global_step)
    return next((finding.words for finding in findings), None)


def plan_documents(inventory: Inventory, step: Step, *, chosen: bool) -> tuple[tuple[DocumentWrite, ...], list[str]]:
    """Return the documents that must be written for a recovered step, the tracker last, and warnings.

    A step that the operator has `chosen` is written into the tracker in any case.
    """
    iteration = next(iteration for iteration in inventory.iterations if iteration.step == step)
    writes: list[DocumentWrite] = []
    warnings: list[str] = []
    files = listed_files(inventory.slices, step)
    for problem, rebuild in (
        (metadata_problem(iteration, files), _rebuild_metadata),
        (common_problem(iteration), _rebuild_common),
    ):
        if problem is not None:
            made = rebuild(inventory, iteration, files, problem)
            if isinstance(made, DocumentWrite):
                writes.append(made)
            else:
                warnings.append(made)
    written, warning = _write_tracker(inventory, step, chosen=chosen)
    return (*writes, *written), [*warnings, *warning]


def _rebuild_metadata(
    inventory: Inventory, iteration: Iteration, files: Mapping[str, ListedFile], problem: str
) -> DocumentWrite | str:
    kinds = frozenset(required_parts(inventory)[iteration.step])
    why = "no other iteration has one"
    for other in _nearest(inventory, iteration.step):
        known = other.metadata.value
        if known is None or known is iteration.metadata.value:
            continue
        made = rebuild_metadata(known, other.step.step, files, kinds=kinds)
        if made.metadata is not None:
            return _write(iteration.metadata.path, iteration.metadata.state, made.metadata, problem, made.sources)
        why = made.problem
    strategies = {first: file.strategy for first, file in _strategy_files(inventory).items()}
    if strategies:
        made = metadata_from_layouts(strategies, inventory.strategy_files[0].path, files)
        if made.metadata is not None:
            return _write(iteration.metadata.path, iteration.metadata.state, made.metadata, problem, made.sources)
        why = f"{why}; {made.problem}"
    return f"{iteration.metadata.path}: {problem}; it cannot be written again: {why}"


def _strategy_files(inventory: Inventory) -> dict[int, StrategyFile]:
    """Return a strategy file of each pipeline stage by its first rank; none at all where two of one stage differ."""
    files: dict[int, StrategyFile] = {}
    for file in inventory.strategy_files:
        first = file.rank - file.rank % max(file.devices_per_stage, 1)
        if files.setdefault(first, file).strategy.layouts != file.strategy.layouts:
            return {}
    return files


def _rebuild_common(
    inventory: Inventory, iteration: Iteration, files: Mapping[str, ListedFile], problem: str
) -> DocumentWrite | str:
    others = {other.step.step: other.common.value for other in inventory.iterations if other is not iteration}
    known = {number: common for number, common in others.items() if common is not None}
    made = rebuild_common(iteration.step.step, known, global_step=iteration.global_step)
    if made.common is None:
        return f"{iteration.common.path}: {problem}; it cannot be written again: {made.problem}"
    write = _write(iteration.common.path, iteration.common.state, made.common, problem, made.sources)
    return write.with_gaps(unknown=made.unknown, assumed=made.assumed)


def _write(
    path: str,
    state: FileState | None,
    value: ShardMetadata | CommonInfo | int,
    problem: str,
    sources: Iterable[tuple[str, str]],
) -> DocumentWrite:
    clauses = tuple(f"{what} from {source}" for what, source in sources)
    return DocumentWrite(target=path, value=value, replaces=state, reason=problem, sources=clauses)


def _write_tracker(inventory: Inventory, step: Step, *, chosen: bool) -> tuple[list[DocumentWrite], list[str]]:
    tracker = inventory.tracker
    if tracker is None or tracker.value == step.step:
        return [], []
    named = tracker.value
    if named is not None and not chosen and _is_later(inventory, Step.iteration(named), step):
        later = (
            f"{tracker.path} names iteration {named}, whose files were all written after those of iteration {step}; it "
            f"stays as it is: to recover that run use --step {named}, to resume from this one use --step {step}"
        )
        return [], [later]
    problem = tracker.problem
    if problem is None:
        problem = f"names iteration {named}" if named is not None else "is missing"
    return [_write(tracker.path, tracker.state, step.step, problem, [("the iteration", "this plan")])], []


def _is_later(inventory: Inventory, step: Step, other: Step) -> bool:
    """Whether all files of one iteration were written after all files of another."""
    ours = [file.mtime_ns for file in inventory.slices if file.step == step]
    theirs = [file.mtime_ns for file in inventory.slices if file.step == other]
    return bool(ours and theirs) and step < other and min(ours) > max(theirs)


def _nearest(inventory: Inventory, step: Step) -> Sequence[Iteration]:
    others = (iteration for iteration in inventory.iterations if iteration.step != step)
    return sorted(others, key=lambda iteration: (iteration.step > step, abs(iteration.step.step - step.step)))
