"""Options of the command line as fields of frozen values.

An option is declared once, with the field that it sets (`field_option`). A command lists its options with `takes`, and
gets one frozen value for each class of options. To add an option, add the field to its class and declare the option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from click.core import ParameterSource

Target = Literal["scan", "plan", "peers", "security"]
"""The value that an option is a field of, by the name of the command's argument."""

_Value = TypeVar("_Value")
_Command = Callable[..., int]


class FieldOption(click.Option):
    """An option whose value becomes a field of a frozen value.

    Parameters
    ----------
    declarations : list of str
        As for `click.Option`.
    target : Target
        The value.
    field : str
        Its field. An option that is not given leaves the default of the field.
    parse : callable, optional
        Makes the field from the text; raises ValueError with a message for the user.
    spell : callable
        Makes the text from the field again.
    inverted : bool
        A flag that clears its field.
    needs_from : bool
        The option has a meaning only with ``--from``.
    **attributes
        As for `click.Option`.
    """

    def __init__(
        self,
        declarations: list[str],
        *,
        target: Target,
        field: str,
        parse: Callable[[str], Any] | None = None,
        spell: Callable[[Any], str] = str,
        inverted: bool = False,
        needs_from: bool = False,
        **attributes: Any,
    ) -> None:
        super().__init__(declarations, expose_value=False, callback=_store, **attributes)
        self.target, self.field = target, field
        self.parse, self.spell = parse, spell
        self.inverted, self.needs_from = inverted, needs_from

    def field_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the field that a typed value stands for.

        Raises
        ------
        click.BadParameter
            When the value is invalid.
        """
        if self.parse is None:
            return not value if self.inverted else value
        try:
            return self.parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self) from None

    def words(self, value: Any, default: Any) -> list[str]:
        """Return the words to type for a value; none for the default, and for the one that the environment gives."""
        if value == default or (isinstance(self.envvar, str) and value == os.environ.get(self.envvar)):
            return []
        name = self.opts[0]
        if self.is_flag:
            return [name]
        if self.multiple:
            return [word for item in value for word in (name, self.spell(item))]
        return [name, self.spell(value)]


def _store(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    assert isinstance(option, FieldOption)
    if value is not None:
        _values(ctx, option.target)[option.field] = option.field_value(ctx, value)


def _values(ctx: click.Context, target: Target) -> dict[str, Any]:
    values: dict[str, Any] = ctx.meta.setdefault(f"ms_recover.{target}", {})
    return values


class FieldDeclaration:
    """An option that is declared, to be listed in `takes`."""

    def __init__(self, declarations: tuple[str, ...], attributes: Mapping[str, Any]) -> None:
        self.declarations, self.attributes = declarations, attributes

    def __call__(self, function: _Command) -> _Command:
        """Add the option to a command."""
        return click.option(*self.declarations, cls=FieldOption, **self.attributes)(function)


def field_option(*declarations: str, target: Target, field: str, **attributes: Any) -> FieldDeclaration:
    """Declare an option; arguments as for `FieldOption`."""
    return FieldDeclaration(declarations, {"target": target, "field": field, **attributes})


def takes(
    target: Target, load: Callable[[], type[_Value]], *options: FieldDeclaration
) -> Callable[[_Command], _Command]:
    """Add options to a command, and give it their values as one argument named `target`.

    Parameters
    ----------
    target : Target
        The argument.
    load : callable
        Imports its class on use: help needs no model.
    *options : FieldDeclaration
        In the order of the help.
    """

    def decorate(function: _Command) -> _Command:
        @wraps(function)
        def command(*positional: Any, **named: Any) -> int:
            value = load()(**_values(click.get_current_context(), target))
            return function(*positional, **named, **{target: value})

        added: _Command = command
        for option in reversed(options):
            added = option(added)
        return added

    return decorate


def typed_options(ctx: click.Context) -> list[FieldOption]:
    """Return the options that stand on the command line."""
    options = [option for option in ctx.command.params if isinstance(option, FieldOption)]
    return [option for option in options if _source(ctx, option) is click.core.ParameterSource.COMMANDLINE]


def _source(ctx: click.Context, option: FieldOption) -> ParameterSource | None:
    assert option.name is not None
    return ctx.get_parameter_source(option.name)


def words_of(command: click.Command, values: Mapping[Target, Any]) -> list[str]:
    """Return the words that give a command its frozen values again, in the order of its help.

    Parameters
    ----------
    command : click.Command
        With options made by `field_option`.
    values : mapping of Target to object
        The frozen values.
    """
    words: list[str] = []
    for option in command.params:
        if isinstance(option, FieldOption) and option.target in values:
            value = values[option.target]
            default = {field.name: field.default for field in fields(value)}[option.field]
            words += option.words(getattr(value, option.field), default)
    return words
