r"""The grammar of paths: which files of a tree are slices, and of which rank, prefix and step. Pure.

Names follow MindSpore's ``ModelCheckpoint``: ``{prefix}-{epoch}_{step}.ckpt`` or ``.safetensors`` in a directory of the
rank. MindFormers appends ``_rank_{rank}`` to the prefix, and MindSpore ``_{N}`` to that when the training is started
again: ``llama_rank_0_1-2_100.ckpt``. Strategy files are ``strategy.ckpt``, ``strategy.json``, or carry
``_rank_{rank}`` as MindFormers' ``ckpt_strategy_rank_{rank}.ckpt``.

A rank's directory is called as `RANK_DIRECTORIES` of `ms_recover.file_names` say. It lies in the root, or below folders
whose names say that they hold checkpoints, such as ``output/checkpoint`` of MindFormers, ``src_checkpoints`` of
MindSpore's tutorials or MindIO's ``ttp_saved_checkpoints-step_{step}``. A process that works in ``device{rank}`` has
such folders of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from ms_recover.errors import UsageError
from ms_recover.file_names import (
    BESIDE_SLICE,
    COMPLETE_MARK,
    FOREIGN_TEMPORARY_SUFFIX,
    GRAPH_SUFFIX,
    MANIFEST_SUFFIX,
    OUTVOTED_SUFFIX,
    PARTIAL_MARK,
    SLICE_ENDINGS,
    SLICE_FORMATS,
    SUPERSEDED_SUFFIX,
    TEMPORARY_SUFFIX,
    WeightKind,
    is_vague,
    last_named_rank,
    marked,
    rank_in_folder,
)
from ms_recover.model.inventory import RankPath
from ms_recover.model.steps import Step

_NUMBER = r"(?:0|[1-9]\d{0,17})"
_FIELDS = {"rank": rf"(?P<rank>{_NUMBER})", "epoch": rf"(?P<epoch>{_NUMBER})", "step": rf"(?P<step>{_NUMBER})"}
_FIELDS["prefix"] = r"(?P<prefix>[^/]+)"
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_RANK_PLACE = "\0"  # in a name: the place of the rank
_STRATEGY = re.compile(rf"(?:ckpt_)?strategy((?:_rank_{_NUMBER})*)\.(?:ckpt|json)", re.ASCII)
_ASIDE = (SUPERSEDED_SUFFIX, OUTVOTED_SUFFIX)
_SET_ASIDE = re.compile(rf"(?:\.[1-9]\d*)?(?:{'|'.join(map(re.escape, _ASIDE))})\Z", re.ASCII)
_PARTIAL = tuple(marked(ending, PARTIAL_MARK) for ending in SLICE_ENDINGS)
_COMPLETE = tuple(marked(ending, COMPLETE_MARK) for ending in SLICE_ENDINGS)
_SLICE = re.compile(
    rf"(?P<prefix>.+)-(?P<epoch>{_NUMBER})_(?P<step>{_NUMBER})(?P<breakpoint>_breakpoint)?\.(?:{'|'.join(SLICE_FORMATS)})\Z",
    re.ASCII | re.DOTALL,
)
_NAMED = re.compile(
    rf"(?P<slice>(?P<prefix>.+)-(?P<epoch>\d{{1,18}})_(?P<step>\d{{1,18}})\.(?:{'|'.join(SLICE_FORMATS)}))(?:\.|\Z)",
    re.ASCII | re.DOTALL,
)

OUTVOTED = "kept when apply put another slice in its place, because nothing proved it damaged"
"""Why a file that was outvoted is no slice."""

UnusedKind = Literal[
    "temporary", "unfinished save", "superseded", "outvoted", "graph", "breakpoint", "partial", "complete", "other rank"
]
"""Why a file that belongs to checkpointing is no slice; reports fold many files of one kind."""


@dataclass(frozen=True, slots=True)
class SliceName:
    """A path that names a slice; the prefix is without the rank, so that it is the same on every rank."""

    rank: int
    step: Step
    prefix: str
    place: RankPath
    kind: WeightKind | None = None

    @property
    def path(self) -> str:
        """Path relative to the root."""
        return self.place.of(self.rank)


@dataclass(frozen=True, slots=True)
class FileName:
    """The parts of a file name: of a slice, of what lies beside one, or of either set aside.

    Parameters
    ----------
    slice : str
        The name of the slice where it is in place.
    rest : str
        What is behind it; empty for the slice itself.
    """

    prefix: str
    step: Step
    slice: str
    rest: str


@dataclass(frozen=True, slots=True)
class Unused:
    """A path that is reported but not used."""

    kind: UnusedKind
    reason: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path relative to the root with ``{rank}`` and ``{step}`` in it, and perhaps ``{prefix}`` and ``{epoch}``.

    Where a field but the prefix occurs twice, it is the same twice. The epoch is 0 where the path has none.
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Check a pattern that a user typed.

        Raises
        ------
        UsageError
            When a required field is missing, a field is unknown, or the path leaves the root.
        """
        fields = _PLACEHOLDER.findall(text)
        for field in fields:
            if field not in _FIELDS:
                raise UsageError(
                    f"pattern {text!r}: {{{field}}} is not known; use {{rank}} {{prefix}} {{epoch}} {{step}}"
                )
        for field in ("rank", "step"):
            if field not in fields:
                raise UsageError(f"pattern {text!r} lacks {{{field}}}")
        if fields.count("prefix") > 1:
            raise UsageError(f"pattern {text!r} has {{prefix}} twice")
        if text.startswith("/") or any(part in ("", ".", "..") for part in text.split("/")):
            raise UsageError(
                f"pattern {text!r} must be a path below the root, "
                "such as ckpt_dir{rank}/{prefix}-{epoch}_{step}.ckpt"
            )
        return cls(text)

    @property
    def components(self) -> tuple[str | re.Pattern[str], ...]:
        """The path's components: literal names as text, the others as expressions."""
        return tuple(_compiled(part) if _PLACEHOLDER.search(part) else part for part in self.text.split("/"))

    def match(self, path: str) -> re.Match[str] | None:
        """Match a whole path; the groups are named after the fields."""
        return _compiled(self.text).match(path)

    def slice_name(self, path: str) -> SliceName | Unused | None:
        """Return the slice that the path names, None when it does not match.

        A rank that the file name carries beside the pattern's must be the same, else the file is unused.
        """
        match = self.match(path)
        if match is None:
            return None
        form = _PLACEHOLDER.sub(lambda place: _RANK_PLACE if place[1] == "rank" else match[place[1]], self.text)
        return _slice_name(int(match["rank"]), match, form)


