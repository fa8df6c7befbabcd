r"""Which files of a tree are slices, and of which rank, prefix and step: path grammar, pure.

Names follow MindSpore's ``ModelCheckpoint``: ``{prefix}-{epoch}_{step}.ckpt`` or ``.safetensors``, ranks told apart by
directory; MindFormers puts ``_rank_{rank}`` behind the prefix as well. Strategy files are ``strategy.ckpt``,
``strategy.json``, or carry ``_rank_{rank}`` as MindFormers' ``ckpt_strategy_rank_{rank}.ckpt``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ms_recover.errors import UsageError
from ms_recover.model.inventory import RankPath
from ms_recover.model.steps import Step

GROUP_INFO_NAME = "group_info.pb"
TEMPORARY_SUFFIX = ".ms_recover.tmp"
RANK_DIRECTORIES = ("ckpt_dir{rank}", "rank_{rank}")
CONTAINERS = ("", "checkpoints", "checkpoint")

_NUMBER = r"(?:0|[1-9]\d{0,17})"
_FIELDS = {"rank": rf"(?P<rank>{_NUMBER})", "epoch": rf"(?P<epoch>{_NUMBER})", "step": rf"(?P<step>{_NUMBER})"}
_FIELDS["prefix"] = r"(?P<prefix>[^/]+)"
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_MINDFORMERS = re.compile(rf"(?P<prefix>.+)_rank_(?P<rank>{_NUMBER})\Z", re.ASCII | re.DOTALL)
_STRATEGY = re.compile(rf"(?:ckpt_)?strategy((?:_rank_{_NUMBER})*)\.(?:ckpt|json)", re.ASCII)
_PARTIAL = (".partial.ckpt", ".partial.safetensors")
_COMPLETE = (".complete.ckpt", ".complete.safetensors")
_SLICE = re.compile(
    rf"(?P<prefix>.+)-(?P<epoch>{_NUMBER})_(?P<step>{_NUMBER})(?P<breakpoint>_breakpoint)?\.(?:ckpt|safetensors)\Z",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SliceName:
    """A path that names a slice."""

    rank: int
    step: Step
    prefix: str
    place: RankPath


@dataclass(frozen=True, slots=True)
class Unused:
    """A path that is reported but not used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path relative to the root with ``{rank}``, ``{prefix}``, ``{epoch}`` and ``{step}`` in it.

    Parameters
    ----------
    text : str
        The pattern, ``/`` between components.
    """

    text: str

    @classmethod
    def parse(cls, text: str, required: tuple[str, ...] = ("rank", "epoch", "step")) -> Pattern:
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
        for field in required:
            if field not in fields:
                raise UsageError(f"pattern {text!r} lacks {{{field}}}")
        for field in set(fields) - {"rank"}:
            if fields.count(field) > 1:
                raise UsageError(f"pattern {text!r} has {{{field}}} twice")
        if text.startswith("/") or any(part in ("", ".", "..") for part in text.split("/")):
            raise UsageError(
                f"pattern {text!r} must be a path below the root, "
                "such as ckpt_dir{rank}/{prefix}-{epoch}_{step}.ckpt"
            )
        return cls(text)

    @property
    def components(self) -> tuple[str | re.Pattern[str], ...]:
        """The path's components: literal names as text, the others as what a name has to match."""
        return tuple(
            re.compile(_regex(part) + r"\Z", re.ASCII | re.DOTALL) if _PLACEHOLDER.search(part) else part
            for part in self.text.split("/")
        )

    def match(self, path: str) -> re.Match[str] | None:
        """Match a whole path; the groups are named after the fields."""
        return re.match(_regex(self.text) + r"\Z", path, re.ASCII | re.DOTALL)

    def slice_name(self, path: str) -> SliceName | None:
        """Return what the path names, None when it does not match."""
        match = self.match(path)
        if match is None:
            return None
        fields = match.groupdict(default="")
        without_rank = _PLACEHOLDER.sub(lambda place: "\0" if place[1] == "rank" else fields[place[1]], self.text)
        step = Step(int(fields["epoch"]), int(fields["step"]))
        return SliceName(int(fields["rank"]), step, fields.get("prefix", ""), RankPath(tuple(without_rank.split("\0"))))


def read_slice_name(directory: RankPath, rank: int, name: str) -> SliceName | Unused | None:
    """Say what the file `name` in a rank's directory is.

    Parameters
    ----------
    directory : RankPath
        The rank's directory, relative to the root.
    rank : int
        Whose directory it is.
    name : str
        File name.

    Returns
    -------
    SliceName, Unused or None
        None for a file that has nothing to do with slices.
    """
    unused = why_unused(name)
    if unused is not None:
        return unused
    match = _SLICE.match(name)
    if match is None:
        return None
    prefix = match["prefix"]
    step = Step(int(match["epoch"]), int(match["step"]))
    *ahead, last = directory.parts
    own = _MINDFORMERS.match(prefix)
    if own is None:
        return SliceName(rank, step, prefix, RankPath((*ahead, f"{last}/{name}")))
    if int(own["rank"]) != rank:
        return Unused(f"the name says rank {own['rank']}, the directory says rank {rank}: put it where it belongs")
    start, end = own.span("rank")
    return SliceName(rank, step, own["prefix"], RankPath((*ahead, f"{last}/{name[:start]}", name[end:])))


def why_unused(name: str) -> Unused | None:
    """Return why a file that belongs to checkpointing is never used as a slice, None when it may be one."""
    if name.endswith(TEMPORARY_SUFFIX):
        return Unused("left over from an interrupted recovery or save")
    if name.endswith(".tmp"):
        return Unused("left over from an interrupted save")
    if name.endswith(".superseded"):
        return Unused("set aside: newer than the step that training resumed from")
    if name.endswith("-graph.meta"):
        return Unused("the computing graph, not a slice")
    match = _SLICE.match(name)
    if match is not None and match["breakpoint"]:
        return Unused("saved on an exception, step not comparable")
    if name.endswith(_PARTIAL):
        return Unused("parts of a slice that could not be recovered whole")
    if name.endswith(_COMPLETE):
        return Unused("a full slice put together by recover-ckpt complete")
    return None


def never_a_slice(name: str) -> bool:
    """Whether no pattern makes a slice of a file, whatever it matches."""
    return name.endswith((".tmp", *_PARTIAL, *_COMPLETE))


def strategy_rank(name: str) -> int | None:
    """Return the rank that the name of a strategy file tells, -1 when it tells none; None for any other file."""
    match = _STRATEGY.fullmatch(name)
    if match is None:
        return None
    ranks = {int(rank) for rank in re.findall(r"\d+", match[1])}
    return -1 if not ranks else ranks.pop() if len(ranks) == 1 else None


def read_rank_directory(name: str) -> tuple[int, RankPath] | None:
    """Return the rank that a directory name stands for and the name's form, None when it is no rank directory."""
    for form in RANK_DIRECTORIES:
        head, tail = form.split("{rank}")
        digits = name[len(head) : len(name) - len(tail)]
        if name == f"{head}{digits}{tail}" and re.fullmatch(_NUMBER, digits, re.ASCII):
            return int(digits), RankPath((head, tail))
    return None


def rank_in_path(path: str) -> int | None:
    """Return the rank that the last rank directory in a path names, None when there is none."""
    for part in reversed(path.split("/")):
        found = read_rank_directory(part)
        if found is not None:
            return found[0]
    return None


def _regex(text: str) -> str:
    """Translate a pattern; the rank, where it stands twice, must be the same twice."""
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
    return "".join(pieces)
