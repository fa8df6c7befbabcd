"""Checks of the files that a plan writes: their names, their place, and what lies there now."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from ms_recover.errors import FormatError, StorageError, VerificationError
from ms_recover.execution.slice_source import Stop
from ms_recover.file_names import PARTIAL_MARK, marked
from ms_recover.model.actions import FileState
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.storage.atomic import AtomicFile
from ms_recover.storage.digest import digest_bytes
from ms_recover.system_errors import explained

_RANK_DIRECTORY = re.compile(r"(?:ckpt_dir|rank_)(\d+)\Z", re.ASCII)
_RANK_IN_NAME = re.compile(r".+_rank_(\d+)(?=-\d+_\d+\.)", re.ASCII | re.DOTALL)
_STEP_IN_NAME = re.compile(r".+-(\d+)_(\d+)(?=\.)", re.ASCII | re.DOTALL)
_NUMBERS = re.compile(r"\d+", re.ASCII)


def check_names(plan: Plan) -> None:
    """Check that every path of a plan names the rank, the step and the kind of file that it is for.

    Raises
    ------
    FormatError
        When one names another rank or step, or none; it names the path.
    """
    for what, path, problem in _names(plan):
        if problem is not None:
            raise FormatError(f"the plan is to {what}, and {path!r} {problem}: plan again")


def _names(plan: Plan) -> Iterator[tuple[str, str, str | None]]:
    """Yield the use of each path, the path, and its problem."""
    step = plan.step if plan.step is not None else plan.considered
    for action in (*plan.actions, *plan.partials):
        use, target = f"write a slice of rank {action.rank}", action.target
        partial = isinstance(action, ComposeAction) and action.kind == "partial"
        if partial != (target == marked(target.replace(PARTIAL_MARK, ""), PARTIAL_MARK)):
            yield use, target, "is no name for parts of a slice" if partial else "is a name for parts of a slice"
        yield use, target, name_problem(target, action.rank, step)
        for replica in action.replicas:
            use = f"read a slice of rank {replica.rank}"
            yield use, replica.path, name_problem(replica.path, replica.rank, step)
    for write in plan.group_files:
        use = f"write the rank list of rank {write.rank}"
        if not write.target.endswith(".pb"):
            yield use, write.target, "does not end in .pb"
        yield use, write.target, name_problem(write.target, write.rank, None)


def name_problem(path: str, rank: int, step: Step | None) -> str | None:
    """Return why a path is not one of this rank and step, None when it is (pure).

    Rank directories (``ckpt_dir3``, ``rank_3``) and MindFormers' ``_rank_3`` in the file name count first; in paths of
    other patterns the rank must stand as a number of its own. The step stands as ``-1_8`` in the file name, or, in
    other patterns, as two numbers; it is None where the name holds none.
    """
    *folders, name = path.split("/")
    ranks = [match[1] for match in map(_RANK_DIRECTORY.match, folders) if match]
    ranks += [match[1] for match in [_RANK_IN_NAME.match(name)] if match]
    for other in ranks:
        if other != str(rank):
            return f"names rank {other}"
    named = _STEP_IN_NAME.match(name)
    if step is not None and named is not None and (named[1], named[2]) != (str(step.epoch), str(step.step)):
        return f"names step {named[1]}_{named[2]}, not {step}"
    numbers = _NUMBERS.findall(path)
    if named is not None:
        numbers.remove(named[1])
        numbers.remove(named[2])
    elif step is not None:
        for number in (str(step.epoch), str(step.step)):
            if number not in numbers:
                return f"does not name step {step}"
            numbers.remove(number)
    return None if str(rank) in numbers else f"does not name rank {rank}"


def check_place(root: str, path: str, rank: int) -> None:
    """Check that a target of a rank lies below the root, and in no other rank's directory, once links are followed.

    Raises
    ------
    FormatError
        When a link leads elsewhere.
    StorageError
        When a link leads nowhere.
    """
    parent = os.path.join(root, os.path.dirname(path))
    if os.path.lexists(parent) and not os.path.exists(parent):
        raise StorageError(
            f"writing {os.path.join(root, path)}: {parent} is a link that leads nowhere: put a directory there"
        )
    real_root = os.path.realpath(root)
    folder = os.path.realpath(parent)
    if folder != real_root and not folder.startswith(os.path.join(real_root, "")):
        raise FormatError(f"{path} leads out of {root} through a link, to {folder}: nothing was written there")
    for part in os.path.relpath(folder, real_root).split("/"):
        match = _RANK_DIRECTORY.match(part)
        if match is not None and match[1] != str(rank):
            raise FormatError(f"{path} leads to the directory of rank {match[1]} through a link: nothing was written")


def check_target(path: str, replaces: FileState | None) -> None:
    """Raise a VerificationError unless the target is the file that the plan saw: nothing newer may be replaced."""
    with explained("looking at", path):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return
    if not stat.S_ISREG(status.st_mode):
        raise VerificationError(f"{path} is no file, and in the way of one: move it away, then plan again")
    if replaces is None or FileState(status.st_size, status.st_mtime_ns) != replaces:
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")


def check_written(file: AtomicFile, digest: str, stop: Stop) -> None:
    """Raise a VerificationError unless the device holds the bytes that were written; errors of reading as they are."""
    with explained("reading back", file.path):
        back = digest_bytes(file.descriptor, stop, from_device=True)
    if back != digest:
        raise VerificationError(
            f"{file.path} reads back as {back}, written was {digest}: the device or its memory alters data; "
            "check the system log"
        )