def read_slice_name(directory: RankPath, rank: int, name: str) -> SliceName | Unused | None:
    """Classify the file `name` in the directory of a rank; None for a file that has nothing to do with slices."""
    match = _SLICE.match(name)
    unused = _why_unused(name, match)
    if unused is not None:
        return unused
    return None if match is None else _slice_name(rank, match, f"{_RANK_PLACE.join(directory.parts)}/{name}")


def _slice_name(rank: int, match: re.Match[str], form: str) -> SliceName | Unused:
    """Return the slice of a rank's path, given with places for the rank; refuse a file name that carries another rank.

    Where it carries several, the last is the rank.
    """
    fields = match.groupdict(default="")
    prefix = fields.get("prefix", "")
    head, slash, name = form.rpartition("/")
    named = last_named_rank(name)
    if named is not None and _RANK_PLACE not in name[named.end() :]:
        start, end = named.span("rank")
        if name[start:end] != str(rank):
            return Unused(
                "other rank",
                f"the name says rank {name[start:end]}, the directory says rank {rank}: put it where it belongs",
            )
        form = f"{head}{slash}{name[:start]}{_RANK_PLACE}{name[end:]}"
        in_prefix = last_named_rank(prefix)
        if in_prefix is not None:
            prefix = prefix[: in_prefix.start()] + prefix[in_prefix.end() :]
    step = Step(int(fields.get("epoch", 0)), int(fields["step"]))
    return SliceName(rank, step, prefix, RankPath(tuple(form.split(_RANK_PLACE))))


