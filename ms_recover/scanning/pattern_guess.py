"""Guess the ``--pattern`` of a foreign layout from the paths of its files: which number is the rank, which the step.

Pure. A guess is checked on the paths that it was made from.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from ms_recover.scanning.naming import Pattern, SliceName

_NUMBER = re.compile(r"\d+", re.ASCII)
_WORD = re.compile(r"([a-z]+)[_.=-]?\Z", re.ASCII | re.IGNORECASE)
_RANK_WORDS = dict.fromkeys(("rank", "rk", "ranks"), 10) | dict.fromkeys(
    (
        *("device", "dev", "card", "worker", "node", "host", "proc", "process", "gpu", "npu", "pid"),
        *("p", "r", "w", "part", "shard", "id", "tp", "dp", "mp"),
    ),
    6,
)
_STEP_WORDS = dict.fromkeys(("step", "steps", "iter", "iters", "iteration", "iterations", "it", "s", "gs"), 8)
_EPOCH_WORDS = dict.fromkeys(["epoch", "epochs", "ep", "e"], 8)
_MOST_FAMILIES = 3
_MOST_COLUMNS = 7
_MOST_PATHS = 2_000


@dataclass(frozen=True)
class Guess:
    """A pattern, and the files, ranks and steps that it reads."""

    pattern: str
    files: int
    ranks: int
    steps: int


@dataclass(frozen=True)
class _Family:
    """Paths that are the same but for their numbers."""

    paths: Sequence[str]

    @property
    def texts(self) -> list[str]:
        """The text before each number, and that behind the last."""
        return _NUMBER.split(self.paths[0])

    @property
    def columns(self) -> list[list[str]]:
        """The values of each number over all paths."""
        return [list(column) for column in zip(*map(_NUMBER.findall, self.paths), strict=True)]


def guess_pattern(paths: Sequence[str]) -> Guess | None:
    """Return the pattern that reads the most of these paths, None when no number in them varies like a rank."""
    sample = paths[:: len(paths) // _MOST_PATHS + 1]
    families: dict[str, list[str]] = defaultdict(list)
    for path in sample:
        families[_NUMBER.sub("0", path)].append(path)
    best: tuple[float, str] | None = None
    for held in sorted(families.values(), key=len, reverse=True)[:_MOST_FAMILIES]:
        for worth, text in _candidates(_Family(held)):
            score = worth + 20 * _share(text, sample) if best is None or worth + 20 > best[0] else None
            if score is not None and (best is None or score > best[0]) and _share(text, sample):
                best = score, text
    if best is None:
        return None
    names = [name for name in map(Pattern.parse(best[1]).slice_name, paths) if isinstance(name, SliceName)]
    ranks, steps = ({name.rank for name in names}, {name.step for name in names})
    return Guess(best[1], len(names), len(ranks), len(steps))


def _share(text: str, sample: Sequence[str]) -> float:
    """Return the share of paths that a pattern reads, 0 where it reads two as one slice."""
    if "{rank}" not in text or "{step}" not in text:
        return 0.0
    pattern = Pattern.parse(text)
    names = [name for name in map(pattern.slice_name, sample) if isinstance(name, SliceName)]
    distinct = {(name.rank, name.step, name.prefix) for name in names}
    return len(names) / len(sample) if len(distinct) == len(names) else 0.0


def _candidates(family: _Family) -> Iterator[tuple[float, str]]:
    """Yield patterns with their worth: every choice of a rank, a step and perhaps an epoch among the numbers."""
    columns, texts = family.columns, family.texts
    if any("{" in text or "}" in text for text in texts):
        return
    kinds = [columns.index(column) for column in columns]  # numbers that are always the same are one kind
    usable = [
        kind for kind in dict.fromkeys(kinds) if not any(len(value) > 1 and value[0] == "0" for value in columns[kind])
    ]
    if len(usable) > _MOST_COLUMNS:  # then what never varies is no rank, epoch or step
        usable = [kind for kind in usable if len(set(columns[kind])) > 1]
    if len(usable) > _MOST_COLUMNS:
        return
    for rank, step, *epochs in [*permutations(usable, 2), *permutations(usable, 3)]:
        if len(set(columns[rank])) < 2 and _word_before(texts[rank]) not in _RANK_WORDS:
            continue
        fields = {rank: "{rank}", step: "{step}", **dict.fromkeys(epochs, "{epoch}")}
        worth = _worth_of_rank(texts, columns, kinds, rank) + _worth_of_step(texts, columns, kinds, step, epochs)
        written = [fields.get(kind) or Counter(columns[kind]).most_common(1)[0][0] for kind in kinds]
        fixed = [kind for kind in set(kinds) if kind not in fields and len(set(columns[kind])) > 1]
        text = "".join(part for pair in zip(texts, [*written, ""], strict=True) for part in pair)
        yield worth - 4 * len(fixed), text
        folder, slash, name = text.rpartition("/")
        head = name.partition("{")[0].rstrip("-_.0123456789")
        if head and name.count("{") >= 2:
            yield worth - 0.5, f"{folder}{slash}{{prefix}}{name[len(head) :]}"
            cut = re.search(r"[-_.](?=\{(?:rank|epoch|step)\})|(?:[-_.]|\b)rank_?(?=\{)", name)
            if cut is not None:
                yield worth - 0.7, f"{folder}{slash}{{prefix}}{name[cut.start() :]}"


def _word_before(text: str) -> str:
    match = _WORD.search(text)
    return match[1].lower() if match is not None else ""


def _worth_of_rank(texts: Sequence[str], columns: Sequence[Sequence[str]], kinds: Sequence[int], rank: int) -> float:
    words = [_word_before(texts[index]) for index, kind in enumerate(kinds) if kind == rank]
    worth: float = max(_RANK_WORDS.get(word, -10 if word in _STEP_WORDS | _EPOCH_WORDS else 0) for word in words)
    values = sorted({int(value) for value in columns[rank]})
    worth += 2 * (values[0] == 0) + 4 * (values == list(range(values[0], values[0] + len(values))))
    return worth + (2 if len(values) > 1 else -6) + 0.5 * (len(words) > 1)


def _worth_of_step(
    texts: Sequence[str], columns: Sequence[Sequence[str]], kinds: Sequence[int], step: int, epochs: Sequence[int]
) -> float:
    worth = 0.0
    for kind, own, others in [(step, _STEP_WORDS, _EPOCH_WORDS), *((one, _EPOCH_WORDS, _STEP_WORDS) for one in epochs)]:
        words = [_word_before(texts[index]) for index, known in enumerate(kinds) if known == kind]
        worth += max(own.get(word, -10 if word in _RANK_WORDS | others else 0) for word in words)
        worth += min(int(columns[kind][0]), 10) / 100  # of two numbers without a word, the larger is the step
    pairs = [index for index in range(len(kinds) - 1) if texts[index + 1] == "_" and kinds[index + 1] == step]
    for index in pairs:
        if epochs and kinds[index] == epochs[0]:
            worth += 12 if texts[index].endswith("-") else 6
    worth -= sum(3 for index, kind in enumerate(kinds) if kind in (step, *epochs) and texts[index + 1][:1].isalpha())
    worth += 0.5 if epochs and kinds.index(epochs[0]) < kinds.index(step) else 0
    return worth + (1 if len(set(columns[step])) > 1 else 0) - (1.5 if epochs else 0)
