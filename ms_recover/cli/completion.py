"""``recover-ckpt completion``."""

from __future__ import annotations

import click

from ms_recover.cli.command import Command
from ms_recover.cli.main import PROGRAM, group
from ms_recover.cli.output import print_text


@click.command(
    name="completion",
    cls=Command,
    example="recover-ckpt completion bash > ~/.local/share/bash-completion/completions/recover-ckpt\n"
    'eval "$(recover-ckpt completion zsh)"\n'
    "recover-ckpt completion fish > ~/.config/fish/completions/recover-ckpt.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the script that completes commands and options in a shell: bash 4.4, zsh or fish."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{PROGRAM.replace('-', '_').upper()}_COMPLETE"
    script = kind(group, {}, PROGRAM, variable)
    print_text(script.source_template % script.source_vars())  # source() would start bash to ask for its version
    return 0
