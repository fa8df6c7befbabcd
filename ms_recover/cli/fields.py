"""Options of the command line as fields of frozen values.

An option is declared once, with the value and the field that it sets (`field_option`). A command lists its options with
`takes`, and gets one frozen value for each class of options. To add an option, add the field to its class and declare
the option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, Literal

import click

from ms_recover.cli.output import print_error

Target = Literal["scan", "plan", "peers", "engine", "topology", "wanted"]
"""The value that an option is a field of, by the name of the command's argument."""

_AMBIENT = "MS_RECOVER_"

Command = Callable[..., int]
Decorator = Callable[[Command], Command]


class FieldOption(click.Option):
    """An option whose value becomes a field of a frozen value; one that is not given leaves the field's default.

    Parameters
    ----------
    target : Target
        The value.
    field : str, optional
        Its field; by default named as the option.
    parse : callable, optional
        Makes the field from the value that click has read; raises ValueError with a message for the user.
    doubt : callable, optional
        Returns a warning about a value that is taken all the same, which is printed; an empty text for none.
    **attributes
        As for `click.Option`.
    """

    def __init__(
        self,
        declarations: list[str],
        *,
        target: Target,
        field: str = "",
        parse: Callable[[Any], Any] | None = None,
        doubt: Callable[[Any], str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(declarations, expose_value=False, callback=_keep, **attributes)
        self.target = target
        self.field = field or str(self.name)
        self.parse = parse
        self.doubt = doubt

    def words(self, value: Any, default: Any) -> list[str]:
        """Return the words to type for a value; none for the default, and for that of a variable of all."""
        if value == default or value in self._values_of_environment():
            return []
        name = self.opts[0]
        if self.is_flag:
            return [name]
        return [word for item in (value if self.multiple else [value]) for word in (name, _spell(item))]

    def _values_of_environment(self) -> list[str]:
        names = [self.envvar] if isinstance(self.envvar, str) else self.envvar or []
        return [os.environ[name] for name in names if name.startswith(_AMBIENT) and name in os.environ]


def _keep(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Check a value and keep it for the command."""
    assert isinstance(option, FieldOption)
    if value is None:
        return
    try:
        _values(ctx, option.target)[option.field] = value if option.parse is None else option.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, option) from None
    if option.doubt is not None and (text := option.doubt(value)):
        print_error(f"recover-ckpt: {option.opts[0]}: {text}")


def _values(ctx: click.Context, target: Target) -> dict[str, Any]:
    values: dict[str, Any] = ctx.meta.setdefault(f"ms_recover.{target}", {})
    return values


def _spell(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], frozenset):
        return "=".join(map(_spell, value))  # ranks, and their node
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if not isinstance(value, frozenset):
        return _without_secrets(str(value))
    from ms_recover.model.texts import ranks_text

    return ranks_text(value).replace(" ", "")


def _without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    from ms_recover.stores.urls import shown_url

    return shown_url(text)


def field_option(target: Target, *declarations: str, **attributes: Any) -> Decorator:
    """Declare an option; arguments as for `FieldOption`."""
    return click.option(*declarations, cls=FieldOption, target=target, **attributes)


def takes(target: Target, kind: str, *options: Decorator) -> Decorator:
    """Add options to a command, and give it their values as one argument named `target`.

    The class of the values, `kind`, is named as ``module:class`` and imported on use, because help needs no model. The
    options, made by `field_option`, are in the order of the help.
    """
    module, _, name = kind.partition(":")

    def decorate(function: Command) -> Command:
        @wraps(function)
        def command(*positional: Any, **named: Any) -> int:
            value = getattr(import_module(module), name)(**_values(click.get_current_context(), target))
            return function(*positional, **named, **{target: value})

        added: Command = command
        for option in reversed(options):
            added = option(added)
        return added

    return decorate


def typed_options(ctx: click.Context) -> list[FieldOption]:
    """Return the options that stand on the command line."""
    return _options_from(ctx, click.core.ParameterSource.COMMANDLINE)


def ambient_options(ctx: click.Context) -> list[FieldOption]:
    """Return the options that come from the environment."""
    return _options_from(ctx, click.core.ParameterSource.ENVIRONMENT)


def _options_from(ctx: click.Context, source: click.core.ParameterSource) -> list[FieldOption]:
    options = [option for option in ctx.command.params if isinstance(option, FieldOption)]
    return [option for option in options if ctx.get_parameter_source(str(option.name)) is source]


def words_of(command: click.Command, values: Mapping[Target, Any]) -> list[str]:
    """Return the words that give a command its frozen values again, in the order of its help."""
    words: list[str] = []
    for option in command.params:
        if isinstance(option, FieldOption) and option.target in values:
            value = values[option.target]
            words += option.words(getattr(value, option.field), getattr(type(value)(), option.field))
    return words
