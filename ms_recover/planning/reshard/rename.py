"""Rules that give parameters other names: ``old=new`` for a whole name, or for dotted parts of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ms_recover.errors import UsageError
from ms_recover.model.texts import name_some

Rule = tuple[str, str]


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Parse rules; a ValueError says which one is wrong, or that they lead in a circle."""
    rules: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        if not all((*old.split("."), *new.split("."))):
            raise ValueError(f"{text!r} is no rule: write OLD=NEW, whole names or dotted parts of them")
        if old in rules:
            raise ValueError(f"{old!r} is renamed twice")
        rules[old] = new
    for old in rules:
        name, seen = old, [old]
        while (name := rules.get(name, "")) and name not in seen:
            seen.append(name)
        if name == old:
            raise ValueError(f"the rules lead in a circle: {' -> '.join([*seen, old])}; rename in two runs")
    return tuple(rules.items())


def rename_all(names: Sequence[str], rules: Sequence[Rule]) -> dict[str, str]:
    """Return the new name of each parameter; the first rule that fits applies, and no other after it.

    Raises
    ------
    UsageError
        When a rule fits no parameter, or two parameters get one name.
    """
    used: set[Rule] = set()
    renamed: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        new = name
        for rule in rules:
            name_now = _renamed(name, *rule)
            if name_now is not None:
                new = name_now
                used.add(rule)
                break
        if new in taken:
            raise UsageError(f"--rename gives {taken[new]!r} and {name!r} the same name, {new!r}")
        taken[new] = name
        renamed[name] = new
    idle = [f"{old}={new}" for old, new in rules if (old, new) not in used]
    if idle:
        raise UsageError(f"--rename {idle[0]} fits no parameter; there are {name_some(list(names))}")
    return renamed


def _renamed(name: str, old: str, new: str) -> str | None:
    """Return a name with the dotted parts `old` in it replaced once, None where it has not got them."""
    at = f".{name}.".find(f".{old}.")
    if at < 0:
        return None
    return f".{name}."[: at + 1].removeprefix(".") + new + f".{name}."[at + 1 + len(old) :].removesuffix(".")
