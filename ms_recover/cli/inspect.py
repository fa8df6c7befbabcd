"""``recover-ckpt inspect``."""

from __future__ import annotations

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option
from ms_recover.cli.output import print_json, print_text, text_width
from ms_recover.errors import InputError


@click.command(name="inspect", cls=Command, example="recover-ckpt inspect /checkpoints/ckpt_dir0/group_info.pb")
@click.argument("file", type=click.Path(readable=False))
@click.option("--no-crc", is_flag=True, help="Do not check the CRC of a slice that has one.")
@json_option
def command(file: str, no_crc: bool, as_json: bool) -> int:
    """Identify FILE and list its contents: a slice, a group_info.pb, a strategy file or a document of MindFormers."""
    from ms_recover import api
    from ms_recover.reporting.inspection import inspection_text

    found = api.inspect(file, crc=not no_crc)
    if as_json:
        from ms_recover.formats.record import record

        print_json(record(found))
    else:
        print_text(inspection_text(found, text_width()))
    return InputError.exit_code if found.problems else 0
