"""JSON and YAML whose objects know the line on which they begin, for messages that name it."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable
from json import decoder, scanner
from typing import Any

from ms_recover.errors import ContradictionError, FormatError, UsageError, install_extra

_DEEPEST = 64
_MOST_DIGITS = 400


class Located(dict[str, Any]):
    """An object of a document, and the line on which it begins, from 1."""

    line = 0


def decode_text(data: bytes, where: str) -> str:
    """Return the text of a file in UTF-8; a FormatError names the line that is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(f"{where}, line {line}: no text in UTF-8; check the path") from None


def decode_json(text: str, where: str) -> Any:
    """Decode JSON; its objects are `Located`.

    Raises
    ------
    FormatError
        When it is no JSON, or nested too deeply; it names the line.
    ContradictionError
        When an object has a member twice.
    """
    ends = [at for at, character in enumerate(text) if character == "\n"]

    def line_of(at: int) -> int:
        return bisect.bisect_left(ends, at) + 1

    def whole(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:  # int would refuse it, too
            raise FormatError(f"{where}, line {line_of(text.index(digits))}: a number has too many digits; correct it")
        return int(digits)

    made = json.JSONDecoder(object_pairs_hook=lambda pairs: pairs, parse_int=whole)

    def parse_object(begun: tuple[str, int], *rest: Any) -> tuple[Located, int]:
        pairs, end = parse(begun, *rest)
        found = Located(pairs)
        found.line = line_of(begun[1] - 1)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ContradictionError(f"{where}, line {found.line}: {twice[:80]!r} is there twice; keep one")
        return found, end

    # The scanner of json in Python, because the one in C hands out no positions.
    parse: Callable[..., tuple[Any, int]] = decoder.JSONObject  # type: ignore[attr-defined]
    made.parse_object = parse_object  # type: ignore[attr-defined]
    made.scan_once = scanner.py_make_scanner(made)  # type: ignore[attr-defined]
    try:
        return made.decode(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"{where}, line {error.lineno}: no JSON: {error.msg}; was it cut off?") from None
    except RecursionError:
        raise FormatError(f"{where}, line 1: it is nested too deeply; check the path") from None


def decode_yaml(text: str, where: str) -> Any:
    """Decode YAML; its mappings are `Located`, its scalars texts as they are written.

    Raises
    ------
    FormatError
        When it is no YAML, or nested too deeply; it names the line.
    ContradictionError
        When a mapping has a key twice.
    UsageError
        When PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{where}: YAML takes a package that is not installed: {install_extra('topology')}, or write it as JSON"
        ) from None

    def build(node: Any, depth: int) -> Any:
        line = node.start_mark.line + 1
        if depth > _DEEPEST:
            raise FormatError(f"{where}, line {line}: it is nested too deeply; check the path")
        if isinstance(node, yaml.ScalarNode):
            return node.value
        if isinstance(node, yaml.SequenceNode):
            return [build(item, depth + 1) for item in node.value]
        found = Located()
        found.line = line
        for key, value in node.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise FormatError(f"{where}, line {at}: a key must be a text")
            if key.value in found:
                raise ContradictionError(f"{where}, line {at}: {key.value[:80]!r} is there twice; keep one")
            found[key.value] = build(value, depth + 1)
        return found

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where it is there, is faster
    depth = 0
    try:
        for token in yaml.scan(text, Loader=loader):
            line = token.start_mark.line + 1
            if isinstance(token, yaml.AliasToken):
                raise FormatError(f"{where}, line {line}: *{token.value[:80]} is an alias; write it out")
            depth += type(token).__name__.endswith(("SequenceStartToken", "MappingStartToken"))
            depth -= type(token).__name__.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
            if depth > _DEEPEST:  # before it is parsed, which takes long then
                raise FormatError(f"{where}, line {line}: it is nested too deeply; check the path")
        root = yaml.compose(text, Loader=loader)
        return None if root is None else build(root, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise FormatError(f"{where}, line {line}: no YAML: {error.problem}; correct it") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{where}, line 1: no YAML: {str(error)[:200]}; check the path") from None
    except RecursionError:
        raise FormatError(f"{where}, line 1: it is nested too deeply; check the path") from None
