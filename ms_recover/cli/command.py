"""A command of recover-ckpt: help in sections with an example, options from the environment, a log."""

from __future__ import annotations

import os
from collections.abc import MutableSequence
from typing import Any

import click

from ms_recover.cli.fields import FieldOption, Target
from ms_recover.cli.main import COMMANDS, Context, group
from ms_recover.cli.output import print_error
from ms_recover.errors import MsRecoverError

PREFIX = "RECOVER_CKPT_"
"""An option ``--world-size`` comes from ``RECOVER_CKPT_WORLD_SIZE``, whatever the command.

An option that shares its name with one of another kind names its own variable: ``envvar="RECOVER_CKPT_METRICS_WATCH"``.
"""

_SECTIONS = ("Where the slices are", "What to recover", "How it is done", "Other nodes", "Where ranks live", "Output")
_BY_TARGET: dict[Target, str] = {
    "scan": _SECTIONS[0],
    "plan": _SECTIONS[1],
    "peers": _SECTIONS[3],
    "engine": _SECTIONS[3],
    "topology": _SECTIONS[4],
}
_BY_NAME = {
    "textfile": _SECTIONS[5],
    "label": _SECTIONS[5],
    "partial": _SECTIONS[1],
    "bind": _SECTIONS[3],
    "port": _SECTIONS[3],
    "idle": _SECTIONS[3],
    "output": _SECTIONS[5],
    "explain": _SECTIONS[5],
    "save-plan": _SECTIONS[5],
    "write-placement": _SECTIONS[5],
    "detailed-exitcode": _SECTIONS[5],
    "json": _SECTIONS[5],
    "verbose": _SECTIONS[5],
    "log-file": _SECTIONS[5],
    "help": _SECTIONS[5],
}
"""Sections of options whose value has none; all others are in "How it is done"."""

_VERBOSE, _LOG_FILE, _WORDS = "ms_recover.verbose", "ms_recover.log_file", "ms_recover.words"
_ENVIRONMENT = (
    f"Each option can come from the environment: --some-option from {PREFIX}SOME_OPTION; several paths with : between "
    "them, several other values with spaces."
)


class Command(click.Command):
    """A command; its options come from the environment too, by one name for all commands.

    Parameters
    ----------
    example : str
        Command lines that the help ends with.
    **attributes
        As for `click.Command`.
    """

    context_class = Context

    def __init__(self, *, example: str, **attributes: Any) -> None:
        lines = "\n".join(f"  {line}" for line in example.split("\n"))
        super().__init__(**attributes, epilog=f"\b\nExample\n{lines}\n\n{_ENVIRONMENT}")
        self.params += [
            click.Option(
                ["-v", "--verbose"],
                count=True,
                expose_value=False,
                callback=_keep,
                help="Log the steps of the work on standard error; -vv in detail.",
            ),
            click.Option(
                ["--log-file"],
                metavar="FILE",
                type=click.Path(dir_okay=False, readable=False),
                expose_value=False,
                callback=_keep,
                help="Append a log in detail to FILE; never through a link into the tree.",
            ),
        ]
        for option in self.params:
            if isinstance(option, click.Option):
                option.envvar = list(dict.fromkeys([variable_of(option), *given_variables(option)]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections."""
        records: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                records[_section(option)].append(record)
        for section, rows in records.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; an invalid value of the environment is named by its variable, and variables that are no option are."""
        words = list(args)
        if not ctx.resilient_parsing:
            _check_variables(self)
        try:
            rest = super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = None if error.param is None else from_environment(ctx, error.param)
            if name is not None and error.param is not None:
                error.param_hint = f"{name} (for {error.param.opts[-1]})"
            raise
        if isinstance(ctx.obj, MutableSequence):
            ctx.obj += [name for name in (from_environment(ctx, option) for option in self.params) if name]
        ctx.meta[_WORDS] = words
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with its log where one is asked for."""
        verbose, path = ctx.meta.get(_VERBOSE) or 0, ctx.meta.get(_LOG_FILE)
        from ms_recover.cli.logs import logged, logged_end

        if not verbose and path is None:
            with logged(0, None, None):  # warnings alone: names in them steer no terminal
                return super().invoke(ctx)
        with logged(verbose, path, _tree(ctx)), logged_end(ctx.command_path, ctx.meta[_WORDS]) as end:
            end.code = super().invoke(ctx)
        return end.code


def variable_of(option: click.Parameter) -> str:
    """Return the environment variable of an option, by its long name or as its ``envvar`` has it with the prefix."""
    own = next((name for name in given_variables(option) if name.startswith(PREFIX)), None)
    if own is not None:
        return own
    name = max(option.opts, key=len).lstrip("-")
    return PREFIX + name.replace("-", "_").upper()


def given_variables(option: click.Parameter) -> list[str]:
    """Return the environment variables of an option, the first of which that is set counts."""
    names = option.envvar or []
    return [names] if isinstance(names, str) else list(names)


def from_environment(ctx: click.Context, option: click.Parameter) -> str | None:
    """Return the variable that an option's value comes from, None where it comes from elsewhere."""
    if ctx.get_parameter_source(str(option.name)) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    return next((name for name in given_variables(option) if os.environ.get(name)), None)


def _keep(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    ctx.meta[f"ms_recover.{option.name}"] = value


def _section(option: click.Parameter) -> str:
    if isinstance(option, FieldOption) and option.target in _BY_TARGET:
        return _BY_TARGET[option.target]
    return _BY_NAME.get(max(option.opts, key=len).lstrip("-"), _SECTIONS[2])


def _tree(ctx: click.Context) -> str | None:
    """Return the tree that a command works on, or the file that it reads."""
    path = ctx.params.get("root") or ctx.params.get("file") or ctx.params.get("root_or_plan")
    if not isinstance(path, str) or "root_or_plan" not in ctx.params or not os.path.isfile(path):
        return path
    import json

    from ms_recover.stores.local import read_text

    try:
        root = json.loads(read_text(path))["root"]
    except (MsRecoverError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return path  # no plan: the command says so
    return root if isinstance(root, str) else path


def _check_variables(command: click.Command) -> None:
    """Name variables that look like an option's and are none: a misspelled one must not be passed over in silence."""
    names = {name for name in os.environ if name.startswith(PREFIX)}
    names -= {variable_of(option) for option in command.params}
    if not names:
        return
    from difflib import get_close_matches

    commands = [group.get_command(click.Context(group), name) for name in COMMANDS]
    known = {variable_of(option) for one in commands if one is not None for option in one.params}
    for name in sorted(names - known):
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print_error(f"recover-ckpt: {name} names no option and is not used{hint}")