def why_unused(name: str) -> Unused | None:
    """Return why a file that belongs to checkpointing is never used as a slice, None when it may be one."""
    return _why_unused(name, _SLICE.match(name))


def _why_unused(name: str, match: re.Match[str] | None) -> Unused | None:
    if name.endswith(TEMPORARY_SUFFIX):
        return Unused("temporary", "left over from an interrupted recovery or save")
    if name.endswith(FOREIGN_TEMPORARY_SUFFIX):
        return Unused("unfinished save", "left over from an interrupted save")
    if name.endswith(SUPERSEDED_SUFFIX):
        return Unused("superseded", "set aside: newer than the step that training went on from")
    if name.endswith(OUTVOTED_SUFFIX):
        return Unused("outvoted", OUTVOTED)
    if name.endswith(GRAPH_SUFFIX):
        return Unused("graph", "the computing graph, not a slice")
    if match is not None and match["breakpoint"]:
        return Unused("breakpoint", "saved on an exception, step not comparable")
    if name.endswith(_PARTIAL):
        return Unused("partial", "parts of a slice that could not be recovered whole")
    if name.endswith(_COMPLETE):
        return Unused("complete", "a full slice put together by recover-ckpt complete")
    return None


def read_file_name(name: str) -> FileName | None:
    """Return the parts of a file name, None where it has nothing of the name of a slice."""
    match = _NAMED.match(name)
    if match is None:
        return None
    step = Step(int(match["epoch"]), int(match["step"]))
    return FileName(match["prefix"], step, match["slice"], name[len(match["slice"]) :])


def name_before(name: str) -> str:
    """Return the name that a slice had before it was set aside."""
    return _SET_ASIDE.sub("", name)


def outvoted_reason(root: str, path: str, names: Collection[str], *, near: bool) -> str:
    """Return why a file that was outvoted is no slice, and how it is taken back or removed.

    `names` are those in its folder; commands are for a tree of this host, which is `near`.
    """
    aside, slice_path = f"{root}/{path}", f"{root}/{name_before(path)}"
    kept = [part for part in ("", *BESIDE_SLICE) if path.rpartition("/")[2] + part in names]
    if not near:
        return (
            f"{OUTVOTED}; to take it back give it, and what lies beside it, the name {slice_path} in the store, and "
            "plan with --lost for the ranks that are wrong; to remove it delete both"
        )
    later = [part for part in BESIDE_SLICE if slice_path.rpartition("/")[2] + part in names]
    commands = [["rm", "-f", *(slice_path + part for part in later)]] if later else []
    commands += [["mv", "-f", aside + part, slice_path + part] for part in kept]
    back = " && ".join(map(shlex.join, commands))
    gone = shlex.join(["rm", "-f", *(aside + part for part in kept)])
    return (
        f"{OUTVOTED}; to take it back: {back}; then plan with --lost for the ranks that are wrong; to remove it: {gone}"
    )


def never_a_slice(name: str) -> bool:
    """Whether no pattern makes a slice of a file, whatever it matches."""
    return name.endswith((FOREIGN_TEMPORARY_SUFFIX, *BESIDE_SLICE, *_ASIDE, *_PARTIAL, *_COMPLETE))


def strategy_rank(name: str) -> int | None:
    """Return the rank in the name of a strategy file, -1 when there is none in it; None for any other file."""
    match = _STRATEGY.fullmatch(name)
    if match is None:
        return None
    ranks = {int(rank) for rank in re.findall(r"\d+", match[1])}
    return -1 if not ranks else ranks.pop() if len(ranks) == 1 else None


