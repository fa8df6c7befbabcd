"""The group of commands and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import click

from ms_recover import __version__
from ms_recover.errors import INTERRUPTED, MsRecoverError

_COMMANDS = {
    "apply": "ms_recover.cli.apply",
    "complete": "ms_recover.cli.complete",
    "inspect": "ms_recover.cli.inspect",
    "plan": "ms_recover.cli.plan",
    "scan": "ms_recover.cli.scan",
    "seal": "ms_recover.cli.seal",
    "serve": "ms_recover.cli.serve",
    "verify": "ms_recover.cli.verify",
}

EPILOG = """\b
Exit codes
  0    done, or nothing to do
  1    reading or writing failed (disk full, no permission, ...)
  2    wrong usage
  3    an input is missing or malformed
  4    unrecoverable: somebody's slice is nowhere
  5    verification failed: bytes are not what they should be
  130  interrupted; no temporary file is left
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on use (click's documentation, "Lazily Loading Subcommands")."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="recover-ckpt")
def group() -> None:
    """Recover sharded MindSpore checkpoints from ranks that hold the same bytes.

    Runs on any machine, without MindSpore and without an accelerator. See what is there with scan, what can be done
    with plan, do it with apply, prove it with verify.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``recover-ckpt`` and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command line without the program name; by default the process's own.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = group.main(args=arguments, prog_name="recover-ckpt", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted: no temporary file is left; run the command again to finish", INTERRUPTED)
    except MsRecoverError as error:
        return _complain(str(error), error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("MS_RECOVER_TRACEBACK"):
            raise
        detail = f"{type(error).__name__}: {error}"
        return _complain(f"{detail}; set MS_RECOVER_TRACEBACK=1 to see where, and please report it", 1)


def _complain(text: str, code: int) -> int:
    with suppress(OSError):  # standard error may be gone too
        click.echo(f"recover-ckpt: {text}", err=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
