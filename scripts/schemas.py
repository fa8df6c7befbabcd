"""Write the JSON Schemas of what the commands print with --json, made of the nouns that print it.

``python scripts/schemas.py [DIRECTORY]``, by default docs/schemas; a test compares them with the nouns.

A noun says by ``RECORD`` which members its record has (`ms_recover.formats.record`), and by the types of its attributes
and properties what they are; `ms_recover.formats.codec` has the bounds of ranks, sizes and the like.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from fractions import Fraction
from functools import cache, cached_property
from inspect import getattr_static, getdoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ms_recover.engine.workers import WorkerInfoFields
from ms_recover.formats import codec
from ms_recover.formats.plan_json import PlanFields
from ms_recover.formats.record import members_of
from ms_recover.model import units
from ms_recover.model.audit import Audit
from ms_recover.model.backup import BackupOutcome
from ms_recover.model.explanation import Explanation
from ms_recover.model.history import History
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import Inventory
from ms_recover.model.iterations import Document, Iteration, Tracker
from ms_recover.model.listening import Started, Stopped
from ms_recover.model.outcome import Outcome
from ms_recover.model.reshard import ReshardOutcome, ReshardPlan
from ms_recover.model.sealing import SealedStep
from ms_recover.model.verification import Verification

COMMANDS = {
    "apply": Outcome,
    "audit": Audit,
    "copy": BackupOutcome,
    "history": History,
    "inspect": Inspection,
    "plan": PlanFields,
    "reshard": ReshardOutcome,
    "reshard --plan": ReshardPlan,
    "seal --watch": SealedStep,
    "scan": Inventory,
    "serve": Started | Stopped,
    "verify": Verification,
    "worker-info": WorkerInfoFields,
}
_UNIONS = (Union, UnionType)
_UNITS = {name: getattr(codec, name) for name in units.__annotations__}
_NAMES = _UNITS | {"Document": Document, "Iteration": Iteration, "Tracker": Tracker}
"""What names in annotations mean, where that is more than they mean in their module."""


def main(directory: Path) -> None:
    """Write one file for each command."""
    directory.mkdir(parents=True, exist_ok=True)
    for command, kind in COMMANDS.items():
        document = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"recover-ckpt {command} --json",
            **msgspec.json.schema(with_explanation(kind) if command == "plan" else type_of_record(kind)),
        }
        text = json.dumps(document, indent=1).replace('Fields"', '"')  # names of types without their ending
        (directory / f"{command.replace(' --', '-')}.schema.json").write_text(text + "\n")


def with_explanation(plan: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the structure of a plan, with ``--explain`` one rank's slice parameter by parameter as well."""
    explanation = _left_out("explanation", structure_of(Explanation))
    made = msgspec.defstruct(plan.__name__, [explanation], bases=(plan,), kw_only=True)
    made.__doc__ = getdoc(plan)
    return made


def type_of_record(hint: Any) -> Any:
    """Return the type of the JSON that values of a type become, nouns within it as structures of their members."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(origin or hint):
        return structure_of(origin or hint)
    if origin in (None, Literal, Annotated):
        return float if hint is Fraction else hint
    kinds = tuple(one if one is Ellipsis else type_of_record(one) for one in arguments)
    if origin in _UNIONS:
        return Union[kinds]  # noqa: UP007 (a union of these values)
    return kinds[0] if origin is ClassVar else origin[kinds]


@cache
def structure_of(noun: type) -> type[msgspec.Struct]:
    """Return the structure of the records of a noun; a member that is one text says which noun it is."""
    fields, tag = [], {}
    for name, hint, *default in fields_of(noun):
        if get_origin(hint) is Literal and isinstance(word := get_args(hint)[0], str) and not get_args(hint)[1:]:
            tag = {"tag_field": name, "tag": word}
        else:
            fields.append((name, hint, *default))
    made = msgspec.defstruct(noun.__name__, fields, kw_only=True, **tag)
    made.__doc__ = (getdoc(noun) or "").partition("\n\n")[0].replace("\n", " ")
    return made


def fields_of(noun: type) -> Iterator[tuple[Any, ...]]:
    """Yield name and type of each member of the records of a noun, and a default for those that may be left out."""
    for member in members_of(noun):
        hint: Any = noun
        for name in member.attribute.split("."):
            hint = hint_of(get_origin(hint) or hint, name)
        there = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in _UNIONS else [hint]
        if member.name.startswith("*"):
            yield from (_left_out(name, kind) for name, kind in fields_of(there[0]))
        elif member.optional:
            yield _left_out(member.name, *map(type_of_record, there))
        else:
            yield member.name, type_of_record(hint)


def _left_out(name: str, *kinds: Any) -> tuple[Any, ...]:
    return name, Union[(*kinds, msgspec.UnsetType)], msgspec.UNSET


def hint_of(noun: type, name: str) -> Any:
    """Return the type of an attribute or property of a noun."""
    found = getattr_static(noun, name, None)  # no attribute of the class where it is not in slots
    function = found.func if isinstance(found, cached_property) else getattr(found, "fget", None)
    hints = get_type_hints(function or noun, localns=_NAMES, include_extras=True)
    return hints["return" if function is not None else name]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "schemas")
