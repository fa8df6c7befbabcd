"""Whether the paths of a plan name the rank and the step that it claims for them (pure).

A plan comes from a file that anyone may have edited, and its paths are written to. Slices lie in a directory, or have a
name, that holds their rank; so another rank's slice cannot be replaced by a plan that a slip of the hand has changed.
"""

from __future__ import annotations

import re
from collections import Counter

from ms_recover.file_names import GROUP_INFO_NAME
from ms_recover.model.steps import Step

_RANK_DIRECTORY = re.compile(r"(?:ckpt_dir|rank_)(\d+)\Z", re.ASCII)
_RANK_IN_NAME = re.compile(r"_rank_(\d+)", re.ASCII)
_STEP_IN_NAME = re.compile(r".*-(\d+)_(\d+)(?:\.partial)?\.(?:ckpt|safetensors)\Z", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"\d+", re.ASCII)


def check_slice_path(path: str, rank: int, step: Step) -> None:
    """Refuse the path of a slice, with a ValueError, that does not name its rank and its step.

    Names as MindSpore gives them, ``{prefix}-{epoch}_{step}.ckpt``, state the step; in other layouts both numbers must
    be in the path.
    """
    named = _STEP_IN_NAME.match(path.rpartition("/")[2])
    numbers = Counter(_NUMBER.findall(path))
    of_step = Counter((str(step.epoch), str(step.step)))
    if (named is not None and named.groups() != (str(step.epoch), str(step.step))) or not of_step <= numbers:
        raise ValueError(f"{path!r} does not name step {step}")
    _check_rank(path, rank, numbers - of_step)


def check_group_path(path: str, rank: int) -> None:
    """Refuse the path of a rank list, with a ValueError, that does not name its rank or is not ``group_info.pb``."""
    if path.rpartition("/")[2] != GROUP_INFO_NAME:
        raise ValueError(f"{path!r} is not called {GROUP_INFO_NAME}")
    _check_rank(path, rank, Counter(_NUMBER.findall(path)))


def _check_rank(path: str, rank: int, numbers: Counter[str]) -> None:
    """Refuse a path that names another rank where ranks are named, or does not have the rank among its `numbers`."""
    *directories, name = path.split("/")
    found = [match[1] for match in map(_RANK_DIRECTORY.match, directories) if match]
    found += _RANK_IN_NAME.findall(name)
    for other in found:
        if other != str(rank):
            raise ValueError(f"{path!r} names rank {other}, it is to be of rank {rank}")
    if not found and str(rank) not in numbers:
        raise ValueError(f"{path!r} does not name rank {rank}")
