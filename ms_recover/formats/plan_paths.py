"""Whether the paths of a plan name the rank, the step and the kind of file that they are for (pure).

A plan comes from a file that anyone may have edited, and its paths are written to. Slices lie in a directory, or have a
name, that holds their rank; so another rank's slice cannot be replaced by a plan that a slip of the hand has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ms_recover.errors import FormatError
from ms_recover.file_names import (
    COMMON_NAME,
    GROUP_INFO_NAME,
    META_NAME,
    METADATA_NAME,
    OUTVOTED_SUFFIX,
    PARTIAL_MARK,
    STRATEGY_NAME,
    TRACKER_NAME,
    aside_name,
    ending_of,
    last_named_rank,
    marked,
    named_iteration,
    ranks_in_folders,
    strategy_name,
    weights_name,
)
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step

_STEP_IN_NAME = re.compile(r".+-(\d+)_(\d+)(?=\.)", re.ASCII | re.DOTALL)
_SHOWN = 500
_NUMBERS = re.compile(r"\d+", re.ASCII)


def check_names(plan: Plan, where: str = "the plan") -> None:
    """Check that every path of a plan names the rank, the step and the kind of file that it is for.

    The message begins with `where`.

    Raises
    ------
    FormatError
        When one names another rank or step, or none; it names the path.
    """
    for what, path, problem in name_problems(plan):
        raise FormatError(text_of_problem(where, what, path, problem))


def name_problems(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield the use of each path of a plan that names another rank, step or kind of file, the path, and its problem."""
    for what, path, problem in _names(plan):
        if problem is not None:
            yield what, path, problem


def text_of_problem(where: str, what: str, path: str, problem: str) -> str:
    """Return a problem of `name_problems` in words that begin with `where`."""
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."
    return f"{where} is to {what}, and {shown!r} {problem}: rename that file, then plan again"


def _names(plan: Plan) -> Iterator[tuple[str, str, str | None]]:
    """Yield the use of each path, the path, and its problem."""
    yield from _names_aside(plan)
    step = plan.step if plan.step is not None else plan.considered
    if step is not None and step.is_iteration:
        yield from _names_of_iteration(plan, step)
        return
    read = _Read(step)
    ranks: dict[str, int] = {}
    for action in (*plan.actions, *plan.partials):
        use, target = f"write a slice of rank {action.rank}", action.target
        partial = isinstance(action, ComposeAction) and action.kind == "partial"
        if partial != (target == marked(target.replace(PARTIAL_MARK, ""), PARTIAL_MARK)):
            yield use, target, "is no name for parts of a slice" if partial else "is a name for parts of a slice"
        yield use, target, name_problem(target, action.rank, step)
        for replica in action.replicas:
            if ranks.get(replica.path) == replica.rank:
                continue  # as for another rank of the group
            ranks[replica.path] = replica.rank
            if (problem := read.problem(replica.path, replica.rank)) is not None:
                yield f"read a slice of rank {replica.rank}", replica.path, problem
    for document in plan.documents:
        yield "write a document", document.target, "belongs to a tree of iterations"
    for write in plan.group_files:
        use = f"write the rank list of rank {write.rank}"
        if write.target.rpartition("/")[2] != GROUP_INFO_NAME:
            yield use, write.target, f"is not called {GROUP_INFO_NAME}"
        yield use, write.target, name_problem(write.target, write.rank, None)
    for strategy in plan.strategy_files:
        for use, path, rank in (
            (f"write the strategy file of rank {strategy.rank}", strategy.target, strategy.rank),
            (f"read the strategy file of rank {strategy.source_rank}", strategy.source, strategy.source_rank),
        ):
            if (name := path.rpartition("/")[2]) != strategy_name(name, rank):
                yield use, path, f"is not called {STRATEGY_NAME} or {strategy_name('ckpt_strategy_rank_0.ckpt', rank)}"
            yield use, path, name_problem(path, rank, None)
    for meta in plan.meta_files:
        use, folder = f"write the meta.json of rank {meta.rank}", meta.target.rpartition("/")[0]
        if meta.target.rpartition("/")[2] != META_NAME:
            yield use, meta.target, f"is not called {META_NAME}"
        yield use, meta.target, name_problem(meta.target, meta.rank, None)
        yield use, meta.file, name_problem(f"{folder}/{meta.file}", meta.rank, step)


class _Read:
    """Checks the paths that are read, most of which differ by the rank in the name of a directory alone.

    A form of paths that holds for two ranks names none beside that, and so it holds for every rank.
    """

    def __init__(self, step: Step | None) -> None:
        self._step = step
        self._held: dict[tuple[str, str], set[int]] = {}

    def problem(self, path: str, rank: int) -> str | None:
        """Return the problem of a path as `name_problem` does."""
        ahead, found, behind = path.partition(f"{rank}/")
        held = self._held.setdefault((ahead, behind), set()) if found and not ahead[-1:].isdigit() else set()
        if len(held) > 1 or rank in held:
            return None
        problem = name_problem(path, rank, self._step)
        if problem is None:
            held.add(rank)
        return problem


