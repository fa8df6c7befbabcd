"""The group of commands and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

import click

from ms_recover.cli.signals import Terminated, interruptible
from ms_recover.errors import INTERRUPTED, TERMINATED, MsRecoverError
from ms_recover.version import __version__

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "recover-ckpt"

COMMANDS = {
    "apply": "Carry out a plan, so that every rank has its slice.",
    "audit": "Say which hosts and racks may be lost. Changes nothing.",
    "complete": "Write a full slice for RANK from the parts of its peers.",
    "completion": "Print the script that completes commands and options in a shell.",
    "copy": "Back up a proven step below ROOT to URL, contents once each.",
    "history": "Name the step at which replicas first disagreed, by manifests.",
    "inspect": "Identify FILE and list its contents.",
    "metrics": "Print figures about ROOT for Prometheus.",
    "plan": "Find the newest step that every rank can have. Changes nothing.",
    "report": "Write a page about ROOT for browsers: ranks, steps, the plan.",
    "reshard": "Cut the slices of ROOT anew for other ranks, into OUT.",
    "scan": "List the slices, steps and rank lists below ROOT.",
    "seal": "Write the missing manifests, after the vote of each group.",
    "serve": "Serve ROOT to nodes that share no file system with this one.",
    "verify": "Read every slice below ROOT and check it.",
    "worker-info": "Print what this host, or each worker, sees at ROOT.",
}
"""The commands, each in a module of its name, and their first line of help: no command is imported to list them."""

EXIT_CODES = {
    "0": "done, or nothing to do",
    "1": "reading or writing failed (disk full, permission denied, ...)",
    "2": "wrong usage",
    "3": "an input is missing or malformed",
    "4": "unrecoverable: a rank's slice has no source",
    "5": "verification failed: a slice is wrong, or replicas differ",
    "6": "with audit: a loss that must be survived is fatal",
    "10": "with plan --detailed-exitcode: there is something to do",
    "130": "interrupted by Ctrl-C; no temporary file is left",
    "143": "ended by SIGTERM; no temporary file is left",
}

_NARROW = 60
_SHORT = 10
_LEAST_WIDTH = 20


class _Formatter(click.HelpFormatter):
    """Help that breaks no word on a narrow terminal: there texts stand below their options."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        if width is None:
            width = max(min(shutil.get_terminal_size().columns, max_width or 80) - 2, _LEAST_WIDTH)
        super().__init__(indent_increment, width, max_width)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and their texts."""
        rows = list(rows)
        if self.width >= _NARROW or all(len(term) <= _SHORT for term, _ in rows):
            super().write_dl(rows, col_max, col_spacing)
            return
        for term, text in rows:
            self.write(f"{'':>{self.current_indent}}{term}\n")
            with self.indentation(), self.indentation():
                self.write_text(text)


class Context(click.Context):
    """A context whose help fits the terminal."""

    formatter_class = _Formatter


class LazyGroup(click.Group):
    """A group whose commands are imported on use (click's documentation, "Lazily Loading Subcommands")."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ms_recover.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl((name, line) for name, line in sorted(COMMANDS.items()) if name != "completion")
        with formatter.section("For your shell"):
            formatter.write_dl([("completion", COMMANDS["completion"])])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the exit codes."""
        with formatter.section("Exit codes"), formatter.indentation():
            formatter.write_dl(EXIT_CODES.items())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named first; for a mistyped one the error names those that are meant."""
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = [known for known in COMMANDS if name and known.startswith(name)] or get_close_matches(name, COMMANDS)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(sorted(COMMANDS))}."
        raise click.UsageError(f"No such command {name!r}. {hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and options that begin like a word, without importing the commands."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


_COLLECT_AFTER = 100_000
"""Values made between two garbage collections: those of scans and plans live to the end, and looking through them after
every 700 takes a tenth of a command's time."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def group() -> None:
    """Recover sharded MindSpore checkpoints from ranks that hold the same bytes.

    Runs on any machine, without MindSpore and without an accelerator. List a tree with scan, see its recovery with
    plan, carry it out with apply, check the result with verify.

    Each option can come from the environment: --strategy from RECOVER_CKPT_STRATEGY, and so on for all.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``recover-ckpt``, by default with the arguments of the process, and return its exit code."""
    if sys.stdout is None:
        return _complain(
            "standard output is closed, so nothing was done: redirect it to a file, or to /dev/null for no report", 1
        )
    gc.set_threshold(_COLLECT_AFTER)
    try:
        with interruptible():
            return _run(arguments)
    except KeyboardInterrupt as error:
        by, code = (" by SIGTERM", TERMINATED) if isinstance(error, Terminated) else ("", INTERRUPTED)
        return _complain(f"interrupted{by}: no temporary file is left; run the command again to finish", code)


def _run(arguments: Sequence[str] | None) -> int:
    variables: list[str] = []
    """Those that gave options their values; the command adds them."""
    try:
        code = group.main(args=arguments, prog_name=PROGRAM, standalone_mode=False, obj=variables)
        return int(code or 0)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        return _complain(text.getvalue().rstrip("\n") + _named(variables), error.exit_code, prefix="")
    except click.Abort as error:
        cause = error.__cause__ or error.__context__  # click replaces KeyboardInterrupt by Abort
        raise cause if isinstance(cause, KeyboardInterrupt) else KeyboardInterrupt from None
    except MsRecoverError as error:
        return _complain(" ".join(str(error).split("\n")) + _named(variables), error.exit_code)
    except BrokenPipeError:
        _discard_output()
        return 1
    except Exception as error:
        if isinstance(error, OSError) and _is_from_printing(error):
            _discard_output()
            return _complain(f"cannot write to standard output: {error.strerror}; the report is incomplete", 1)
        if os.environ.get("MS_RECOVER_TRACEBACK"):
            raise
        detail = f"{type(error).__name__}: {error}"
        return _complain(f"{detail}; set MS_RECOVER_TRACEBACK=1 to see where, and please report it", 1)


def _named(variables: Sequence[str]) -> str:
    return f"; from the environment: {', '.join(variables)}" if variables else ""


def _is_from_printing(error: OSError) -> bool:
    """Whether an error comes from standard output: click.echo prints everything, and flushes."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is click.echo.__code__:
            return True
        step = step.tb_next
    return False


def _discard_output() -> None:
    """Let Python's last flush at exit succeed."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str, code: int, prefix: str = f"{PROGRAM}: ") -> int:
    from ms_recover.cli.output import print_error

    print_error(f"{prefix}{text}")
    return code
