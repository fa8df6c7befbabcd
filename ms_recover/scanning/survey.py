"""A look at a folder in which no layout is known: the files that may be slices, and strategy files and rank lists."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ms_recover.errors import MsRecoverError
from ms_recover.file_names import GROUP_INFO_NAME, SLICE_ENDINGS, ending_of
from ms_recover.model.inventory import SeenEvidence
from ms_recover.scanning.naming import never_a_slice, rank_in_path, read_rank_directory, strategy_rank, why_unused
from ms_recover.scanning.settle import Place
from ms_recover.scanning.tree import Tree
from ms_recover.stores.paths import join

_MOST_FOLDERS = 4_096
_MOST_DISTANT = 256
_MOST_FILES = 100_000
_DEEPEST = 8
_NEARBY_FOLDERS = 64
_OF_RANK = re.compile(r"(?<!\d)\d+(?!\d)", re.ASCII)
_PADDED = re.compile(r"(?<!\d)0\d", re.ASCII)
_STRATEGY = re.compile(r".*strategy.*\.(?:ckpt|json)", re.ASCII | re.IGNORECASE)
_EVIDENCE_FOLDER = re.compile(r".*(?:strateg|group|info).*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Survey:
    """The files below a folder that end as slices do; the count is of those seen, at least as many are there."""

    paths: tuple[str, ...]
    stopped: bool

    @property
    def text(self) -> str:
        """How many files of each format there are, with one of them."""
        if not self.paths:
            return "no file in it ends in " + " or ".join(SLICE_ENDINGS)
        count = Counter(map(ending_of, self.paths))
        files = " and ".join(
            f"{number:,} *{ending} file{'s' * (number > 1)}" for ending, number in sorted(count.items())
        )
        return f"{'at least ' if self.stopped else ''}{files}, for example {self.paths[0]}"


def survey_folder(tree: Tree) -> Survey:
    """Look for files that may be slices in a tree, through a bounded number of folders and files."""
    paths: list[str] = []
    folders = 0
    pending = [""]
    most = _MOST_FOLDERS if tree.near else _MOST_DISTANT
    while pending and folders < most and len(paths) < _MOST_FILES:
        folder = pending.pop(0)
        folders += 1
        for name, is_folder in _entries(tree, folder):
            path = join(folder, name)
            if is_folder and not name.startswith(".") and path.count("/") < _DEEPEST:
                pending.append(path)
            elif not is_folder and _may_be_slice(name):
                paths.append(path)
    return Survey(tuple(paths), bool(pending))


def _may_be_slice(name: str) -> bool:
    other = never_a_slice(name) or _STRATEGY.fullmatch(name) or why_unused(name)
    return name.endswith(SLICE_ENDINGS) and not name.startswith(".") and not other


def advice_for(root: str, surveyed: Survey) -> str:
    """Return what to do where no layout is known: if there is one, the command with a pattern that reads the files."""
    own = read_rank_directory(os.path.basename(root), os.path.basename(os.path.dirname(root)))
    if own is not None and any("/" not in path for path in surveyed.paths):
        command = shlex.join(["recover-ckpt", "plan", os.path.dirname(root)])
        return f"this is the directory of rank {own[0]} alone: name the folder of all ranks: {command}"
    from ms_recover.scanning.pattern_guess import guess_pattern  # only where nothing is recognised

    guess = guess_pattern(surveyed.paths)
    if guess is None or 2 * guess.files < len(surveyed.paths):
        named = "{rank} {prefix} {epoch} {step}"
        padded = any(_PADDED.search(path) for path in surveyed.paths)
        but = "; a rank or step with leading zeros is not known" if padded else ""
        return f"name the folder that holds the ranks' directories, or describe the paths with --pattern ({named}){but}"
    command = shlex.join(["recover-ckpt", "plan", root, "--pattern", guess.pattern])
    read = f"{guess.files:,} of them as slices of {guess.ranks:,} ranks and {guess.steps:,} steps"
    return f"this reads {read}, check that it is so: {command}"


def find_seen_evidence(places: Iterable[Place], used: Collection[str]) -> tuple[SeenEvidence, ...]:
    """Find strategy files and rank lists near slices that a scan does not use, and the options that take them.

    `places` are the folders to look from; in each, and in folders in it whose names speak of strategies or groups or
    are those of ranks. `used` are the paths that the scan used, as `option_path` returns them.
    """
    families: dict[tuple[str, str], list[str]] = defaultdict(list)
    folders = 0
    for place in places:
        for folder in _evidence_folders(place.tree, place.folder):
            folders += 1
            if folders > _NEARBY_FOLDERS:
                break
            for name, is_folder in _entries(place.tree, folder):
                path = option_path(place.tree, join(folder, name))
                option = _option_of(name)
                if option is not None and not is_folder and path not in used:
                    families[option, _form_of(path)].append(path)
    return tuple(
        SeenEvidence(option=f"{option} {shlex.quote(form)}", example=paths[0], count=len(paths))
        for (option, form), paths in sorted(families.items())
    )


def option_path(tree: Tree, path: str) -> str:
    """Return a path as an option takes it: absolute, or relative to a root that is not local."""
    return tree.name(path) if tree.near else path


def _evidence_folders(tree: Tree, place: str) -> Iterator[str]:
    """Yield a folder, and those in it and one level further down that may hold strategy files or rank lists."""
    yield place
    for name, is_folder in _entries(tree, place):
        folder = join(place, name)
        if is_folder and _EVIDENCE_FOLDER.fullmatch(name):
            yield folder
            yield from (join(folder, one) for one, is_inner in _entries(tree, folder) if is_inner)
        elif is_folder and read_rank_directory(name) is not None:
            yield folder


def _option_of(name: str) -> str | None:
    if name == GROUP_INFO_NAME or (name.startswith("group_info") and name.endswith(".pb")):
        return "--group-info"
    return "--strategy" if strategy_rank(name) is not None or _STRATEGY.fullmatch(name) else None


def _form_of(path: str) -> str:
    """Return a path with ``{rank}`` for its rank: that of a directory and the file, or the last number in the name."""
    folder, _, name = path.rpartition("/")
    rank = rank_in_path(folder)
    if rank is not None:
        parts = [
            part.replace(str(rank), "{rank}") if rank_in_path(part) == rank else part for part in folder.split("/")
        ]
        return "/".join([*parts, re.sub(rf"(?<!\d){rank}(?!\d)", "{rank}", name)])
    numbers = list(_OF_RANK.finditer(name))
    if not numbers:
        return path
    return f"{folder}/{name[: numbers[-1].start()]}{{rank}}{name[numbers[-1].end() :]}"


def _entries(tree: Tree, folder: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, sorted, and whether each is a folder; nothing where it cannot be listed."""
    try:
        return [(entry.name, entry.kind == "folder") for entry in tree.entries(folder, keep=False)]
    except MsRecoverError:
        return []