def _names_aside(plan: Plan) -> Iterator[tuple[str, str, str | None]]:
    """Yield the same for the slices that are set aside: none that another one may need."""
    for action in (*plan.actions, *plan.partials):
        kept = action.set_aside
        if kept is not None and kept != aside_name(action.target, OUTVOTED_SUFFIX):
            yield f"set {action.target!r} aside", kept, f"does not end in {OUTVOTED_SUFFIX} behind that name"
    needed = {part.path for verdict in plan.ranks for part in verdict.files}
    for action in plan.actions:
        needed |= {action.target, *(replica.path for replica in action.replicas)}
    for one in plan.set_aside:
        use = f"set a slice of rank {one.rank} aside"
        if not ending_of(one.path):
            yield use, one.path, "is no name of a slice"
        if one.path in needed:
            yield use, one.path, "is a slice that the plan keeps, writes or reads"
        yield use, one.path, name_problem(one.path, one.rank, None)


def _names_of_iteration(plan: Plan, step: Step) -> Iterator[tuple[str, str, str | None]]:
    """Yield the same for a plan of an iteration: files are numbered by rank, or as the plan's verdicts say."""
    owners = _owners(plan)
    for action in (*plan.actions, *plan.partials):
        use, target = f"write a file of rank {action.rank}", action.target
        partial = isinstance(action, ComposeAction) and action.kind == "partial"
        plain = target.replace(PARTIAL_MARK, "") if partial else target
        if partial and target != marked(plain, PARTIAL_MARK):
            yield use, target, "is no name for parts of a file"
        yield use, target, weights_problem(plan.root, plain, action.rank, step, owners)
        kind = _kind(plain)
        for replica in action.replicas:
            use = f"read a file of rank {replica.rank}"
            yield use, replica.path, weights_problem(plan.root, replica.path, replica.rank, step, owners)
            if _kind(replica.path) != kind:
                yield use, replica.path, f"is no {kind} file, for the {kind} file {target!r}"
    for group in plan.group_files:
        yield f"write the rank list of rank {group.rank}", group.target, "is no file of an iteration"
    for strategy in plan.strategy_files:
        yield f"write the strategy file of rank {strategy.rank}", strategy.target, "is no file of an iteration"
    for write in plan.documents:
        yield "write a document", write.target, _document_problem(plan.root, write.target, step)
        if isinstance(write.value, int) and write.value != step.step:
            yield "write a document", write.target, f"names iteration {write.value}, not {step}"


def _owners(plan: Plan) -> dict[tuple[str, int], int]:
    """Return the rank of each file by its kind and number, as the verdicts name the files."""
    owners: dict[tuple[str, int], int] = {}
    for verdict in plan.ranks:
        for part in verdict.files:
            read = weights_name((part.path or "").rpartition("/")[2])
            if read is not None and owners.setdefault((read.kind, read.file_index), verdict.rank) != verdict.rank:
                owners[read.kind, read.file_index] = -1
    return owners


def weights_problem(root: str, path: str, rank: int, step: Step, owners: Mapping[tuple[str, int], int]) -> str | None:
    """Return why a path is no file of this rank and iteration, None when it is.

    The number in its name is the rank, unless `owners` has that number of that kind of file as another rank's: with
    ``remove_redundancy`` files are numbered among the ranks that got a shard.
    """
    folder, _, name = path.rpartition("/")
    read = weights_name(name)
    if read is None:
        return "is no name of a model or optimizer file"
    iteration = named_iteration(folder.rpartition("/")[2] if folder else root.rstrip("/").rpartition("/")[2])
    if iteration != step.step:
        return f"is not in the directory of iteration {step}"
    if read.file_index >= read.file_count:
        return f"has the number {read.file_index}, of {read.file_count} files"
    owner = owners.get((read.kind, read.file_index), read.file_index)
    return None if owner == rank else f"is the file of rank {owner}" if owner >= 0 else "is the file of two ranks"


def _kind(path: str) -> str:
    read = weights_name(path.rpartition("/")[2])
    return read.kind if read is not None else ""


def _document_problem(root: str, path: str, step: Step) -> str | None:
    folder, _, name = path.rpartition("/")
    if name == TRACKER_NAME:
        return None if named_iteration(folder.rpartition("/")[2]) is None else "is no place for it"
    if name not in (METADATA_NAME, COMMON_NAME):
        return "is no name of a document"
    iteration = named_iteration(folder.rpartition("/")[2] if folder else root.rstrip("/").rpartition("/")[2])
    return None if iteration == step.step else f"is not in the directory of iteration {step}"


def name_problem(path: str, rank: int, step: Step | None) -> str | None:
    """Return why a path is not one of this rank and step, None when it is.

    Rank directories (`RANK_DIRECTORIES` of `ms_recover.file_names`) and the last ``rank_3`` in the file name count
    first; in paths of other patterns the rank must stand as a number of its own. The step stands as ``-1_8`` in the
    file name, or, in other patterns, as two numbers, or one where it has no epoch; it is None where the name holds
    none.
    """
    *folders, name = path.split("/")
    ranks = ranks_in_folders(folders)
    named_rank = last_named_rank(name)
    ranks += [named_rank["rank"]] if named_rank is not None else []
    for other in ranks:
        if other != str(rank):
            return f"names rank {other}"
    named = _STEP_IN_NAME.match(name)
    if step is not None and named is not None and (named[1], named[2]) != (str(step.epoch), str(step.step)):
        return f"names step {named[1]}_{named[2]}, not {step}"
    numbers = _NUMBERS.findall(path)
    if named is not None:
        for number in (named[1], named[2]):
            numbers.remove(number)
    elif step is not None:
        for number in (str(step.step), *([str(step.epoch)] if step.epoch else [])):  # a path without epoch is of 0
            if number not in numbers:
                return f"does not name step {step}"
            numbers.remove(number)
    return None if str(rank) in numbers else f"does not name rank {rank}"