def read_rank_directory(name: str, parent: str = "") -> tuple[int, RankPath] | None:
    """Return the rank that a directory name stands for and the name's form, None when it is no rank directory."""
    form = rank_in_folder(name, parent)
    if form is None or not re.fullmatch(_NUMBER, form[1], re.ASCII):
        return None
    return int(form[1]), RankPath((form[0], form[2]))


def rank_in_path(path: str) -> int | None:
    """Return the rank that the last rank directory in a path names, None when there is none."""
    parts = path.split("/")
    for parent, name in reversed([*pairwise(["", *parts])]):
        found = read_rank_directory(name, parent)
        if found is not None:
            return found[0]
    return None


@lru_cache(maxsize=64)
def _compiled(text: str) -> re.Pattern[str]:
    """Translate a pattern; where a field stands twice, it must be the same twice."""
    pieces: list[str] = []
    end = 0
    seen = set()
    for match in _PLACEHOLDER.finditer(text):
        pieces.append(re.escape(text[end : match.start()]))
        field = match[1]
        pieces.append(f"(?P={field})" if field in seen else _FIELDS[field])
        seen.add(field)
        end = match.end()
    pieces.append(re.escape(text[end:]))
    return re.compile("".join(pieces) + r"\Z", re.ASCII | re.DOTALL)


_CONTAINER = re.compile(
    r"(?!\.|.*\.[a-z]\w*\Z)[\w.-]*(?:ckpt|checkpoint)[\w.-]*|outputs?|ranks?", re.ASCII | re.IGNORECASE
)
_UNFINISHED = re.compile(r"ttp_saved_checkpoints-step_\d+_tmp", re.ASCII)
_MOST_CONTAINERS = 3
_OF_FILES = (*SLICE_ENDINGS, MANIFEST_SUFFIX)


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that may hold slices or directories of ranks; paths are relative to the root."""

    path: str
    name: str
    place: RankPath
    rank: int | None = None
    containers: int = 0
    """How many folders that are no rank's lie between it and the root."""

    def below(self, name: str) -> Folder | None:
        """Return the directory `name` in this one, None when slices are not expected in it.

        One of another rank is expected only where the number in the name of this one may be none of a rank.
        """
        if name.endswith(_OF_FILES):
            return None
        path = f"{self.path}/{name}" if self.path else name
        found = read_rank_directory(name, self.name)
        if found is not None:
            rank, form = found
            if self.rank is None or self.rank == rank:
                return Folder(path, name, _join(self.place, form), rank, self.containers)
            return Folder(path, name, _join(RankPath((self.path,)), form), rank) if is_vague(self.name) else None
        if self.containers < _MOST_CONTAINERS and _CONTAINER.fullmatch(name) and not is_unfinished(name):
            return replace(
                self, path=path, name=name, place=_join(self.place, RankPath((name,))), containers=self.containers + 1
            )
        return None

    @property
    def is_rank_directory(self) -> bool:
        """Whether its own name is that of a rank's directory."""
        return self.rank is not None and self.place.parts[-1].partition("/")[1] == ""


def top_folder(name: str) -> Folder:
    """Return the root, whose own name is `name`."""
    return Folder("", name, RankPath(("",)))


def is_unfinished(name: str) -> bool:
    """Whether a directory is one that MindIO renames when all ranks have saved their slices in it."""
    return _UNFINISHED.fullmatch(name) is not None


def _join(place: RankPath, form: RankPath) -> RankPath:
    """Return the path of a directory in another one; the last part of that one ends where the name begins."""
    ahead = f"{place.parts[-1]}/" if len(place.parts) > 1 or place.parts[0] else ""
    return RankPath((*place.parts[:-1], f"{ahead}{form.parts[0]}", *form.parts[1:]))
