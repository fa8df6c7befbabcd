"""HTML and SVG elements as text, escaped by construction (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already: `element` and `joined` do not escape it."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; children and attributes are escaped, children of type `Markup` excepted.

    In names of attributes an underscore stands for a hyphen, and one at the end is left out: ``class_``, ``data_at``.
    """
    named = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    if not children:
        return Markup(f"<{name}{named}/>")
    return Markup(f"<{name}{named}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """Return children one after the other; those that are no `Markup` are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))
