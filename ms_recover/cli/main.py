"""The group of commands and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from ms_recover import __version__
from ms_recover.cli.signals import Terminated, interruptible
from ms_recover.errors import INTERRUPTED, TERMINATED, MsRecoverError

COMMANDS = {
    "apply": "Carry out a plan, so that every rank has its slice.",
    "complete": "Write a full slice for RANK from the parts of its peers.",
    "inspect": "Identify FILE and list its contents.",
    "plan": "Find the newest step that every rank can have. Changes nothing.",
    "scan": "List the slices, steps and rank lists below ROOT.",
    "seal": "Write the missing manifests, after the vote of each group.",
    "serve": "Serve ROOT to nodes that share no file system with this one.",
    "verify": "Read every slice below ROOT and check it.",
}
"""The commands, each in a module of its name, and their first line of help: no command is imported to list them."""

EPILOG = """\b
Exit codes
  0    done, or nothing to do
  1    reading or writing failed (disk full, permission denied, ...)
  2    wrong usage
  3    an input is missing or malformed
  4    unrecoverable: a rank's slice has no source
  5    verification failed: a slice is wrong, or replicas differ
  130  interrupted by Ctrl-C; no temporary file is left
  143  ended by SIGTERM; no temporary file is left
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on use (click's documentation, "Lazily Loading Subcommands")."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ms_recover.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


_COLLECT_AFTER = 100_000
"""Values made between two garbage collections: those of scans and plans live to the end, and looking through them after
every 700 takes a tenth of a command's time."""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="recover-ckpt")
def group() -> None:
    """Recover sharded MindSpore checkpoints from ranks that hold the same bytes.

    Runs on any machine, without MindSpore and without an accelerator. List a tree with scan, see its recovery with
    plan, carry it out with apply, check the result with verify.
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
    try:
        code = group.main(args=arguments, prog_name="recover-ckpt", standalone_mode=False)
        return int(code or 0)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        return _complain(text.getvalue(), error.exit_code, prefix="")
    except click.Abort as error:
        cause = error.__cause__  # click replaces KeyboardInterrupt by Abort
        raise cause if isinstance(cause, KeyboardInterrupt) else KeyboardInterrupt from None
    except MsRecoverError as error:
        return _complain(" ".join(str(error).split("\n")), error.exit_code)
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


def _complain(text: str, code: int, prefix: str = "recover-ckpt: ") -> int:
    from ms_recover.cli.output import print_error

    print_error(f"{prefix}{text}")
    return code
